"""Layers that are one operator: the helper they share, and a maker of unary layers from rows."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from bireme.errors import InvalidArgument, WrongType
from bireme.ir import Variable

from .helper import LayerHelper

Layer = Callable[..., Variable]


def checked(value: Any, layer: str, argument: str) -> Variable:
    """`value`, which must be a Variable.

    Raises:
        InvalidArgument: it is something else.
    """
    if isinstance(value, Variable):
        return value
    raise WrongType(
        f"{layer}: {argument} must be a Variable, got {type(value).__name__}",
        hint="wrap numbers with layers.fill_constant or arrays with layers.assign",
    )


def append(
    type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    layer: str | None = None,
    name: str | None = None,
    out: Variable | None = None,
    slot: str = "Out",
    dtype: Any = None,
    stop_gradient: bool = False,
    extra: Mapping[str, Any] | None = None,
    act: Any = None,
) -> Variable:
    """Append an operator and return its output.

    `layer` names the temporaries where it differs from the operator; `extra` maps further output
    slots to their dtypes (None: like the output), made after the output.
    """
    helper = LayerHelper(layer or type, name=name, act=act)
    if dtype is None:
        dtype = _first(inputs, layer or type).dtype
    if out is None:
        out = helper.create_variable_for_type_inference(dtype, stop_gradient)
    elif stop_gradient:
        out.stop_gradient = True
    outputs = {slot: [out]}
    for other, kind in (extra or {}).items():
        outputs[other] = [
            helper.create_variable_for_type_inference(kind or dtype, stop_gradient=True)
        ]
    helper.append_op(type=type, inputs=inputs, outputs=outputs, attrs=attrs)
    return helper.append_activation(out)


def _first(inputs: Mapping[str, Any], layer: str) -> Variable:
    slot, value = next(iter(inputs.items()))
    if isinstance(value, list | tuple):
        if not value:
            raise InvalidArgument(f"{layer}: the list of inputs is empty")
        value = value[0]
    return checked(value, layer, slot)


def unary(type: str, formula: str, **parameters: Any) -> Layer:
    """The layer of a unary operator: `layer(x, *parameters, name=None)`.

    `parameters` are attributes with their defaults, in the order of the call.
    """
    named = [
        inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=d)
        for p, d in {**parameters, "name": None}.items()
    ]
    x = inspect.Parameter("x", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([x, *named])

    def layer(*args: Any, **kwargs: Any) -> Variable:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        values = given.arguments
        source = checked(values.pop("x"), type, "x")
        name = values.pop("name")
        return append(type, {"X": source}, dict(values), name=name)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = f"{formula}, for every element x."
    layer.__signature__ = signature  # type: ignore[attr-defined]  # functions take any attribute
    return layer

"""A layer that fails over an argument which should be a Variable says so."""

import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from types import FunctionType
from typing import Any, get_args

from bireme.errors import BiremeError, WrongType
from bireme.ir import Variable

__all__ = ["explain_all"]


def explain_all(names: MutableMapping[str, Any]) -> None:
    """Replace the functions among `names` that take Variables by ones that explain a failure."""
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and value.__module__.startswith(__package__ or ""):
            kinds = value.__annotations__.items()
            wanted = {k: kind for k, kind in kinds if k != "return" and _only_variables(kind)}
            if wanted:
                names[name] = _explained(value, wanted)


def _only_variables(annotation: Any) -> bool:
    """Whether it stands for a Variable, a sequence of them or None, and nothing else."""
    parts = get_args(annotation) or (annotation,)
    return bool(_mentions(annotation)) and all(
        part is type(None) or _mentions(part) for part in parts
    )


def _mentions(annotation: Any) -> bool:
    return annotation is Variable or any(_mentions(part) for part in get_args(annotation))


def _explained(layer: Callable[..., Any], wanted: Mapping[str, Any]) -> Callable[..., Any]:
    @functools.wraps(layer)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return layer(*args, **kwargs)
        except (AttributeError, TypeError) as error:
            if isinstance(error, BiremeError):
                raise
            wrong = _wrong(layer, wanted, args, kwargs)
            if not wrong:
                raise
        raise WrongType(f"{layer.__name__}: {wrong}", hint="wrap arrays with layers.assign")

    return call


def _wrong(layer: Callable[..., Any], wanted: Mapping[str, Any], args: Any, kwargs: Any) -> str:
    """What is wrong with the first argument that should be a Variable; "" if nothing is."""
    signature = inspect.signature(layer)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return ""
    for name, kind in wanted.items():
        value = given.get(name)
        if name in given and value is not signature.parameters[name].default:
            items = [value]
            if kind is not Variable and isinstance(value, list | tuple):
                items = list(value)
            for item in items:
                if not isinstance(item, Variable):
                    return f"{name} must be a Variable, got {type(item).__name__}"
    return ""

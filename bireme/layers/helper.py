"""What every layer needs: its arguments, the operators it appends, bias and activation."""

import copy
from collections.abc import Iterator
from typing import Any

import bireme.ops  # noqa: F401  the rows of the operators that layers append
from bireme.errors import InvalidArgument, WrongType
from bireme.ir import Operator, Variable, unique_name
from bireme.param_attr import ParamAttr

from .helper_base import LayerHelperBase


class LayerHelper(LayerHelperBase):
    """One call of a layer: `kwargs` are the layer's arguments (`LayerHelper("fc", **locals())`)."""

    def __init__(self, layer_type: str, **kwargs: Any) -> None:
        super().__init__(kwargs.get("name") or unique_name.generate(layer_type), layer_type)
        self.kwargs = kwargs

    def append_op(self, *args: Any, **kwargs: Any) -> Operator:
        return self.main_program.current_block().append_op(*args, **kwargs)

    # -- arguments -------------------------------------------------------------------------
    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        given = self.kwargs.get(input_param_name, [])
        return list(given) if isinstance(given, list | tuple) else [given]

    def input(self, input_param_name: str = "input") -> Variable:
        given = self.multiple_input(input_param_name)
        if len(given) != 1:
            raise InvalidArgument(
                f"{self.layer_type} takes one {input_param_name}, got {len(given)}"
            )
        return given[0]

    @property
    def param_attr(self) -> Any:
        return ParamAttr._to_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> Any:
        return ParamAttr._to_attr(self.kwargs.get("bias_attr"))

    def multiple_param_attr(self, length: int) -> list[Any]:
        attr = self.param_attr
        attrs = attr if isinstance(attr, list) else [attr]
        if len(attrs) not in (1, length):
            raise InvalidArgument(
                f"{self.layer_type} has {length} inputs but {len(attrs)} parameter attributes",
                hint="give one attribute for all, or one for each",
            )
        return attrs if len(attrs) == length else [copy.copy(attrs[0]) for _ in range(length)]

    def iter_inputs_and_params(
        self, input_param_name: str = "input"
    ) -> Iterator[tuple[Variable, Any]]:
        inputs = self.multiple_input(input_param_name)
        yield from zip(inputs, self.multiple_param_attr(len(inputs)), strict=True)

    def input_dtype(self, input_param_name: str = "input") -> Any:
        dtypes = {v.dtype for v in self.multiple_input(input_param_name)}
        if len(dtypes) != 1:
            raise WrongType(
                f"{self.layer_type} needs inputs of one dtype, got {sorted(map(str, dtypes))}",
                hint="use layers.cast",
            )
        return dtypes.pop()

    # -- what most layers end with ---------------------------------------------------------
    def append_bias_op(
        self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None
    ) -> Variable:
        """`input_var` plus a bias over the dimensions from `dim_start`; unchanged if there is no
        bias.
        """
        attr = self.bias_attr
        if attr is False:
            return input_var
        bias = self.create_parameter(
            attr, input_var.shape[dim_start:dim_end], input_var.dtype, is_bias=True
        )
        out = self.create_variable_for_type_inference(input_var.dtype)
        self.append_op(
            type="elementwise_add",
            inputs={"X": [input_var], "Y": [bias]},
            outputs={"Out": [out]},
            attrs={"axis": dim_start},
        )
        return out

    def append_activation(self, input_var: Variable) -> Variable:
        """The layer's `act` of `input_var`; unchanged if there is none."""
        act = self.kwargs.get("act")
        if act is None:
            return input_var
        attrs = {"type": act} if isinstance(act, str) else dict(act)
        kind = attrs.pop("type", None)
        if not isinstance(kind, str):
            raise InvalidArgument(f"activation {act!r} has no type", hint="act='relu', for example")
        out = self.create_variable_for_type_inference(input_var.dtype)
        self.append_op(type=kind, inputs={"X": [input_var]}, outputs={"Out": [out]}, attrs=attrs)
        return out

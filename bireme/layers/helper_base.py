"""Parameters, temporaries and lasting variables of a layer, in the default programs."""

import copy
from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument, WrongType
from bireme.initializer import Constant, Xavier
from bireme.ir import (
    FLOATS,
    Parameter,
    Program,
    Variable,
    VarType,
    default_main_program,
    default_startup_program,
    numpy_name,
    to_dtype,
    unique_name,
)
from bireme.param_attr import ParamAttr, WeightNormParamAttr
from bireme.sites import calling_site

from .weight_norm import create_weight_normalized

__all__ = ["LayerHelperBase"]


class LayerHelperBase:
    """The variables of a layer of a type; their names begin with `name`."""

    def __init__(self, name: str, layer_type: str) -> None:
        self.name = name
        self.layer_type = layer_type
        self.kwargs: dict[str, Any] = {}  # the layer's arguments, as far as they are known

    @property
    def main_program(self) -> Program:
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        return default_startup_program()

    def create_parameter(
        self,
        attr: Any,
        shape: Sequence[int],
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
        stop_gradient: bool = False,
        type: VarType = VarType.LOD_TENSOR,
    ) -> Any:
        """A parameter of the main program and its initialiser in the startup program; None if
        `attr` is False.

        A parameter of that name that already exists is shared, and must have the same shape.
        """
        if attr is False:
            return None
        attr = copy.copy(attr) if attr is not None else ParamAttr()
        dtype = to_dtype("float32" if dtype is None else dtype)
        if attr.initializer is None:
            attr.initializer = default_initializer or self._initializer(is_bias, dtype)
        if attr.name is None:
            attr.name = unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        if any(size < 1 for size in shape[1:]) or (len(shape) and shape[0] < -1):
            raise InvalidArgument(
                f"{self.layer_type}: parameter '{attr.name}' would have shape {list(shape)}: "
                "a size of the input is unknown",
                hint="declare the sizes that a weight depends on: only the batch may be None",
            )
        if isinstance(attr, WeightNormParamAttr):
            block = self.main_program.current_block()
            return create_weight_normalized(self.declare_parameter, block, attr, shape, dtype)
        return self.declare_parameter(attr, shape, dtype, stop_gradient=stop_gradient, type=type)

    def declare_parameter(
        self, attr: ParamAttr, shape: Sequence[int], dtype: Any, **kwargs: Any
    ) -> Parameter:
        """The parameter that a complete `attr` describes, in both programs."""
        shape = tuple(int(n) for n in shape)
        main = self.main_program.global_block()
        known = main.vars.get(attr.name or "")
        if isinstance(known, Parameter):
            if known.shape != shape:
                raise InvalidArgument(
                    f"parameter {attr.name!r} has shape {list(known.shape)}, cannot be shared "
                    f"by a layer that needs {list(shape)}",
                    hint="give the second layer another ParamAttr name",
                )
            if self.startup_program.global_block().has_var(known.name):
                return known
        startup = self.startup_program.global_block()
        startup.create_parameter(dtype=dtype, shape=shape, **attr._to_kwargs(True), **kwargs)
        if isinstance(known, Parameter):
            return known
        return main.create_parameter(dtype=dtype, shape=shape, **attr._to_kwargs(), **kwargs)

    def create_variable_for_type_inference(
        self, dtype: Any = None, stop_gradient: bool = False
    ) -> Variable:
        """A temporary whose shape the next operator's rule will set."""
        return self.main_program.current_block().create_var(
            name=unique_name.generate(f"{self.name}.tmp"), dtype=dtype, stop_gradient=stop_gradient
        )

    def create_variable(self, *args: Any, **kwargs: Any) -> Variable:
        return self.main_program.current_block().create_var(*args, **kwargs)

    def create_global_variable(
        self, persistable: bool = False, *args: Any, **kwargs: Any
    ) -> Variable:
        kwargs.setdefault("name", unique_name.generate(f"{self.name}.tmp"))
        block = self.main_program.global_block()
        return block.create_var(*args, persistable=persistable, **kwargs)

    def create_or_get_global_variable(
        self, name: str, *args: Any, **kwargs: Any
    ) -> tuple[Variable, bool]:
        """The global variable of that name, and whether it was made now."""
        block = self.main_program.global_block()
        if block.has_var(name):
            return block.var(name), False
        return self.create_global_variable(*args, name=name, **kwargs), True

    def set_variable_initializer(self, var: Variable, initializer: Any) -> None:
        """Let the startup program initialise a variable that is no parameter."""
        block = self.startup_program.global_block()
        twin = block.create_var(
            name=var.name, type=var.type, dtype=var.dtype, shape=var.shape, persistable=True
        )
        initializer(twin, block)

    def _initializer(self, is_bias: bool, dtype: VarType) -> Any:
        if is_bias:
            return Constant(0.0)
        if dtype not in FLOATS:
            raise self._without_default(dtype)
        return Xavier()

    def _without_default(self, dtype: VarType) -> WrongType:
        """The error of a parameter of whole numbers, which an input of that type asks for."""
        kind, where = numpy_name(dtype), f"at {calling_site()}"
        for name, value in self.kwargs.items():
            for var in value if isinstance(value, list | tuple) else [value]:
                if isinstance(var, Variable) and var.dtype == dtype:
                    return WrongType(
                        f"{self.layer_type}: {name} {var.name!r} must be float16, float32 or "
                        f"float64, got {kind}",
                        where=where,
                        hint=f"layers.cast({name}, dtype) converts it",
                    )
        return WrongType(
            f"{self.layer_type}: a parameter of {kind} has no default initial value",
            where=where,
            hint="give ParamAttr(initializer=...)",
        )

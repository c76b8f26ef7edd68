"""Clipping: of gradients before they are used, and of errors on their way back.

There are two doors, as in Fluid. `Optimizer(grad_clip=...)` clips within the step.
`set_gradient_clip` marks the parameters of a program; its operators carry a name scope ending in
"@CLIP", by which the transpiler keeps them on the trainer.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument, WrongType
from bireme.ir import (
    Block,
    Operator,
    OpRole,
    Parameter,
    Program,
    Variable,
    VarType,
    default_main_program,
    name_scope,
    several,
)

__all__ = [
    "ErrorClipByValue",
    "GradientClipBase",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "append_gradient_clip_ops",
    "error_clip_callback",
    "set_gradient_clip",
]

Pair = tuple[Parameter, Variable | None]
Context = dict[str, Any]


class BaseErrorClipAttr:
    """What a variable's `error_clip` may be."""

    def _append_clip_op(self, block: Block, grad_name: str) -> None:
        raise InvalidArgument(
            f"{type(self).__name__} does not say how to clip", hint="use ErrorClipByValue"
        )


class ErrorClipByValue(BaseErrorClipAttr):
    """Keeps the gradient of a variable within [min, max] on its way back; `min` is `-max` if not
    given.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = float(max)
        self.min = -self.max if min is None else float(min)

    def __str__(self) -> str:
        return f"ByValue, min={self.min:f}, max={self.max:f}"

    def _append_clip_op(self, block: Block, grad_name: str) -> None:
        block.append_op(
            type="clip",
            inputs={"X": grad_name},
            outputs={"Out": grad_name},
            attrs={"min": self.min, "max": self.max, "op_role": OpRole.Backward},
        )


def error_clip_callback(block: Block, op: Operator, origin: Mapping[str, str]) -> None:
    """After each gradient operator: clip the gradients of variables that ask for it."""
    for name in op.output_arg_names:
        var = block._find_var_recursive(origin[name]) if name in origin else None
        error_clip = getattr(var, "error_clip", None)
        if error_clip is None:
            continue
        if not isinstance(error_clip, BaseErrorClipAttr):
            raise WrongType(
                f"error_clip of {origin[name]!r} must be an ErrorClipByValue, got {error_clip!r}"
            )
        error_clip._append_clip_op(block, name)


class GradientClipBase:
    """Clips gradients; called with (parameter, gradient) pairs, returns new pairs.

    `need_clip(parameter)` says which are clipped; all of them by default.
    """

    def __init__(self, need_clip: Callable[[Parameter], bool] | None = None) -> None:
        if need_clip is not None and not callable(need_clip):
            raise WrongType("need_clip must be a function of a parameter")
        self._need_clip_func = need_clip

    def _chosen(self, param: Parameter) -> bool:
        return self._need_clip_func is None or self._need_clip_func(param)

    def __call__(self, params_grads: Sequence[Pair]) -> list[Pair]:
        """The pairs that have a gradient, clipped."""
        used = [(param, grad) for param, grad in params_grads if grad is not None]
        with name_scope("gradient_clip"):
            clipped = self._clipped(used)
        correct_role_vars(clipped, _renamed(used, clipped))
        return clipped

    def _clipped(self, params_grads: Sequence[Pair]) -> list[Pair]:
        clipped: list[Pair] = []
        for param, grad in params_grads:
            if not self._chosen(param):
                clipped.append((param, grad))
                continue
            with param.block.program._optimized_guard([param, grad]):
                clipped.append(self._create_operators(param, grad))
        return clipped

    def _process_context(self, context: Context, param: Parameter, grad: Variable) -> None:
        """Gather what clipping one parameter must know of the others."""

    def _create_operators(self, param: Parameter, grad: Any) -> Pair:
        raise InvalidArgument(
            f"{type(self).__name__} does not say how to clip", hint="use GradientClipByValue"
        )


class GradientClipByValue(GradientClipBase):
    """Every element is kept within [min, max]; `min` is `-max` if not given."""

    def __init__(self, max: float, min: float | None = None, need_clip: Any = None) -> None:
        super().__init__(need_clip)
        self.max = float(max)
        self.min = -self.max if min is None else float(min)

    def __str__(self) -> str:
        return f"Gradient Clip By Value, min = {self.min:f}, max={self.max:f}"

    def _create_operators(self, param: Parameter, grad: Any) -> Pair:
        return param, layers.clip(x=grad, min=self.min, max=self.max)


class GradientClipByNorm(GradientClipBase):
    """Each gradient longer than `clip_norm` is scaled down to it."""

    def __init__(self, clip_norm: float, need_clip: Any = None) -> None:
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)

    def __str__(self) -> str:
        return f"Gradient Clip By Norm, clip_norm={self.clip_norm:f}"

    def _create_operators(self, param: Parameter, grad: Any) -> Pair:
        return param, layers.clip_by_norm(x=grad, max_norm=self.clip_norm)


class GradientClipByGlobalNorm(GradientClipBase):
    """All gradients of a group are scaled alike, so that together they are no longer than
    `clip_norm`.

    Pascanu et al., On the difficulty of training recurrent neural networks, 2013.
    """

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", need_clip: Any = None
    ) -> None:
        super().__init__(need_clip)
        self.clip_norm = float(clip_norm)
        self.group_name = group_name
        self.context: Context = {}

    def __str__(self) -> str:
        return f"Gradient Clip By GlobalNorm, global_norm={self.clip_norm:f}"

    def _clipped(self, params_grads: Sequence[Pair]) -> list[Pair]:
        squares = []
        for param, grad in params_grads:
            if self._chosen(param):
                with param.block.program._optimized_guard([param, grad]):
                    squares.append(_square_sum(grad))
        if not squares:
            return list(params_grads)
        last = params_grads[-1]
        with last[0].block.program._optimized_guard(last):
            norm = layers.sqrt(x=layers.sums(squares))
            limit = layers.fill_constant(shape=[1], dtype=norm.dtype, value=self.clip_norm)
            self.context = {self._scale_name: _ratio(limit, norm)}
        return super()._clipped(params_grads)

    @property
    def _scale_name(self) -> str:
        return self.group_name + "_scale"

    def _process_context(self, context: Context, param: Parameter, grad: Variable) -> None:
        group = self.group_name
        if group not in context:
            limit = layers.fill_constant(shape=[1], dtype=grad.dtype, value=self.clip_norm)
            context.update(
                {group: [], group + "_clip_value": self.clip_norm, group + "_clip": limit}
            )
        elif context[group + "_clip_value"] != self.clip_norm:
            raise InvalidArgument(
                f"group {group!r} is clipped to {context[group + '_clip_value']} and to "
                f"{self.clip_norm}",
                hint="give the second GradientClipByGlobalNorm another group_name",
            )
        context[group].append(_square_sum(grad))
        self.context = context

    def _create_operators(self, param: Parameter, grad: Any) -> Pair:
        if self._scale_name not in self.context:
            norm = layers.sqrt(x=layers.sums(input=self.context[self.group_name]))
            limit = self.context[self.group_name + "_clip"]
            self.context[self._scale_name] = _ratio(limit, norm)
        return param, layers.elementwise_mul(x=grad, y=self.context[self._scale_name])


def _square_sum(grad: Any) -> Variable:
    if grad.type == VarType.SELECTED_ROWS:
        grad = layers.get_tensor_from_selected_rows(layers.merge_selected_rows(grad))
    total: Variable = layers.reduce_sum(input=layers.square(grad))
    return total


def _ratio(limit: Variable, norm: Variable) -> Variable:
    """What to multiply with: 1 while the norm is within the limit."""
    ratio: Variable = layers.elementwise_div(x=limit, y=layers.elementwise_max(x=limit, y=norm))
    return ratio


def set_gradient_clip(
    clip: GradientClipBase,
    param_list: Iterable[Parameter | str] | None = None,
    program: Program | None = None,
) -> None:
    """Let the optimizer clip the gradients of these parameters (default: all of the program)."""
    if not isinstance(clip, GradientClipBase):
        raise WrongType(f"clip must be one of GradientClipBy..., got {clip!r}")
    program = program or default_main_program()
    block = program.global_block()
    if any("optimizer" in op.attrs.get("op_namescope", "") for op in block.ops):
        warnings.warn(
            "set_gradient_clip after minimize changes nothing: call it before", stacklevel=2
        )
    chosen = block.all_parameters() if param_list is None else several(param_list)
    for item in chosen:
        param = block.var(item) if isinstance(item, str) else item
        if not isinstance(param, Parameter):
            raise InvalidArgument(f"{item!r} in param_list is not a parameter")
        param.gradient_clip_attr = copy.deepcopy(clip)


def append_gradient_clip_ops(params_grads: Sequence[Pair]) -> list[Pair]:
    """Clip as the marks of `set_gradient_clip` say; nothing is clipped unless every parameter is
    marked.
    """
    used = [(p, g) for p, g in params_grads if g is not None]
    context: Context = {}
    for param, grad in used:
        clip = getattr(param, "gradient_clip_attr", None)
        if clip is None:
            return list(params_grads)
        with param.block.program._optimized_guard([param, grad]), name_scope("gradient_clip_@CLIP"):
            clip._process_context(context, param, grad)
    clipped: list[Pair] = []
    for param, grad in used:
        # the scope's name is Fluid's, misspelt: programs carry it
        with param.block.program._optimized_guard([param, grad]), name_scope("graident_clip_@CLIP"):
            clipped.append(param.gradient_clip_attr._create_operators(param, grad))
    correct_role_vars(clipped, _renamed(used, clipped))
    return clipped


def _renamed(before: Sequence[Pair], after: Sequence[Pair]) -> dict[str, str]:
    """Parameters whose gradient is another variable now, with its name."""
    return {
        p.name: new.name
        for (p, old), (_, new) in zip(before, after, strict=True)
        if new is not None and new is not old
    }


def correct_role_vars(pairs: Sequence[Pair], gradients: Mapping[str, str]) -> None:
    """Operators that clip a parameter's gradient name the clipped one in `op_role_var`."""
    if not pairs or not gradients:
        return
    block = pairs[0][0].block.program.global_block()
    for index, op in enumerate(block.ops):
        if "gradient_clip" not in op.attrs.get("op_namescope", "") or not op.role_var:
            continue
        name = op.role_var[0]
        if name in gradients:
            block.put(index, op.with_attrs(op_role_var=(name, gradients[name])))


ClipByValue = GradientClipByValue
ClipByNorm = GradientClipByNorm
ClipByGlobalNorm = GradientClipByGlobalNorm

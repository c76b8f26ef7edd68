"""Momentum with deep gradient compression: large parameters exchange only their largest gradients.

Operators compress after the backward pass; what a trainer does not send it keeps and adds up.
Small parameters, and those that are not float32, are exchanged whole.
"""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from bireme.clip import GradientClipByNorm, append_gradient_clip_ops
from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import (
    Block,
    Operator,
    OpRole,
    Parameter,
    Variable,
    VarType,
    default_main_program,
)
from bireme.layers.helper import LayerHelper
from bireme.regularizer import L1Decay, L2Decay, append_regularization_ops

from .base import Pair, State
from .rules import MomentumOptimizer

_SMALL = 16384  # elements; below, compression costs more than it saves


class DGCMomentumOptimizer(MomentumOptimizer):
    """Momentum whose exchanges shrink to `1 - sparsity` of the gradient (arXiv 1712.01887).

    Until `rampup_begin_step` gradients travel whole; then `sparsity` is walked through in
    `rampup_step` steps. `grad_clip` must be a `GradientClipByNorm`, for the gradient of all
    `num_trainers` trainers together.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        rampup_begin_step: int,
        rampup_step: int = 1,
        sparsity: Sequence[float] = (0.999,),
        parameter_list: Iterable[Any] | None = None,
        use_nesterov: bool = False,
        num_trainers: int | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            learning_rate, momentum, parameter_list, use_nesterov, regularization, grad_clip, name
        )
        if rampup_begin_step < 0 or rampup_step < 1:
            raise InvalidArgument("rampup_begin_step must be 0 or more, rampup_step 1 or more")
        if not sparsity or not all(0.0 <= share < 1.0 for share in sparsity):
            raise InvalidArgument(f"sparsity must be shares from 0 to below 1, got {sparsity!r}")
        self._rampup_begin_step, self._rampup_step = rampup_begin_step, rampup_step
        self._sparsity = [float(share) for share in sparsity]
        self._dgc_clip_norm = _norm_per_trainer(grad_clip, num_trainers)
        self._step: Variable | None = None
        self._nranks: Variable | None = None

    # -- after the backward pass -----------------------------------------------------------
    def _append_dgc_ops(self, pairs: Sequence[Pair]) -> None:
        chosen = [(p, g) for p, g in pairs if g is not None and self._is_use_dgc(p, g)]
        if not chosen:
            return
        self.helper = LayerHelper(self.__class__.__name__)
        self._step = self._counter()
        self._nranks = self._scalar("__g_nranks__", 1.0)
        for param, grad in chosen:
            self._compress(param, grad, grad.block)

    @staticmethod
    def _is_use_dgc(param: Parameter, grad: Variable) -> bool:
        dense = grad.type == VarType.LOD_TENSOR
        return dense and param.dtype == VarType.FP32 and prod(param.shape) >= _SMALL

    def _compress(self, param: Parameter, grad: Variable, block: Block) -> None:
        """Replace `grad` by what is to be sent; the compression becomes its last writer."""
        _forget_pair(block, grad.name)
        u = self._add_accumulator("_dgc_u_", param)
        v = self._add_accumulator("_dgc_v_", param)
        encoded = block.create_var(name=param.name + "__dgc_encoded__", dtype=param.dtype)
        count = block.create_var(name=param.name + "__dgc_k__", dtype=VarType.FP32)
        kind, coefficient = self._decay(param)
        self._clip(grad, block)
        block.append_op(
            type="dgc",
            inputs={
                "U": u,
                "V": v,
                "Grad": grad,
                "Param": param,
                "current_step": self._step,
                "nranks": self._nranks,
            },
            outputs={"U_out": u, "V_out": v, "EncodeGrad": encoded, "k": count, "Grad_out": grad},
            attrs={
                "m": self._momentum,
                "sparsity": self._sparsity,
                "use_nesterov": self._use_nesterov,
                "rampup_begin_step": float(self._rampup_begin_step),
                "rampup_step": float(self._rampup_step),
                "regular_coeff": coefficient,
                "regular_type": kind,
                "op_role_var": [param.name, grad.name],
                "op_role": OpRole.Backward,
            },
        )

    def _clip(self, grad: Variable, block: Block) -> None:
        if self._dgc_clip_norm is None:
            return
        block.append_op(
            type="dgc_clip_by_norm",
            inputs={"X": grad, "current_step": self._step},
            outputs={"Out": grad},
            attrs={
                "max_norm": self._dgc_clip_norm,
                "rampup_begin_step": float(self._rampup_begin_step),
                "op_role": OpRole.Backward,
            },
        )

    def _decay(self, param: Parameter) -> tuple[int, float]:
        """Decay as the compression applies it: 1 for L1, 2 for L2, 0 for none."""
        rule = param.regularizer if param.regularizer is not None else self.regularization
        for kind, known in ((1, L1Decay), (2, L2Decay)):
            if isinstance(rule, known):
                return kind, float(rule._regularization_coeff)
        if rule is not None:
            raise InvalidArgument(f"DGCMomentumOptimizer cannot apply the regularizer {rule}")
        return 0, 0.0

    # -- the step --------------------------------------------------------------------------
    def apply_gradients(self, params_grads: Sequence[Pair]) -> list[Operator]:
        """As for any optimizer; compressed gradients are clipped and decayed already."""
        done = [pair for pair in params_grads if self._compressed(pair[0])]
        rest = [pair for pair in params_grads if not self._compressed(pair[0])]
        rest.sort(key=lambda pair: pair[0].name)
        rest = self._grad_clip(rest) if self._grad_clip else append_gradient_clip_ops(rest)
        rest = append_regularization_ops(rest, self.regularization)
        return self._create_optimization_pass(sorted([*done, *rest], key=lambda pair: pair[0].name))

    def _compressed(self, param: Parameter) -> bool:
        return param.name in self._accumulators.get("_dgc_u_", {})

    def _append_optimize_op(self, block: Block, param_and_grad: Sequence[Any]) -> Operator:
        param, grad = param_and_grad
        if not self._compressed(param):
            return super()._append_optimize_op(block, param_and_grad)
        velocity = self._get_accumulator(_VELOCITY.name, param)
        return block.append_op(
            type="dgc_momentum",
            inputs={
                "Param": param,
                "Grad": grad,
                "Velocity": velocity,
                "LearningRate": self._create_param_lr(param_and_grad),
                "current_step": self._step,
                "nranks": self._nranks,
            },
            outputs={"ParamOut": param, "VelocityOut": velocity, "Grad_out": grad},
            attrs={
                **self.attrs(param),
                "rampup_begin_step": float(self._rampup_begin_step),
            },
        )

    # -- counters --------------------------------------------------------------------------
    def _counter(self) -> Variable:
        """The number of the step, from 0."""
        counter = self._scalar("__g_dgc_counter__", -1.0)
        default_main_program().global_block()._prepend_op(
            type="increment",
            inputs={"X": [counter]},
            outputs={"Out": [counter]},
            attrs={"step": 1.0},
        )
        return counter

    def _scalar(self, name: str, value: float) -> Variable:
        assert self.helper is not None
        var, new = self.helper.create_or_get_global_variable(
            name=name, dtype=VarType.FP32, shape=[1], persistable=True, belong_to_optimizer=True
        )
        if new:
            self.helper.set_variable_initializer(var, Constant(value, force_cpu=True))
        var.stop_gradient = True
        return var


_VELOCITY: State = MomentumOptimizer.state[0]


def _forget_pair(block: Block, grad: str) -> None:
    """The operator that computes `grad` no longer stands for it: the compressed one does."""
    for index in range(len(block.ops) - 1, -1, -1):
        op = block.ops[index]
        if grad in op.role_var:
            pairs = list(zip(op.role_var[::2], op.role_var[1::2], strict=True))
            kept = [name for pair in pairs if pair[1] != grad for name in pair]
            block.put(index, op.with_attrs(op_role_var=tuple(kept)))
            return


def _norm_per_trainer(clip: Any, trainers: int | None) -> float | None:
    """The norm that each trainer clips to, so that the sum keeps to the norm asked for.

    Raises:
        InvalidArgument: another clip, or no number of trainers.
    """
    if clip is None:
        return None
    if not isinstance(clip, GradientClipByNorm):
        raise InvalidArgument(
            f"DGCMomentumOptimizer clips by norm only, got {clip}",
            hint="grad_clip=fluid.clip.GradientClipByNorm(...)",
        )
    if not isinstance(trainers, int) or trainers < 1:
        raise InvalidArgument("grad_clip with DGCMomentumOptimizer needs num_trainers")
    return float(clip.clip_norm / trainers**0.5)

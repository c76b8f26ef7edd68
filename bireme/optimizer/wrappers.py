"""Optimizers around another optimizer: slow weights, gradients over several steps, activations
computed twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import bireme.layers as layers
from bireme.errors import InvalidArgument, UnsupportedError, as_builtin
from bireme.ir import (
    Block,
    Operator,
    OpRole,
    Parameter,
    Program,
    Variable,
    default_startup_program,
    program_guard,
    several,
)
from bireme.ir.names import accumulated_name, grad_name

from .base import Optimizer, Pair


class LookaheadOptimizer:
    """Every `k` steps the slow weights go a part `alpha` of the way to the fast ones, which start
    again from there.

    Zhang et al., Lookahead optimizer: k steps forward, 1 step back, 2019.
    """

    def __init__(self, inner_optimizer: Optimizer, alpha: float = 0.5, k: int = 5) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise InvalidArgument("LookaheadOptimizer needs an optimizer to look ahead with")
        if not 0.0 <= alpha <= 1.0:
            raise InvalidArgument(f"alpha must be from 0 to 1, got {alpha}")
        if not isinstance(k, int) or k < 1:
            raise InvalidArgument(f"k must be a whole number of steps above 0, got {k!r}")
        self.inner_optimizer = inner_optimizer
        self.alpha, self.k = alpha, k
        self.type = "lookahead"

    def minimize(
        self, loss: Variable, startup_program: Program | None = None
    ) -> tuple[list[Operator], list[Pair]]:
        """As `Optimizer.minimize`; the slow weights start as copies of the fast ones."""
        made = self.inner_optimizer.minimize(loss, startup_program=startup_program)
        startup = startup_program or default_startup_program()
        block = loss.block
        slow = {p.name: _slow(block, p) for p in block.all_parameters()}
        for name in slow:
            home = startup.global_block()
            fast = home.var(name)
            home.append_op(type="assign", inputs={"X": fast}, outputs={"Out": _slow(home, fast)})
        with program_guard(block.program, startup):
            self._append_exchange(block, slow)
        return made

    def _append_exchange(self, block: Block, slow: Mapping[str, Variable]) -> None:
        k = _state("lookahead_k", self.k, "int32")
        alpha = _state("lookahead_alpha", float(self.alpha), "float32")
        step = _state("lookahead_step", 0, "int32")
        layers.increment(x=step, value=1.0, in_place=True)
        zero = layers.fill_constant(shape=[1], dtype="float32", value=0.0)
        one = layers.fill_constant(shape=[1], dtype="float32", value=1.0)
        phase: Any = layers.elementwise_mod(step, k)
        with layers.Switch() as switch:
            with switch.case(phase == zero):
                for name, slow_var in slow.items():
                    self._meet(block.var(name), slow_var, alpha, one)
            with switch.default():
                pass

    @staticmethod
    def _meet(fast: Variable, slow: Variable, alpha: Variable, one: Variable) -> None:
        ahead = layers.elementwise_mul(fast, alpha)
        behind = layers.elementwise_mul(slow, layers.elementwise_sub(one, alpha))
        between = layers.elementwise_add(ahead, behind)
        layers.assign(input=between, output=slow)
        layers.assign(input=between, output=fast)


def _slow(block: Block, fast: Variable) -> Variable:
    return block.create_var(
        name=fast.name + "@SLOW", shape=fast.shape, dtype=fast.dtype, persistable=True
    )


def _state(name: str, value: float, dtype: str) -> Variable:
    made: Variable = layers.create_global_var(
        name=name, shape=[1], value=value, dtype=dtype, persistable=True
    )
    return made


class RecomputeOptimizer(Optimizer):
    """Keeps only the checkpoints of the forward pass and computes the rest again in the backward
    pass.

    Call `_set_checkpoints(variables)` before `minimize`. Chen et al., Training deep nets with
    sublinear memory cost, 2016.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__(0.0)
        self._optimizer = optimizer
        self._checkpoints: list[Any] | None = None
        self._learning_rate = optimizer._learning_rate
        self._learning_rate_map = optimizer._learning_rate_map

    def load(self, stat_dict: Mapping[str, Any]) -> None:
        """Refused, as in 1.8.5: state is loaded into the program.

        Raises:
            NotImplementedError: always.
        """
        raise as_builtin(NotImplementedError, UnsupportedError)(
            "RecomputeOptimizer.load", hint="use fluid.load(program, path) after minimize"
        )

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Say which variables of the forward pass are kept."""
        self._checkpoints = several(checkpoints)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Pair]:
        self._dtype = self._optimizer._dtype = loss.dtype
        parameters = parameter_list or self._optimizer._parameter_list
        return super().backward(loss, startup_program, parameters, no_grad_set, callbacks)

    def _backward_options(self) -> Mapping[str, Any]:
        if not self._checkpoints:
            raise InvalidArgument(
                "RecomputeOptimizer has no checkpoints",
                hint="call optimizer._set_checkpoints([variables to keep]) before minimize",
            )
        return {"checkpoints": self._checkpoints}

    def apply_gradients(self, params_grads: Sequence[Pair]) -> list[Operator]:
        return self._optimizer.apply_gradients(params_grads)


class GradientMergeOptimizer:
    """Adds the gradients of `k_steps` steps up before the inner optimizer uses them once, or their
    mean with `avg`.
    """

    def __init__(self, inner_optimizer: Optimizer, k_steps: int = 1, avg: bool = True) -> None:
        if not isinstance(inner_optimizer, Optimizer):
            raise InvalidArgument("GradientMergeOptimizer needs an optimizer to apply the sums")
        if not isinstance(k_steps, int) or k_steps < 1:
            raise InvalidArgument(f"k_steps must be a whole number above 0, got {k_steps!r}")
        self.inner_optimizer = inner_optimizer
        self.k_steps, self.avg = k_steps, avg
        self.type = "gradient_merge"

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[Pair]]:
        """As `Optimizer.minimize`; the update operators stand in a branch taken every `k_steps`
        steps.
        """
        inner = self.inner_optimizer
        pairs = inner.backward(loss, startup_program, parameter_list, no_grad_set)
        program = loss.block.program
        with program_guard(program, startup_program):
            if self.k_steps == 1:
                return inner.apply_gradients(pairs), pairs
            with program._role(OpRole.Optimize):
                merged = [(p, _merged(p, g)) for p, g in pairs if g is not None]
                ops = self._apply_in_turn(merged)
        return ops, list(merged)

    def _apply_in_turn(self, merged: Sequence[tuple[Parameter, Variable]]) -> list[Operator]:
        k = _state("gradient_merge_k", self.k_steps, "int32")
        step = _state("gradient_merge_step", 0, "int32")
        layers.increment(x=step, value=1.0, in_place=True)
        phase: Any = layers.elementwise_mod(step, k)
        due = phase == layers.fill_constant(shape=[1], dtype="int32", value=0)
        ops: list[Operator] = []
        with layers.Switch() as switch, switch.case(due):
            grads = [(p, self._mean(g)) for p, g in merged]
            ops += self.inner_optimizer.apply_gradients(grads)
            for _, total in merged:
                layers.assign(layers.zeros_like(total), total)
        return ops

    def _mean(self, total: Variable) -> Variable:
        """What the inner optimizer sees, as a variable of the branch."""
        made: Variable = layers.scale(total, scale=1.0 / self.k_steps if self.avg else 1.0)
        return made


def _merged(param: Parameter, grad: Variable) -> Variable:
    """The sum of a gradient over steps, grown by this step's."""
    total = _sum_over_steps(param)
    block = grad.block
    block.append_op(type="sum", inputs={"X": [total, grad]}, outputs={"Out": [total]})
    return total


def _sum_over_steps(param: Parameter) -> Variable:
    made: Variable = layers.create_global_var(
        name=accumulated_name(grad_name(param.name)),
        shape=param.shape,
        value=0.0,
        dtype=param.dtype,
        persistable=True,
    )
    return made

"""Averages of the parameters over the course of training, to be used in their place when the model
is tested.

`apply(executor)` puts the averages in, `restore(executor)` the parameters back; both are programs
of their own over the same scope.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import bireme.layers as layers
from bireme.ir import (
    Block,
    Parameter,
    Program,
    Variable,
    VarType,
    default_main_program,
    name_scope,
    program_guard,
    unique_name,
)
from bireme.layers.helper import LayerHelper

from .base import Optimizer


class Exchange:
    """Parameters of the default program, each with a place to keep it while its average stands
    in.
    """

    def __init__(self, suffix: str, prefix: str = "") -> None:
        self.pairs: list[tuple[Parameter, Variable]] = [
            (param, _backup(param, f"{prefix}{param.name}.{suffix}"))
            for param in default_main_program().global_block().all_parameters()
            if param.do_model_average is not False
        ]
        self.apply_program = Program()
        self.restore_program = Program()
        with program_guard(self.restore_program):
            block = self.restore_program.global_block()
            for param, backup in self.pairs:
                kept, target = block._clone_variable(backup), block._clone_variable(param)
                layers.assign(input=kept, output=target)

    @contextmanager
    def applied(self, executor: Any, need_restore: bool) -> Iterator[None]:
        """The averages stand in for the parameters inside the block."""
        executor.run(self.apply_program)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Any) -> None:
        executor.run(self.restore_program)


def _backup(param: Parameter, name: str) -> Variable:
    return param.block.create_var(
        name=unique_name.generate(name), dtype=param.dtype, persistable=False, stop_gradient=True
    )


class ModelAverage(Optimizer):
    """The mean of each parameter over a window of recent steps.

    The window is `average_window_rate` of all steps so far, but at least `min_average_window` and
    at most `max_average_window` steps. Build it after `minimize`. Polyak and Juditsky, 1992.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(0.0, regularization=regularization, name=name)
        self.average_window = average_window_rate
        self.min_average_window, self.max_average_window = min_average_window, max_average_window
        self.helper = LayerHelper(self.__class__.__name__)
        self._exchange = Exchange("tmp")
        self.params_grads = self._exchange.pairs
        self.apply_program = self._exchange.apply_program
        self.restore_program = self._exchange.restore_program
        for param, backup in self.params_grads:
            with self._update_scope((param, backup), "move_average"):
                self._append_average_accumulate_op(param)
        with program_guard(self.apply_program):
            for param, backup in self.params_grads:
                self._add_average_apply_op(self.apply_program.global_block(), param, backup)

    def apply(self, executor: Any, need_restore: bool = True) -> Any:
        """`with average.apply(executor):` parameters are their averages inside the block."""
        return self._exchange.applied(executor, need_restore)

    def restore(self, executor: Any) -> None:
        """Put the parameters back after `apply(executor, need_restore=False)`."""
        self._exchange.restore(executor)

    def _append_average_accumulate_op(self, param: Parameter) -> None:
        state = {n: self._add_accumulator(n, param) for n in ("sum_1", "sum_2", "sum_3")}
        for name in ("num_accumulates", "old_num_accumulates", "num_updates"):
            state[name] = self._add_accumulator(name, param, dtype="int64", shape=[1])
        param.block.program.global_block().append_op(
            type="average_accumulates",
            inputs={"param": param, **{f"in_{n}": v for n, v in state.items()}},
            outputs={f"out_{n}": v for n, v in state.items()},
            attrs={
                "average_window": self.average_window,
                "min_average_window": self.min_average_window,
                "max_average_window": self.max_average_window,
            },
        )

    def _add_average_apply_op(self, block: Block, param: Parameter, backup: Variable) -> None:
        target, kept = block._clone_variable(param), block._clone_variable(backup)

        def state(name: str) -> Variable:
            return block._clone_variable(self._get_accumulator(name, param))

        sums = [state(n) for n in ("sum_1", "sum_2", "sum_3")]
        counts = [state(n) for n in ("num_accumulates", "old_num_accumulates")]
        layers.assign(input=target, output=kept)
        count, total = layers.sum(x=counts), layers.sum(x=sums)
        dtype = self._dtype or VarType.FP32
        count, total = layers.cast(x=count, dtype=dtype), layers.cast(x=total, dtype=dtype)
        block.append_op(
            type="elementwise_div",
            inputs={"X": [total], "Y": [count]},
            outputs={"Out": [target]},
            attrs={"axis": -1},
        )


class ExponentialMovingAverage:
    """a <- d a + (1 - d) p for each parameter p, divided by 1 - d^t when it is applied.

    With `thres_steps`, a variable that counts steps t, the decay is min(d, (t + 1) / (t + 10)).
    Build it and call `update()` after `minimize`.
    """

    _counter = "@EMA_STEP_COUNTER@"

    def __init__(
        self, decay: float = 0.999, thres_steps: Any = None, name: str | None = None
    ) -> None:
        self._decay = decay
        self._name = name or ""
        self._decay_var = self._scheduled_decay(thres_steps)
        self._exchange = Exchange("ema_tmp", self._name)
        self._ema_vars: dict[str, Variable] = {}
        for param, backup in self._exchange.pairs:
            with self._scope(param, backup):
                self._ema_vars[param.name] = layers.create_global_var(
                    name=unique_name.generate(f"{self._name}{param.name}_ema"),
                    shape=param.shape,
                    value=0.0,
                    dtype=param.dtype,
                    persistable=True,
                )
        self.apply_program = self._exchange.apply_program
        self.restore_program = self._exchange.restore_program
        with program_guard(self.apply_program):
            self._build_apply(self.apply_program.global_block())

    def update(self) -> None:
        """Append the operators that follow the parameters; they run with every step."""
        layers.autoincreased_step_counter(counter_name=self._counter)
        decay: Any = self._decay_var
        for param, backup in self._exchange.pairs:
            with self._scope(param, backup):
                average: Any = self._ema_vars[param.name]
                now = average * decay + _any(param) * (1 - decay)
                layers.assign(input=now, output=average)

    def apply(self, executor: Any, need_restore: bool = True) -> Any:
        """`with ema.apply(executor):` parameters are their averages inside the block."""
        return self._exchange.applied(executor, need_restore)

    def restore(self, executor: Any) -> None:
        """Put the parameters back after `apply(executor, need_restore=False)`."""
        self._exchange.restore(executor)

    @staticmethod
    @contextmanager
    def _scope(param: Parameter, backup: Variable) -> Iterator[None]:
        with param.block.program._optimized_guard([param, backup]), name_scope("moving_average"):
            yield

    def _scheduled_decay(self, thres_steps: Any) -> Variable:
        with default_main_program()._lr_schedule_guard():
            decay = layers.create_global_var(
                shape=[1],
                value=self._decay,
                dtype="float32",
                persistable=True,
                name="scheduled_ema_decay_rate",
            )
            if thres_steps is not None:
                whole = thres_steps.dtype in (VarType.INT32, VarType.INT64)
                steps: Any = layers.cast(thres_steps, "float32") if whole else thres_steps
                early: Any = (steps + 1.0) / (steps + 10.0)
                with layers.Switch() as switch:
                    with switch.case(early < self._decay):
                        layers.assign(early, decay)
                    with switch.default():
                        layers.assign(np.array([self._decay], dtype="float32"), decay)
        return decay

    def _build_apply(self, block: Block) -> None:
        counter = layers.create_global_var(
            name=self._counter, shape=[1], value=0, dtype="int64", persistable=True
        )
        step: Any = layers.cast(counter, "float32")
        decay = block._clone_variable(self._decay_var)
        left = layers.elementwise_pow(decay, step)
        for param, backup in self._exchange.pairs:
            target, kept = block._clone_variable(param), block._clone_variable(backup)
            average: Any = block._clone_variable(self._ema_vars[param.name])
            layers.assign(input=target, output=kept)
            with layers.Switch() as switch, switch.case(step > 0):
                layers.assign(input=average / (1.0 - _any(left)), output=target)


def _any(value: Any) -> Any:
    """A variable with its arithmetic, which is added to the class at run time."""
    return value

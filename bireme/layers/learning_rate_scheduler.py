"""Learning rates that change from step to step, as operators of the program.

All count steps in one variable, which the first operator of the program raises; a schedule sees 0
in the first step (Noam 1). Servers compute the same operators.
"""

import math
from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import Variable, VarType, default_main_program
from bireme.ir.names import COUNTER

from .branches import Switch
from .elementwise import elementwise_min
from .helper import LayerHelper
from .ops import ceil, cos, exp, floor
from .tensor import assign, cast, create_global_var, fill_constant

__all__ = [
    "autoincreased_step_counter",
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]


def autoincreased_step_counter(
    counter_name: str | None = None, begin: int = 1, step: int = 1
) -> Variable:
    """An int64 variable that is `begin` in the first run of the program and grows by `step`."""
    helper = LayerHelper("global_step_counter")
    counter, new = helper.create_or_get_global_variable(
        name=counter_name or "@STEP_COUNTER@",
        dtype=VarType.INT64,
        shape=[1],
        persistable=True,
        belong_to_optimizer=True,
    )
    if new:
        helper.set_variable_initializer(counter, Constant(value=begin - 1, force_cpu=True))
        helper.main_program.global_block()._prepend_op(
            type="increment",
            inputs={"X": [counter]},
            outputs={"Out": [counter]},
            attrs={"step": float(step)},
        )
        counter.stop_gradient = True
    return counter


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> Variable:
    """rate * d_model^-0.5 * min(t^-0.5, t * warmup_steps^-1.5), with t from 1 (arXiv
    1706.03762).
    """
    with default_main_program()._lr_schedule_guard():
        step = _decay_step_counter(1)
        falling = step**-0.5
        rising = (warmup_steps**-1.5) * step
        rate: Variable = learning_rate * (d_model**-0.5) * _any(elementwise_min(falling, rising))
    return rate


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """rate * decay_rate^(t / decay_steps), in whole periods where `staircase` says so."""
    with default_main_program()._lr_schedule_guard():
        periods = _periods(decay_steps, staircase)
        rate: Variable = learning_rate * (decay_rate**periods)
    return rate


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """rate * e^(-decay_rate * t / decay_steps)."""
    with default_main_program()._lr_schedule_guard():
        periods = _periods(decay_steps, staircase)
        rate: Variable = learning_rate * _any(exp(-1 * decay_rate * periods))
    return rate


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> Variable:
    """rate / (1 + decay_rate * t / decay_steps)."""
    with default_main_program()._lr_schedule_guard():
        periods = _periods(decay_steps, staircase)
        rate: Variable = learning_rate / (1 + decay_rate * periods)
    return rate


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """From `learning_rate` to `end_learning_rate` as (1 - t / decay_steps)^power.

    After `decay_steps` the end rate stays, or with `cycle` a longer period begins.
    """
    with default_main_program()._lr_schedule_guard():
        step, span = _decay_step_counter(), _any(decay_steps)
        if cycle:
            span = span * _cycles(step, decay_steps)
        else:
            step = _any(elementwise_min(step, _constant(decay_steps)))
        left = (1 - step / span) ** power
        rate: Variable = (learning_rate - end_learning_rate) * left + end_learning_rate
    return rate


def _cycles(step: Any, decay_steps: int) -> Any:
    """How many periods have begun: at least one."""
    cycles = ceil(step / decay_steps)
    zero, one = _constant(0.0), _constant(1.0)
    with Switch() as switch, switch.case(step == zero):
        assign(input=one, output=cycles)
    return cycles


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Variable:
    """`values[i]` while the step is below `boundaries[i]`, then the last value.

    Raises:
        InvalidArgument: there is not one value more than boundaries, or there is no boundary.
    """
    if len(values) != len(boundaries) + 1 or not boundaries:
        raise InvalidArgument(
            f"piecewise_decay needs one value more than boundaries, got {len(values)} values "
            f"and {len(boundaries)} boundaries",
            hint="for one value for ever give the optimizer a number",
        )
    with default_main_program()._lr_schedule_guard():
        step = _decay_step_counter()
        rate: Variable = create_global_var(
            shape=[1], value=0.0, dtype="float32", persistable=True, name="learning_rate"
        )
        with Switch() as switch:
            for boundary, value in zip(boundaries, values, strict=False):
                limit = _constant(boundary, force_cpu=True)
                chosen = _constant(value)
                with switch.case(step < limit):
                    assign(chosen, rate)
            last = _constant(values[-1])
            with switch.default():
                assign(last, rate)
    return rate


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Variable:
    """rate * (cos(pi * epoch / epochs) + 1) / 2 (arXiv 1608.03983)."""
    with default_main_program()._lr_schedule_guard():
        epoch = _any(floor(_decay_step_counter() / step_each_epoch))
        rate: Variable = learning_rate * 0.5 * (_any(cos(epoch * math.pi / epochs)) + 1)
    return rate


def linear_lr_warmup(
    learning_rate: Any, warmup_steps: int, start_lr: float, end_lr: float
) -> Variable:
    """From `start_lr` to `end_lr` in `warmup_steps` steps, then `learning_rate`, a number or a
    schedule.
    """
    with default_main_program()._lr_schedule_guard():
        dtype = learning_rate.dtype if isinstance(learning_rate, Variable) else VarType.FP32
        rise = float(end_lr) - float(start_lr)
        rate: Variable = create_global_var(
            shape=[1], value=0.0, dtype=dtype, persistable=True, name="learning_rate_warmup"
        )
        step = _decay_step_counter()
        with Switch() as switch:
            with switch.case(step < warmup_steps):
                assign(start_lr + rise * (step / float(warmup_steps)), rate)
            with switch.default():
                if not isinstance(learning_rate, Variable):
                    learning_rate = fill_constant([1], dtype, float(learning_rate))
                assign(learning_rate, rate)
    return rate


def _decay_step_counter(begin: int = 0) -> Any:
    """The number of this step as float32."""
    counter = autoincreased_step_counter(counter_name=COUNTER, begin=begin, step=1)
    return cast(counter, "float32")


def _periods(decay_steps: int, staircase: bool) -> Any:
    periods = _decay_step_counter() / decay_steps
    return floor(periods) if staircase else periods


def _constant(value: float, force_cpu: bool = False) -> Variable:
    return fill_constant([1], "float32", float(value), force_cpu=force_cpu)


def _any(value: Any) -> Any:
    """A variable with its arithmetic, which is added to the class at run time."""
    return value

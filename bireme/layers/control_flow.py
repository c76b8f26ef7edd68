"""Control flow as layers: branches, loops, recurrences, counters."""

from bireme.ir import Variable

from . import arrays
from .arrays import *
from .branches import ConditionalBlock, IfElse, Switch, case, cond, switch_case
from .helper import LayerHelper
from .loops import While, while_loop
from .recurrence import DynamicRNN, StaticRNN

__all__ = [
    *arrays.__all__,
    "ConditionalBlock",
    "DynamicRNN",
    "IfElse",
    "StaticRNN",
    "Switch",
    "While",
    "case",
    "cond",
    "increment",
    "switch_case",
    "while_loop",
]


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """`x + value`, by default written to `x` itself."""
    helper = LayerHelper("increment")
    out = x if in_place else helper.create_variable_for_type_inference(x.dtype)
    attrs = {"step": float(value)}
    helper.append_op(type="increment", inputs={"X": [x]}, outputs={"Out": [out]}, attrs=attrs)
    return out

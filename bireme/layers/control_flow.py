"""Control flow as layers: branches, loops, recurrences and arrays of tensors."""

from .branches import ConditionalBlock, IfElse, Switch, case, cond, switch_case
from .loops import While, while_loop

__all__ = [
    "ConditionalBlock",
    "IfElse",
    "Switch",
    "While",
    "case",
    "cond",
    "switch_case",
    "while_loop",
]

"""Let values go that a gradient reads only for their shape."""

from bireme.ir import Operator, Program
from bireme.ir.names import grad_name

from .notes import Notes
from .uses import Uses, rewritten

__all__ = ["memory_optimize"]

_SUMS = ("elementwise_add_grad", "elementwise_sub_grad")


def memory_optimize(program: Program, notes: Notes) -> Program:
    """The gradient of a sum no longer reads an operand that certainly has the sum's shape; so the
    operand's memory is free after the forward pass, and the sum can be computed in it.
    """
    uses = Uses(program, notes)
    changes: dict[int, Operator | None] = {}
    for i, op in enumerate(uses.ops):
        if op.type in _SUMS and op.input("X") and op.input("Y"):
            (x,), (y,) = op.input("X"), op.input("Y")
            axis = op.attrs.get("axis", -1)
            unread = [s for s, n, m in (("X", x, y), ("Y", y, x)) if uses.whole(n, m, axis)]
            passing = [s for s in unread if uses.passes_through(op.input(s)[0])]
            if passing and uses.shape(op.input(grad_name("Out"))[0]) == uses.shape(x):
                inputs = {s: n for s, n in op.inputs.items() if s not in passing}
                changes[i] = op.replaced(inputs=inputs)
    notes.applied("memory_optimize_pass", len(changes), "" if changes else "nothing to let go")
    return rewritten(program, changes, notes) if changes else program

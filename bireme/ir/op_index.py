"""What the operators of a block write and draw, without reading them all for every question."""

from .operator import DRAW, Operator

__all__ = ["OpIndex"]


class OpIndex:
    """The names that a list of operators writes, and its last number of a random draw.

    `add` follows an insertion; after any other edit the index no longer `covers` the list.
    """

    def __init__(self, ops: list[Operator]) -> None:
        self._ops = ops
        self._count = 0
        self.written: set[str] = set()
        self.last_draw = -1
        for op in ops:
            self.add(op)

    def add(self, op: Operator) -> None:
        self._count += 1
        self.written.update(op.output_arg_names)
        self.last_draw = max(self.last_draw, int(op.attrs.get(DRAW, -1)))

    def covers(self, ops: list[Operator]) -> bool:
        """Whether nothing but additions happened to the list it was made of, which is `ops`."""
        return self._ops is ops and self._count == len(ops)

"""Collective algorithms over sockets, for ranks on different hosts.

Arrays go one window at a time: while the parts of one window travel to the ranks that reduce
them, the results of the previous one travel back. All ranks are connected pairwise, which moves
as many bytes as a ring in 2 hops instead of 2(n-1), and allows reducing in rank order.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from bireme.arrays.namespaces import Array

from .reduction import all_at, fold

__all__ = ["Moves", "SocketTransport"]

_WINDOW = 4 << 20  # bytes of the array in flight

Moves = dict[int, tuple[list[Array], list[Array]]]  # by peer: what goes out, what comes in


class SocketTransport:
    """Moves whole arrays between the ranks of one group; arrays are flat and contiguous."""

    def __init__(self, rank: int, size: int, exchange: Callable[[Moves], None]) -> None:
        self._rank = rank
        self._size = size
        self._exchange = exchange
        self._others = [(rank + k) % size for k in range(1, size)]

    def all_reduce(self, flat: Array, op: str) -> None:
        windows = list(_windows(flat))
        before: Array | None = None
        for window in [*windows, None]:
            self._all_reduce_stage(window, before, op)
            before = window

    def _all_reduce_stage(self, window: Array | None, before: Array | None, op: str) -> None:
        """Send the parts of `window` to their reducers; receive the results of window `before`."""
        moves: Moves = {p: ([], []) for p in self._others}
        inputs: list[Array] = []
        if before is not None:
            parts = self._parts(before)
            for peer, (outgoing, incoming) in moves.items():
                outgoing.append(parts[self._rank])
                incoming.append(parts[peer])
        if window is not None:
            parts = self._parts(window)
            inputs = [np.empty_like(parts[self._rank]) for _ in range(self._size)]
            inputs[self._rank] = parts[self._rank]
            for peer, (outgoing, incoming) in moves.items():
                outgoing.append(parts[peer])
                incoming.append(inputs[peer])
        self._exchange(moves)
        if window is not None:
            fold(op, inputs, inputs[self._rank])

    def reduce(self, flat: Array, op: str, root: int) -> None:
        """More than two ranks share the work, so that no more meets at root than in an all-reduce,
        and send it what they have reduced.
        """
        if self._size <= 2:
            self.reduce_parts(flat, op, all_at(root, flat.size, self._size))
            return
        for window in _windows(flat):
            parts = self._parts(window)
            if self._rank == root:
                self._reduce_own(parts, parts[root], op)
                self._exchange({p: ([], [parts[p]]) for p in self._others})
            else:
                own = np.empty_like(parts[self._rank])
                self._reduce_own(parts, own, op)
                self._exchange({root: ([own], [])})

    def reduce_parts(self, flat: Array, op: str, bounds: Sequence[int]) -> None:
        """Part r = flat[bounds[r] : bounds[r + 1]] at rank r."""
        step = max(1, _WINDOW // (self._size * flat.itemsize))
        longest = max(end - begin for begin, end in pairwise(bounds))
        for begin in range(0, longest, step):
            cuts = [slice(min(a + begin, b), min(a + begin + step, b)) for a, b in pairwise(bounds)]
            parts = [flat[cut] for cut in cuts]
            self._reduce_own(parts, parts[self._rank], op)

    def _reduce_own(self, parts: Sequence[Array], out: Array, op: str) -> None:
        """Send each rank its part; `out` = the reduction of what the others send."""
        inputs = [np.empty_like(out) for _ in range(self._size)]
        inputs[self._rank] = parts[self._rank]
        self._exchange({p: ([parts[p]], [inputs[p]]) for p in self._others})
        fold(op, inputs, out)

    def _parts(self, window: Array) -> list[Array]:
        cuts = [window.size * r // self._size for r in range(self._size + 1)]
        return [window[a:b] for a, b in pairwise(cuts)]

    def broadcast(self, flat: Array, root: int) -> None:
        """Down a binomial tree, one window behind the parent."""
        parent, children = _tree(self._rank, self._size, root)
        before: Array | None = None
        for window in [*_windows(flat), None]:
            moves: Moves = {}
            if parent is not None and window is not None:
                moves[parent] = ([], [window])
            passed = window if parent is None else before
            if passed is not None:
                moves.update({child: ([passed], []) for child in children})
            self._exchange(moves)
            before = window

    def all_gather(self, rows: Array, flat: Array) -> None:
        rows[self._rank] = flat
        self._exchange({p: ([flat], [rows[p]]) for p in self._others})

    def reduce_scatter(self, flat: Array, rows: Array, op: str) -> None:
        step = max(1, _WINDOW // max(1, self._size * flat.itemsize))
        for begin in range(0, flat.size, step):
            cut = slice(begin, begin + step)
            self._reduce_own(rows[:, cut], flat[cut], op)

    def gather(self, rows: Array | None, flat: Array, root: int) -> None:
        if rows is None:
            self._exchange({root: ([flat], [])})
            return
        rows[root] = flat
        self._exchange({p: ([], [rows[p]]) for p in self._others})

    def scatter(self, flat: Array, rows: Array | None, root: int) -> None:
        if rows is None:
            self._exchange({root: ([], [flat])})
            return
        flat[...] = rows[root]
        self._exchange({p: ([rows[p]], []) for p in self._others})


def _windows(flat: Array) -> Iterator[Array]:
    step = max(1, _WINDOW // flat.itemsize)
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step]


def _tree(rank: int, size: int, root: int) -> tuple[int | None, Sequence[int]]:
    """Parent and children of `rank` in a binomial tree under `root`, largest subtree first."""
    place = (rank - root) % size
    lowest = place & -place if place else 1 << size.bit_length()
    parent = None if place == 0 else ((place - lowest) + root) % size
    steps = [1 << k for k in reversed(range(size.bit_length())) if 1 << k < lowest]
    return parent, [(place + s + root) % size for s in steps if place + s < size]

"""The steps of a GRU over a packed batch, and their gradients.

A step is two products, one with the weight of the gates and one with that of the candidate, and
what happens around them; the latter is the affair of a `Forward` and a `Backward`, of which numba
compiles other ones. All arrays are packed but for the input.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from bireme.arrays.namespaces import Array

from .packing import Activation, Packed, activation
from .products import dot

__all__ = ["STEPS", "Backward", "Forward", "Kind", "Steps", "kind_of", "run_backward"]
__all__ += ["run_forward", "weight_gradient"]


class Kind(NamedTuple):
    """Activations of the gates and of the candidate, and whether the update gate keeps the state
    (`origin`) or renews it.
    """

    gate: Activation
    candidate: Activation
    origin: bool


def kind_of(gate: str, candidate: str, origin: bool) -> Kind:
    return Kind(activation(gate), activation(candidate), origin)


def _thirds(gates: Array) -> list[Array]:
    """Update gate, reset gate and candidate."""
    width = gates.shape[1] // 3
    return [gates[:, k * width : (k + 1) * width] for k in range(3)]


class Forward:
    """The steps of one run, but for their products."""

    def __init__(self, xp: Any, kind: Kind, run: Packed, x: Array, bias: Array) -> None:
        self._xp, self._kind, self._run = xp, kind, run
        self.gates = x[run.rows]
        if bias is not None:
            self.gates += bias
        self.kept = xp.empty((len(x), x.shape[1] // 3), dtype=x.dtype)
        self.hidden = xp.empty_like(self.kept)

    def reset(self, t: int, product: Array, h: Array) -> Array:
        """What is kept of the states `h`, from their product with the weight of the gates."""
        part = slice(*self._run.bounds[t])
        both = self.gates[part, : 2 * h.shape[1]]
        both += product
        self._kind.gate.value(self._xp, both, both)
        return self._xp.multiply(both[:, h.shape[1] :], h, out=self.kept[part])

    def renew(self, t: int, product: Array, h: Array) -> Array:
        """The new states, from the product of what was kept and the weight of the candidate."""
        xp, kind, part = self._xp, self._kind, slice(*self._run.bounds[t])
        update, _, new = _thirds(self.gates[part])
        new += product
        kind.candidate.value(xp, new, new)
        old, out = (h, new) if kind.origin else (new, h)
        found = xp.subtract(old, out, out=self.hidden[part])
        found *= update
        found += out
        return found


class Backward:
    """The gradients of the steps of one run, but for their products.

    `d_gates` and `d_kept` are the gradients of the outputs of these names, or None.
    """

    def __init__(
        self,
        xp: Any,
        kind: Kind,
        run: Packed,
        gates: Array,
        h_before: Array,
        flowing: Array,
        d_gates: Array = None,
        d_kept: Array = None,
    ) -> None:
        self._xp, self._kind, self._run = xp, kind, run
        self._gates, self._before = gates, h_before
        self._flowing = flowing[run.rows]
        self._d_gates, self._d_kept = d_gates, d_kept
        self.grad = xp.empty_like(gates)  # of the gates before activation

    def renew(self, t: int, d_h: Array) -> Array:
        """The gradient of the candidates before activation; `d_h`, that of the new states but for
        what flows into the run, becomes the share that the states before have in it directly.
        """
        kind, part = self._kind, slice(*self._run.bounds[t])
        (update, _, new), h = _thirds(self._gates[part]), self._before[part]
        d_update, _, d_new = _thirds(self.grad[part])
        d_h += self._flowing[part]
        share, rest = (1 - update, update) if kind.origin else (update, 1 - update)
        toward = h - new if kind.origin else new - h
        self._xp.multiply(d_h, share, out=d_new)
        self._xp.multiply(d_h, toward, out=d_update)
        if self._d_gates is not None:
            of_update, _, of_new = _thirds(self._d_gates[part])
            d_update += of_update
            d_new += of_new
        d_new *= kind.candidate.slope(self._xp, new)
        d_update *= kind.gate.slope(self._xp, update)
        d_h *= rest
        return d_new

    def reset(self, t: int, d_kept: Array, d_h: Array) -> Array:
        """The gradient of both gates before activation, from that of what was kept, whose share is
        added to `d_h`.
        """
        part = slice(*self._run.bounds[t])
        reset, d_reset = _thirds(self._gates[part])[1], _thirds(self.grad[part])[1]
        if self._d_kept is not None:
            d_kept += self._d_kept[part]
        self._xp.multiply(d_kept, self._before[part], out=d_reset)
        if self._d_gates is not None:
            d_reset += _thirds(self._d_gates[part])[1]
        d_reset *= self._kind.gate.slope(self._xp, reset)
        d_kept *= reset
        d_h += d_kept
        return self.grad[part, : 2 * d_h.shape[1]]


# -- with the products ------------------------------------------------------------------------
class Steps(NamedTuple):
    """What runs around the products."""

    forward: Callable[..., Forward]
    backward: Callable[..., Backward]


STEPS = Steps(Forward, Backward)


def _matrices(weight: Array) -> tuple[Array, Array]:
    """(weights of update and reset, weights of the candidate), which stand one after the other."""
    width = weight.shape[0]
    flat = weight.reshape(-1)
    cut = 2 * width * width
    return flat[:cut].reshape(width, 2 * width), flat[cut:].reshape(width, width)


def run_forward(xp: Any, run: Packed, weight: Array, h: Array, steps: Forward) -> None:
    """All steps from the states `h`."""
    of_gates, of_candidate = _matrices(weight)
    both = xp.empty((len(h), of_gates.shape[1]), dtype=h.dtype)
    new = xp.empty_like(h)
    for t, (begin, end) in enumerate(run.bounds):
        count = end - begin
        h = h[:count]
        kept = steps.reset(t, dot(xp, h, of_gates, both[:count]), h)
        h = steps.renew(t, dot(xp, kept, of_candidate, new[:count]), h)


def run_backward(xp: Any, run: Packed, weight: Array, d_h: Array, steps: Backward) -> None:
    """All steps back; `d_h`, the gradient of the last states, becomes that of the first."""
    # of few rows, a product with a transposed matrix is slow
    of_gates, of_candidate = (xp.ascontiguousarray(m.T) for m in _matrices(weight))
    scratch = xp.empty_like(d_h)
    for t in reversed(range(len(run.bounds))):
        begin, end = run.bounds[t]
        product, state = scratch[: end - begin], d_h[: end - begin]
        d_kept = dot(xp, steps.renew(t, state), of_candidate, product)
        state += dot(xp, steps.reset(t, d_kept, state), of_gates, product)


def weight_gradient(xp: Any, grad: Array, h_before: Array, kept: Array, weight: Array) -> Array:
    found = xp.empty(weight.shape, weight.dtype)
    of_gates, of_candidate = _matrices(found)
    cut = of_gates.shape[1]
    dot(xp, h_before.T, grad[:, :cut], of_gates)
    dot(xp, kept.T, grad[:, cut:], of_candidate)
    return found

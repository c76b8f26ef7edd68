"""Layers that reduce tensors over dimensions, and sums of several tensors."""

from collections.abc import Callable, Sequence
from typing import Any

from bireme.ir import Variable

from .ops import exp
from .single import append, checked

__all__ = [
    "cumsum",
    "logsumexp",
    "mean",
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "sum",
    "sums",
]


Reduction = Callable[..., Variable]


def _reduction(type: str, what: str) -> Reduction:
    def layer(
        input: Variable, dim: Any = None, keep_dim: bool = False, name: str | None = None
    ) -> Variable:
        checked(input, type, "input")
        dims = [dim] if isinstance(dim, int) else list(dim or [0])
        whole = (not dim and dim != 0) or len(dims) == len(input.shape)
        attrs = {"dim": dims, "keep_dim": keep_dim, "reduce_all": whole}
        return append(type, {"X": input}, attrs, name=name)

    layer.__name__ = layer.__qualname__ = type
    layer.__doc__ = f"{what} over the dimensions `dim` (default: all of them)."
    return layer


reduce_sum = _reduction("reduce_sum", "The sum")
reduce_mean = _reduction("reduce_mean", "The mean")
reduce_max = _reduction("reduce_max", "The greatest element")
reduce_min = _reduction("reduce_min", "The least element")
reduce_prod = _reduction("reduce_prod", "The product")
reduce_all = _reduction("reduce_all", "Whether all are true")
reduce_any = _reduction("reduce_any", "Whether any is true")


def mean(x: Variable, name: str | None = None) -> Variable:
    """The mean of all elements, with shape [1]."""
    return append("mean", {"X": x}, name=name)


def sums(input: Sequence[Variable], out: Variable | None = None) -> Variable:
    """The sum of several tensors of one shape, into `out` if it is given."""
    return append("sum", {"X": input}, out=out)


def sum(x: Any) -> Variable:
    """The sum of several tensors of one shape."""
    return append("sum", {"X": x})


def logsumexp(
    x: Variable,
    dim: Any = None,
    keepdim: bool = False,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """log of the sum of exp(x) over `dim`."""
    total = reduce_sum(exp(x), dim=dim, keep_dim=keepdim)
    return append("log", {"X": total}, out=out, name=name)


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """Running sums along `axis` (default: the last)."""
    return append("cumsum", {"X": x}, {"axis": axis, "exclusive": exclusive, "reverse": reverse})

"""Probability distributions over variables: samples, densities, entropies, divergences."""

import math
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir import Variable

from .elementwise import elementwise_add, elementwise_mul, less_than
from .nn import softmax
from .ops import exp, log
from .picking import shape as shape_of
from .random import gaussian_random, uniform_random
from .reduction import reduce_sum
from .shaping import reshape
from .tensor import assign, cast

__all__ = ["Categorical", "MultivariateNormalDiag", "Normal", "Uniform"]


class Distribution:
    """What all of them answer, where it is known."""

    def sample(self, shape: Any, seed: int = 0) -> Any:
        raise InvalidArgument(f"{type(self).__name__} cannot be sampled")

    def entropy(self) -> Any:
        raise InvalidArgument(f"{type(self).__name__} has no entropy")

    def kl_divergence(self, other: Any) -> Any:
        raise InvalidArgument(f"{type(self).__name__} has no divergence")

    def log_prob(self, value: Any) -> Any:
        raise InvalidArgument(f"{type(self).__name__} has no density")

    def _other(self, other: Any) -> None:
        if type(other) is not type(self):
            raise InvalidArgument(
                f"the divergence of {type(self).__name__} from {type(other).__name__}",
                hint=f"give another {type(self).__name__}",
            )


def _variable(value: Any) -> Any:
    if isinstance(value, Variable):
        return value
    return assign(np.atleast_1d(np.asarray(value, dtype="float32")))


def _parameters(first: Any, second: Any) -> tuple[Any, Any]:
    """Two parameters as variables; numbers and arrays are spread to one shape."""
    if not isinstance(first, Variable) and not isinstance(second, Variable):
        first, second = np.broadcast_arrays(np.asarray(first), np.asarray(second))
    return _variable(first), _variable(second)


def _is_number(*values: Any) -> bool:
    """Whether samples have no dimensions of the parameters."""
    return all(np.isscalar(value) for value in values)


def _drawn(shape: Any, first: Any, second: Any) -> list[Any]:
    """The shape of samples; a size of the parameters that is not known is a variable."""
    like = first if first.shape == second.shape else first + second
    sizes = list(like.shape)
    if any(n < 0 for n in sizes):
        known: Any = shape_of(like)
        sizes = [known[i] if n < 0 else n for i, n in enumerate(sizes)]
    return [*(int(n) for n in shape), *sizes]


def _scaled(unit: Any, scale: Any, offset: Any) -> Any:
    """Samples of a unit law, stretched and moved; parameters meet their last dimensions."""
    return elementwise_add(elementwise_mul(unit, scale), offset)


class Uniform(Distribution):
    """Between `low` and `high`, which may be numbers, arrays or variables."""

    def __init__(self, low: Any, high: Any) -> None:
        self._plain = _is_number(low, high)
        self.low, self.high = _parameters(low, high)

    def sample(self, shape: Any, seed: int = 0) -> Any:
        unit: Any = uniform_random(_drawn(shape, self.low, self.high), "float32", 0.0, 1.0, seed)
        found = _scaled(unit, self.high - self.low, self.low)
        return reshape(found, shape) if self._plain else found

    def log_prob(self, value: Any) -> Any:
        above: Any = cast(less_than(self.low, value), value.dtype)
        below: Any = cast(less_than(value, self.high), value.dtype)
        inside: Any = log(above * below)
        return inside - log(self.high - self.low)

    def entropy(self) -> Any:
        return log(self.high - self.low)


class Normal(Distribution):
    """With mean `loc` and standard deviation `scale`."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self._plain = _is_number(loc, scale)
        self.loc, self.scale = _parameters(loc, scale)

    def sample(self, shape: Any, seed: int = 0) -> Any:
        unit: Any = gaussian_random(_drawn(shape, self.loc, self.scale), 0.0, 1.0, seed)
        found = _scaled(unit, self.scale, self.loc)
        return reshape(found, shape) if self._plain else found

    def entropy(self) -> Any:
        half = 0.5 + 0.5 * math.log(2 * math.pi)
        widths: Any = log(self.scale)
        return widths + half + (self.loc - self.loc)

    def log_prob(self, value: Any) -> Any:
        away = (value - self.loc) / self.scale
        widths: Any = log(self.scale)
        return away * away * -0.5 - widths - 0.5 * math.log(2 * math.pi)

    def kl_divergence(self, other: "Normal") -> Any:
        self._other(other)
        ratio = self.scale / other.scale
        away = (self.loc - other.loc) / other.scale
        square = ratio * ratio
        logs: Any = log(square)
        return (square + away * away - 1.0 - logs) * 0.5


class Categorical(Distribution):
    """Over classes in the last dimension of `logits`."""

    def __init__(self, logits: Variable) -> None:
        self.logits = _variable(logits)

    def _logs(self) -> Any:
        """Log probabilities."""
        return log(softmax(self.logits))

    def entropy(self) -> Any:
        logs = self._logs()
        return reduce_sum(exp(logs) * logs, dim=-1, keep_dim=True) * -1.0

    def kl_divergence(self, other: "Categorical") -> Any:
        self._other(other)
        logs = self._logs()
        return reduce_sum(exp(logs) * (logs - other._logs()), dim=-1, keep_dim=True)


class MultivariateNormalDiag(Distribution):
    """With mean `loc` [k] and the diagonal matrix `scale` [k, k] as covariance."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _variable(loc), _variable(scale)
        self._size = int(self.loc.shape[-1])
        self._unit = assign(np.eye(self._size, dtype="float32"))

    @property
    def _variances(self) -> Any:
        return reduce_sum(self.scale * self._unit, dim=-1)

    def entropy(self) -> Any:
        logs: Any = reduce_sum(log(self._variances))
        return (logs + self._size * (1.0 + math.log(2 * math.pi))) * 0.5

    def kl_divergence(self, other: "MultivariateNormalDiag") -> Any:
        self._other(other)
        mine, theirs = self._variances, other._variances
        away = other.loc - self.loc
        trace: Any = reduce_sum(mine / theirs + away * away / theirs)
        logs: Any = reduce_sum(log(theirs) - log(mine))
        return (trace - float(self._size) + logs) * 0.5

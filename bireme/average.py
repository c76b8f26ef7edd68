"""A running mean of fetched values, as `fluid.average` offers it."""

from typing import Any

import numpy as np

from bireme.errors import InvalidArgument

__all__ = ["WeightedAverage"]


class WeightedAverage:
    """The mean of numbers or arrays of one shape, each with a weight.

    >>> mean = WeightedAverage()
    >>> mean.add(2.0, weight=1)
    >>> mean.add(4.0, weight=3)
    >>> mean.eval()
    3.5
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was added."""
        self.numerator: Any = None
        self.denominator: Any = None

    def add(self, value: Any, weight: Any) -> None:
        """Count `value` with `weight`.

        Raises:
            InvalidArgument: one of them is no number or array of numbers.
        """
        for given in (value, weight):
            if not isinstance(given, int | float | np.ndarray | np.generic):
                raise InvalidArgument(
                    f"a {type(given).__name__} cannot be averaged",
                    hint="add a number or a numpy array, such as a fetched loss",
                )
        if self.denominator is None:
            self.numerator, self.denominator = 0.0, 0.0
        self.numerator = self.numerator + value * weight
        self.denominator = self.denominator + weight

    def eval(self) -> Any:
        """The mean.

        Raises:
            InvalidArgument: nothing was added.
        """
        if self.denominator is None:
            raise InvalidArgument(
                "There is no data to be averaged in WeightedAverage.", hint="call add first"
            )
        return self.numerator / self.denominator

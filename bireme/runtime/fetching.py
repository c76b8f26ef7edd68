"""What a run hands out: values that no later run can change, as arrays or LoD tensors."""

from typing import Any

import numpy as np

from bireme.errors import FeedError

from .arrays import to_host
from .plan import Plan
from .steps import Frame
from .values import LoDTensor

__all__ = ["Single", "fetched"]


class Single(np.ndarray):
    """A fetched array of one element: a number too, as in the NumPy that Fluid's scripts knew.

    `float(loss)` for an array of shape [1] is an error since NumPy 2.4.
    """

    __array_priority__ = -1.0  # with any other array it is an array

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


def fetched(plan: Plan, frame: Frame, *, return_numpy: bool) -> list[Any]:
    """The values of a plan's fetches.

    Raises:
        FeedError: a value was never written, or has a LoD that an array cannot carry.
    """
    lod = plan.layout.lod
    results = []
    for slot, shared in zip(plan.fetches, plan.owned, strict=True):
        structure = frame[slot + lod] if lod else ()
        if frame[slot] is None:
            raise _empty(plan, slot)
        results.append(_result(frame[slot], structure or (), shared, return_numpy=return_numpy))
    return results


def _result(value: Any, lod: Any, shared: bool, *, return_numpy: bool) -> Any:
    if not hasattr(value, "__array__") or isinstance(value, LoDTensor):
        return value
    array = to_host(value)
    if array is value and (shared or array.base is not None):
        array = np.array(array)
    if not return_numpy:
        return LoDTensor(array, lod)
    if lod:
        raise FeedError(
            "a fetched value has a LoD, which a NumPy array cannot carry",
            hint="run with return_numpy=False and read tensor.lod()",
        )
    return array.view(Single) if array.size == 1 and array.ndim else array


def _empty(plan: Plan, slot: int) -> FeedError:
    name = next(n for n, s in plan.layout.slots.items() if s == slot)
    return FeedError(
        f"fetch '{name}' holds nothing: no operator that ran wrote it",
        hint="fetch another variable, or run the program that computes it",
    )

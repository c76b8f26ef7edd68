"""Fetched values, as arrays or LoD tensors that later runs do not change."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensor, LoDTensorArray
from bireme.errors import FeedError

from .plan import Plan
from .scope import Scope, global_scope
from .steps import Frame

__all__ = ["Single", "as_numpy", "as_single", "fetch_var", "fetched", "figures"]


class Single(np.ndarray):
    """A fetched array, which converts to a number if it has one element, as in older NumPy.

    `"%f" % loss` for an array of shape [1] is an error since NumPy 2.4.
    """

    __array_priority__ = -1.0  # combined with any other array it is a plain array

    def __float__(self) -> float:
        return float(self._only())

    def __int__(self) -> int:
        return int(self._only())

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()  # readable without bireme

    def _only(self) -> Any:
        if self.size != 1:
            raise TypeError(
                f"only an array with one element is a number; this one has shape "
                f"{list(self.shape)}: choose an element, or take its mean"
            )
        return self.item()


def as_single(array: Any) -> Any:
    """A fetched array that has one element, or whose rows may have one, as `Single`."""
    return array.view(Single) if 1 in array.shape else array


def as_numpy(tensor: Any) -> Any:
    """The array of a LoDTensor, or of each in a list.

    Raises:
        FeedError: a tensor has a LoD, which an array cannot carry.
    """
    if isinstance(tensor, list | tuple):
        return [as_numpy(each) for each in tensor]
    if isinstance(tensor, LoDTensor) and tensor.offsets:
        raise _structured()
    return np.asarray(tensor)


def fetch_var(name: str, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """The value of a variable in a scope (the current one if none is given).

    Raises:
        FeedError: there is no such variable, or it has a LoD that an array cannot carry.
    """
    cell = (scope or global_scope()).find_var(name)
    if cell is None or cell.value is None:
        raise FeedError(
            f"the scope has no value of {name!r}", hint="run the program that computes it"
        )
    return as_numpy(cell.get_tensor()) if return_numpy else cell.get_tensor()


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


def figures(
    names: Sequence[str], values: Sequence[Any], losses: Collection[str]
) -> dict[str, float]:
    """The fetched floats of one element by name; what was minimized is called `loss`."""
    found: dict[str, float] = {}
    for name, value in zip(names, values, strict=True):
        array = value.array if isinstance(value, LoDTensor) else value
        if isinstance(array, np.ndarray) and array.size == 1 and array.dtype.kind == "f":
            label = "loss" if name in losses and "loss" not in found else name
            found[label] = float(array.item())
    return found


def _result(value: Any, lod: Any, shared: bool, *, return_numpy: bool) -> Any:
    if isinstance(value, LoDTensorArray):
        return _tensors(value, return_numpy=return_numpy)
    if not hasattr(value, "__array__") or isinstance(value, LoDTensor):
        return value
    array = to_host(value)
    if array is value and (shared or array.base is not None):
        array = np.array(array)
    if not return_numpy:
        return LoDTensor(array, lod)
    if lod:
        raise _structured()
    return as_single(array)


def _tensors(values: LoDTensorArray, *, return_numpy: bool) -> list[Any]:
    if return_numpy:
        return [None if each is None else np.array(_plain(each)) for each in values]
    return LoDTensorArray(
        each if each is None or isinstance(each, LoDTensor) else LoDTensor(np.array(to_host(each)))
        for each in values
    )


def _plain(element: Any) -> Any:
    if isinstance(element, LoDTensor) and element.offsets:
        raise _structured()
    return to_host(element)


def _structured() -> FeedError:
    return FeedError(
        "a fetched value has a LoD, which a NumPy array cannot carry",
        hint="run with return_numpy=False and read tensor.lod()",
    )


def _empty(plan: Plan, slot: int) -> FeedError:
    name = next(n for n, s in plan.layout.slots.items() if s == slot)
    return FeedError(
        f"fetch '{name}' has no value: no operator that ran wrote it",
        hint="fetch another variable, or run the program that computes it",
    )

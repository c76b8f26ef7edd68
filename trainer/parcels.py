"""What a trainer sends and gets, as values: how large it is, and a copy of one's own."""

import os

import numpy as np

from bireme import flags
from bireme.rpc.codec import Value
from bireme.rpc.shared import Outbox
from bireme.runtime.values import LoDTensor, SelectedRows

__all__ = ["copied", "outbox", "size_of"]


def outbox() -> Outbox | None:
    """Shared memory to offer, unless it is switched off or this system has none."""
    if not flags.get("rpc_shared_memory") or not hasattr(os, "memfd_create"):
        return None
    return Outbox()


def size_of(value: Value) -> int:
    if isinstance(value, SelectedRows):
        return int(value.value.nbytes)
    return int(value.array.nbytes if isinstance(value, LoDTensor) else np.asarray(value).nbytes)


def copied(value: Value) -> Value:
    """A value in memory of our own: others may use again what they handed over."""
    if type(value) is np.ndarray:
        return value.copy()
    if isinstance(value, SelectedRows):
        return SelectedRows(np.array(value.rows), np.array(value.value), value.height)
    if isinstance(value, LoDTensor):
        return LoDTensor(np.array(value.array), value.offsets)
    return np.array(value)

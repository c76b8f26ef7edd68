"""Variables that servers hold, put together and written to files: the effect of `recv_save`."""

import numpy as np

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.io.files import written
from bireme.io.streams import write_value
from bireme.net.frames import Value

from .instructions import Fetched
from .lookup import merged
from .server_pool import ServerPool

__all__ = ["fetch"]


def fetch(pool: ServerPool, route: Fetched) -> None:
    """Write one variable as a program without servers would."""
    wanted: dict[str, tuple[str, ...]] = {}
    for endpoint, name in route.parts:
        wanted[endpoint] = (*wanted.get(endpoint, ()), name)
    found = pool.read(wanted)
    value = _joined([found[endpoint][name] for endpoint, name in route.parts], route.shape)
    with written(route.path) as file:
        write_value(file, value)


def _joined(parts: list[Value], shape: tuple[int, ...]) -> Value:
    """Slices one below the other; rows by id, ids rising."""
    first = parts[0]
    if isinstance(first, SelectedRows):
        rows = [part for part in parts if isinstance(part, SelectedRows)]
        ids = np.concatenate([part.rows for part in rows])
        values = np.concatenate([part.value for part in rows])
        return merged(SelectedRows(ids, values, first.height))
    if len(parts) == 1:
        return first
    arrays = [part.array if isinstance(part, LoDTensor) else part for part in parts]
    return np.concatenate(arrays).reshape(shape)

"""Readers attached to a program: the executor takes a batch per run, nothing is fed."""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, unique_name
from bireme.reader.dataloader import GeneratorLoader

from .io import data

__all__ = ["create_py_reader_by_data", "double_buffer", "py_reader", "read_file"]


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> GeneratorLoader:
    """A reader of batches with these shapes; `read_file` gives the variables it fills.

        reader = layers.py_reader(64, shapes=[(-1, 784), (-1, 1)], dtypes=["float32", "int64"])
        image, label = layers.read_file(reader)
        reader.decorate_paddle_reader(batches)
        reader.start()                      # then exe.run(...) until core.EOFException
        reader.reset()

    Raises:
        InvalidArgument: shapes, dtypes and lod_levels differ in number.
    """
    levels = list(lod_levels or [0] * len(shapes))
    if not len(shapes) == len(dtypes) == len(levels):
        raise InvalidArgument(
            f"py_reader got {len(shapes)} shapes, {len(dtypes)} dtypes, {len(levels)} lod_levels",
            hint="give one of each for every variable",
        )
    base = name or unique_name.generate("py_reader")
    variables = [
        data(f"{base}_{i}", list(shape), False, dtype, level)
        for i, (shape, dtype, level) in enumerate(zip(shapes, dtypes, levels, strict=True))
    ]
    return create_py_reader_by_data(capacity, variables, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int,
    feed_list: Sequence[Variable],
    name: str | None = None,
    use_double_buffer: bool = True,
) -> GeneratorLoader:
    """A reader for existing variables; see `py_reader`."""
    return GeneratorLoader(feed_list, capacity, use_double_buffer, iterable=False)


def double_buffer(
    reader: GeneratorLoader, place: Any = None, name: str | None = None
) -> GeneratorLoader:
    """Returns the reader itself: batches are always prefetched."""
    return reader


def read_file(reader: GeneratorLoader) -> Any:
    """The variables of a reader: one, or a list of several."""
    variables: list[Variable] = list(reader.variables)
    return variables[0] if len(variables) == 1 else variables

"""Gradients computed where servers read them: nobody's array is written over."""

import numpy as np

from bireme.net.memory import Mappings
from bireme.trainer.gradient_buffers import GradientBuffers


def test_another_process_finds_a_slice_where_the_buffer_says() -> None:
    buffers = GradientBuffers()
    array = buffers.take("w@GRAD", (4, 3), "float32")
    assert array is not None
    array[...] = np.arange(12, dtype=np.float32).reshape(4, 3)
    place = buffers.place(array[1:3])
    assert place is not None
    seen = Mappings()(place.segment)[place.offset : place.offset + 24].view(np.float32)
    assert seen.tolist() == [3, 4, 5, 6, 7, 8]


def test_an_array_in_no_buffer_has_no_place() -> None:
    buffers = GradientBuffers()
    kept = buffers.take("w", (4, 4), "float32")
    assert kept is not None
    assert buffers.place(np.zeros(3)) is None
    assert buffers.place(kept.T) is None
    assert buffers.place(kept.copy()) is None


def test_a_gradient_that_somebody_keeps_is_not_written_over() -> None:
    buffers = GradientBuffers()
    first = buffers.take("w", (8,), "float64")
    assert first is not None
    first[...] = 1
    view = first[2:4]
    del first
    second = buffers.take("w", (8,), "float64")
    assert second is not None
    second[...] = 2
    assert view.tolist() == [1, 1]
    assert buffers.take("w", (8,), "float64") is None, "two buffers are enough"
    del view
    assert buffers.take("w", (8,), "float64") is not None

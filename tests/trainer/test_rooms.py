"""Gradients computed where servers read them: nobody's array is written over."""

import numpy as np

from bireme.rpc.shared import Attached
from bireme.trainer.rooms import Rooms


def test_another_process_finds_a_slice_where_the_room_says() -> None:
    rooms = Rooms()
    array = rooms.take("w@GRAD", (4, 3), "float32")
    assert array is not None
    array[...] = np.arange(12, dtype=np.float32).reshape(4, 3)
    place = rooms.place(array[1:3])
    assert place is not None
    seen = Attached()(place.segment)[place.offset : place.offset + 24].view(np.float32)
    assert seen.tolist() == [3, 4, 5, 6, 7, 8]


def test_an_array_that_is_no_rooms_has_no_place() -> None:
    rooms = Rooms()
    kept = rooms.take("w", (4, 4), "float32")
    assert kept is not None
    assert rooms.place(np.zeros(3)) is None
    assert rooms.place(kept.T) is None
    assert rooms.place(kept.copy()) is None


def test_a_gradient_that_somebody_keeps_is_not_written_over() -> None:
    rooms = Rooms()
    first = rooms.take("w", (8,), "float64")
    assert first is not None
    first[...] = 1
    view = first[2:4]
    del first
    second = rooms.take("w", (8,), "float64")
    assert second is not None
    second[...] = 2
    assert view.tolist() == [1, 1]
    assert rooms.take("w", (8,), "float64") is None, "two rooms are enough"
    del view
    assert rooms.take("w", (8,), "float64") is not None

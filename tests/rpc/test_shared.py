"""Shared memory between processes: the same values, no room reused too early, nothing left
behind.
"""

import os
import subprocess
import sys
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import FormatError
from bireme.rpc import codec, shared
from bireme.rpc import messages as m
from bireme.rpc.codec import Decoder, encode, framed
from bireme.rpc.layouts import layout_of
from bireme.rpc.shared import Attached, Board, Outbox, Segment, aligned
from bireme.runtime.values import SelectedRows

PUSH = m.Push(trainer=1, incarnation=2, sequence=3, step=4)
arrays = st.sampled_from("int8 float16 float64".split()).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=9))
)


@pytest.fixture(autouse=True)
def _share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "WORTH_SHARING", 1)


def carried(values: dict[str, Any], outbox: Outbox) -> dict[str, Any]:
    (piece,) = encode(PUSH, values, outbox.take)
    received = Decoder(attach=Attached()).feed(piece)
    assert received is not None
    return received.values


@pytest.fixture(scope="module")
def outbox() -> Outbox:
    return Outbox()


@given(values=st.dictionaries(st.text(min_size=1, max_size=4), arrays, max_size=4))
def test_arrays_come_through_shared_memory_bit_for_bit(outbox: Outbox, values: Any) -> None:
    got = carried(values, outbox)
    assert list(got) == list(values)
    for name, array in values.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_selected_rows_come_through(outbox: Outbox) -> None:
    rows = SelectedRows(np.array([5, 1]), np.ones((2, 3), np.float32), 9)
    got = carried({"g": rows}, outbox)["g"]
    assert got.rows.tolist() == [5, 1]
    assert got.value.tolist() == rows.value.tolist()


def test_what_is_received_cannot_be_written() -> None:
    got = carried({"g": np.zeros(9)}, Outbox())["g"]
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 1


def test_a_small_payload_stays_in_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "WORTH_SHARING", 1000)
    (piece,) = encode(PUSH, {"g": np.zeros(9)}, Outbox().take)
    assert len(piece) > 72


def test_memory_is_taken_once_until_it_is_cleared() -> None:
    outbox = Outbox()
    places = [outbox.take(shared.SMALLEST // 3)[0] for _ in range(7)]
    assert len({(place.segment, place.offset) for place in places}) == 7
    outbox.clear()
    segments = {outbox.take(shared.SMALLEST // 3)[0].segment for _ in range(7)}
    assert len(segments) == 1


@pytest.mark.parametrize("name", ["", "x", "1:2:3", "1:0:5:100", f"{os.getpid()}:0:1:64"])
def test_a_name_that_is_no_segment_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="cannot map"):
        Attached()(name)


def test_a_segment_that_its_owner_has_freed_is_refused() -> None:
    segment = Segment(100)
    name = segment.name
    del segment
    with pytest.raises(FormatError):
        Attached()(name)


@pytest.mark.parametrize("at", [-64, 3, 64])
def test_a_place_outside_its_segment_is_refused(at: int) -> None:
    segment = Segment(64)
    said = layout_of((m.Tensor("g", "uint8", (64,)),)).said
    message = m.Values(version=1, place=(segment.name, at))
    with pytest.raises(FormatError, match="lies outside"):
        Decoder(attach=Attached()).feed(framed(message, said))


def test_a_side_that_has_not_agreed_refuses_shared_memory() -> None:
    (piece,) = encode(PUSH, {"g": np.zeros(9)}, Outbox().take)
    with pytest.raises(FormatError, match="not agreed"):
        Decoder().feed(piece)


def test_another_process_reads_a_segment_and_its_owner_may_be_killed() -> None:
    script = (
        "import time, numpy as np\n"
        "from bireme.rpc.shared import Segment\n"
        "segment = Segment(100)\n"
        "segment.bytes[:] = 7\n"
        "print(segment.name, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        seen = Attached()(owner.stdout.readline().strip())
        owner.kill()
    assert set(seen.tolist()) == {7}


# -- who may write where -----------------------------------------------------------------------
def test_a_region_is_not_written_while_somebody_reads_it() -> None:
    board = Board()
    first = board.take()
    first.readers[0] = 5
    first.current = False
    assert board.take() is not first
    board.heard(0, 5)  # a repeat of the call that was answered
    assert first.readers
    board.heard(0, 6)
    assert board.take() is first


def test_the_current_region_is_not_written_though_nobody_reads_it() -> None:
    board = Board()
    first = board.take()
    assert board.take() is not first


def test_what_a_finished_trainer_was_given_is_never_written_again() -> None:
    board = Board()
    first = board.take()
    first.readers[1] = 3
    first.current = False
    board.left(1)
    assert board.take() is not first
    board.heard(1, 9)
    assert board.take() is not first


def test_a_region_is_not_written_while_this_process_holds_an_array_of_it() -> None:
    board = Board()
    first = board.take()
    first.lay_out(64, lambda room: [room[:12].view(np.float32), room[16:48].view(np.int64)])
    first.current = False
    value = first.arrays[1]
    assert board.take() is not first
    value = first.arrays[0][1:]  # held all the same
    assert board.take() is not first
    del value
    assert board.take() is first


@given(st.integers(0, 10_000))
def test_tensors_begin_at_aligned_places(size: int) -> None:
    assert size <= aligned(size) < size + shared.ALIGN
    assert aligned(size) % shared.ALIGN == 0

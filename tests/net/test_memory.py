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

from bireme.arrays.values import SelectedRows
from bireme.errors import FormatError
from bireme.net import frames, memory
from bireme.net import messages as m
from bireme.net.frames import Decoder, frame, head_of
from bireme.net.layouts import layout_of
from bireme.net.memory import Arena, Mappings, Segment, aligned

PUSH = m.Push(trainer=1, incarnation=2, sequence=3, step=4)
arrays = st.sampled_from("int8 float16 float64".split()).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=9))
)


@pytest.fixture(autouse=True)
def _share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "WORTH_SHARING", 1)


def carried(values: dict[str, Any], arena: Arena) -> dict[str, Any]:
    (piece,) = frame(PUSH, values, arena.take)
    received = Decoder(attach=Mappings()).feed(piece)
    assert received is not None
    return received.values


@pytest.fixture(scope="module")
def arena() -> Arena:
    return Arena()


@given(values=st.dictionaries(st.text(min_size=1, max_size=4), arrays, max_size=4))
def test_arrays_come_through_shared_memory_bit_for_bit(arena: Arena, values: Any) -> None:
    got = carried(values, arena)
    assert list(got) == list(values)
    for name, array in values.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_selected_rows_come_through(arena: Arena) -> None:
    rows = SelectedRows(np.array([5, 1]), np.ones((2, 3), np.float32), 9)
    got = carried({"g": rows}, arena)["g"]
    assert got.rows.tolist() == [5, 1]
    assert got.value.tolist() == rows.value.tolist()


def test_what_is_received_cannot_be_written() -> None:
    got = carried({"g": np.zeros(9)}, Arena())["g"]
    with pytest.raises(ValueError, match="read-only"):
        got[0] = 1


def test_a_small_payload_stays_in_the_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "WORTH_SHARING", 1000)
    _, payload = frame(PUSH, {"g": np.zeros(9)}, Arena().take)
    assert len(payload) == 72


def test_memory_is_taken_once_until_it_is_cleared() -> None:
    arena = Arena()
    places = [arena.take(memory.SMALLEST // 3)[0] for _ in range(7)]
    assert len({(place.segment, place.offset) for place in places}) == 7
    arena.clear()
    segments = {arena.take(memory.SMALLEST // 3)[0].segment for _ in range(7)}
    assert len(segments) == 1


@pytest.mark.parametrize("name", ["", "x", "1:2:3", "1:0:5:100", "self:0:1:64"])
def test_a_name_that_is_no_segment_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="cannot map"):
        Mappings()(name.replace("self", str(os.getpid())))


def test_a_segment_cannot_shrink_under_its_readers() -> None:
    segment = Segment(4096)
    pid, descriptor, _, _ = segment.name.split(":")
    with pytest.raises(PermissionError):
        os.truncate(f"/proc/{pid}/fd/{descriptor}", 0)


def test_a_segment_that_could_shrink_is_refused() -> None:
    descriptor = os.memfd_create("bireme", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    name = f"{os.getpid()}:{descriptor}:{os.fstat(descriptor).st_ino}:4096"
    with pytest.raises(FormatError, match="not sealed"):
        Mappings()(name)
    os.close(descriptor)


def test_a_segment_that_its_owner_has_freed_is_refused() -> None:
    segment = Segment(100)
    name = segment.name
    del segment
    with pytest.raises(FormatError):
        Mappings()(name)


@pytest.mark.parametrize("at", [-64, 3, 64])
def test_a_place_outside_its_segment_is_refused(at: int) -> None:
    segment = Segment(64)
    encoded = layout_of((m.Tensor("g", "uint8", (64,)),)).encoded
    message = m.Values(version=1, place=(segment.name, at))
    with pytest.raises(FormatError, match="lies outside"):
        Decoder(attach=Mappings()).feed(head_of(message, encoded))


def test_a_side_that_has_not_agreed_refuses_shared_memory() -> None:
    (piece,) = frame(PUSH, {"g": np.zeros(9)}, Arena().take)
    with pytest.raises(FormatError, match="not agreed"):
        Decoder().feed(piece)


def test_another_process_reads_a_segment_and_its_owner_may_be_killed() -> None:
    script = (
        "import time, numpy as np\n"
        "from bireme.net.memory import Segment\n"
        "segment = Segment(100)\n"
        "segment.bytes[:] = 7\n"
        "print(segment.name, flush=True)\n"
        "time.sleep(60)\n"  # until it is killed
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        seen = Mappings()(owner.stdout.readline().strip())
        owner.kill()
    assert set(seen.tolist()) == {7}


@given(st.integers(0, 10_000))
def test_tensors_begin_at_aligned_places(size: int) -> None:
    assert size <= aligned(size) < size + memory.ALIGN
    assert aligned(size) % memory.ALIGN == 0

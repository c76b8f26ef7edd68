"""Frames: what is decoded is what was encoded, bit for bit, and damage is always a FormatError."""

from typing import Any

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import FormatError
from bireme.net import messages as m
from bireme.net.frames import PIECE, Decoder, decode, frame, head_of, pieces_of

DTYPES = st.sampled_from(
    "bool int8 uint8 int16 int32 int64 float16 float32 float64 uint16 uint32 uint64".split()
)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, shapes))
names = st.text(min_size=1, max_size=20)
PUSH = m.Push(trainer=1, incarnation=2, sequence=3, step=4)


def encode(message: m.Message, values: dict[str, Any] | None = None) -> list[bytes]:
    return list(pieces_of(frame(message, values)))


def same(a: Any, b: Any) -> bool:
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


@given(st.dictionaries(names, arrays, max_size=5))
def test_arrays_come_back_bit_for_bit(values: dict[str, Any]) -> None:
    received = decode(encode(PUSH, values))
    assert list(received.values) == list(values)
    assert all(same(received.values[name], array) for name, array in values.items())
    assert received.size == sum(array.nbytes for array in values.values())


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 3))
def test_selected_rows_come_back(rows: list[int], width: int) -> None:
    value = np.arange(len(rows) * width, dtype=np.float32).reshape(len(rows), width)
    sent = SelectedRows(np.array(rows, np.int64), value, 10)
    got = decode(encode(PUSH, {"g": sent})).values["g"]
    assert isinstance(got, SelectedRows)
    assert got.height == 10
    assert same(got.rows, sent.rows)
    assert same(got.value, sent.value)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_lod_comes_back(lengths: list[int]) -> None:
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    sent = LoDTensor(np.zeros((int(offsets[-1]), 2), np.int64), (offsets,))
    got = decode(encode(PUSH, {"x": sent})).values["x"]
    assert got.lod() == sent.lod()
    assert same(got.array, sent.array)


def test_an_array_that_is_not_contiguous_travels_in_row_order() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert same(decode(encode(PUSH, {"x": array})).values["x"], np.ascontiguousarray(array))


def test_a_large_array_is_cut_into_pieces_and_small_ones_share_one() -> None:
    small = {f"s{i}": np.full(16, i, np.float32) for i in range(100)}
    assert len(encode(PUSH, small)) == 1
    pieces = encode(PUSH, {**small, "large": np.zeros(3 * PIECE, np.uint8)})
    assert len(pieces) == 4
    assert max(map(len, pieces)) <= PIECE


@given(
    st.sampled_from(
        [
            m.Hello(trainer=0, incarnation=5),
            m.Barrier(trainer=0, incarnation=1, sequence=9, step=3),
            m.Pull(trainer=0, incarnation=1, sequence=9, step=3, names=("a", "b"), answer=True),
            m.Values(version=7),
            m.Accepted(),
            m.Refused(kind="PeerLost", text="gone", peer="trainer 1", step=2),
            m.Abort(trainer=1, incarnation=1, step=3, cause="x"),
        ]
    )
)
def test_messages_come_back(message: m.Message) -> None:
    assert decode(encode(message)).message == message


def test_frames_follow_one_another_on_a_stream() -> None:
    decoder = Decoder()
    pieces = encode(PUSH, {"a": np.ones(2 * PIECE, np.uint8)}) + encode(m.Accepted())
    got = [found for piece in pieces if (found := decoder.feed(piece)) is not None]
    assert [type(found.message) for found in got] == [m.Push, m.Accepted]
    assert decoder.idle


# -- damage ------------------------------------------------------------------------------------
@settings(max_examples=300)
@given(st.data())
def test_a_flipped_byte_in_a_header_is_refused(data: st.DataObject) -> None:
    (piece,) = encode(PUSH, {"g": np.ones(4, np.float32)})
    at = data.draw(st.integers(0, len(piece) - 17))
    bad = bytearray(piece)
    bad[at] ^= data.draw(st.integers(1, 255))
    if at == 3:  # a byte kept free for later
        return
    with pytest.raises(FormatError):
        decode([bytes(bad)])


@given(st.data())
def test_a_truncated_frame_is_refused(data: st.DataObject) -> None:
    pieces = encode(PUSH, {"g": np.ones(4, np.float32)})
    with pytest.raises(FormatError):
        decode([pieces[0][: data.draw(st.integers(0, len(pieces[0]) - 1))]])


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(FormatError):
        decode([noise])


def announced(tensor: m.Tensor) -> list[bytes]:
    return [head_of(PUSH, msgspec.msgpack.encode((tensor,)))]


@pytest.mark.parametrize(
    "tensor",
    [
        m.Tensor("g", "float128", (1,)),
        m.Tensor("g", "object", (1,)),
        m.Tensor("g", "float32", (-1,)),
        m.Tensor("g", "float32", (1 << 62, 1 << 62)),
        m.Tensor("g", "float32", (3, 2), (), 4, 10),
        m.Tensor("g", "float32", (), (), 0, 10),
        m.Tensor("g", "float32", (3,), ((0, 2),)),
        m.Tensor("g", "float32", (3,), ((0, 1 << 63),)),
    ],
)
def test_an_impossible_announcement_is_refused(tensor: m.Tensor) -> None:
    with pytest.raises(FormatError):
        decode(announced(tensor))


def test_bytes_after_a_frame_are_refused() -> None:
    (piece,) = encode(m.Accepted())
    with pytest.raises(FormatError, match="after the frame"):
        decode([piece + b"x"])


def test_an_object_array_cannot_travel() -> None:
    with pytest.raises(FormatError, match="not supported on the wire"):
        encode(PUSH, {"x": np.array([object()])})

"""Files of Fluid 1.8.5 load here and come out byte for byte; every damage is refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bireme.arrays.values import LoDTensor, SelectedRows, lengths_to_lod
from bireme.errors import FormatError
from bireme.io.streams import Reader, write_value
from bireme.ir import Program
from bireme.ir.proto import from_bytes, to_bytes

RECORDED = Path(__file__).parent.parent / "golden" / "fluid185"
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]

arrays = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


def stream(value: Any) -> bytes:
    file = io.BytesIO()
    write_value(file, value)
    return file.getvalue()


@pytest.mark.parametrize("path", sorted((RECORDED / "vars").iterdir()), ids=lambda p: p.name)
def test_a_recorded_variable_is_written_back_byte_for_byte(path: Path) -> None:
    data = path.read_bytes()
    reader = Reader(data)
    value = reader.tensor(path.name)
    reader.end()
    assert stream(value) == data


def test_a_recorded_lod_and_selected_rows_are_written_back_byte_for_byte() -> None:
    data = (RECORDED / "streams" / "lod").read_bytes()
    tensor = Reader(data).tensor("lod_t")
    assert tensor.recursive_sequence_lengths() == [[2, 1], [1, 3, 2]]
    assert stream(tensor) == data
    data = (RECORDED / "streams" / "rows").read_bytes()
    rows = Reader(data).selected_rows("rows_t")
    assert (rows.rows.tolist(), rows.height) == ([4, 1, 4], 9)
    assert stream(rows) == data


def test_the_combined_file_holds_the_variables_in_the_order_of_their_names() -> None:
    reader = Reader((RECORDED / "combined" / "all").read_bytes())
    for path in sorted((RECORDED / "vars").iterdir(), key=lambda p: p.name.encode()):
        assert stream(reader.tensor(path.name)) == path.read_bytes()
    reader.end()


@pytest.mark.parametrize("name", ["inference/__model__", "state/model.pdmodel"])
def test_a_recorded_program_keeps_its_meaning(name: str) -> None:
    program = from_bytes((RECORDED / name).read_bytes())
    again = from_bytes(to_bytes(program))
    assert [op.type for op in program.global_block().ops]
    for mine, theirs in zip(program.blocks, again.blocks, strict=True):
        for op, back in zip(mine.ops, theirs.ops, strict=True):
            switches = {"use_mkldnn": False, "use_cudnn": False}
            added = switches if op.type.endswith("_grad") else {}
            assert back == op.replaced(attrs={**added, **op.attrs})
        assert [v.fields() for v in mine.vars.values()] == [
            v.fields() for v in theirs.vars.values()
        ]


@given(arrays)
def test_any_array_survives(array: Any) -> None:
    reader = Reader(stream(array))
    back = reader.tensor("x")
    reader.end()
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 3))
def test_any_lod_and_any_rows_survive(lengths: list[int], width: int) -> None:
    array = np.arange(sum(lengths) * width, dtype="float32").reshape(sum(lengths), width)
    back = Reader(stream(LoDTensor(array, lengths_to_lod([lengths])))).tensor("x")
    assert back.recursive_sequence_lengths() == [lengths]
    rows = SelectedRows(np.arange(len(array))[::-1].copy(), array, 99)
    again = Reader(stream(rows)).selected_rows("x")
    assert (again.rows.tolist(), again.height) == (rows.rows.tolist(), 99)
    assert again.value.tobytes() == array.tobytes()


@given(st.data())
@settings(max_examples=200)
def test_a_truncated_stream_is_refused_with_tensor_and_offset(data: Any) -> None:
    whole = data.draw(
        st.sampled_from([(RECORDED / "streams" / "lod"), (RECORDED / "vars" / "fc_0.w_0")])
    ).read_bytes()
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(FormatError) as caught:
        Reader(part, "some/file").tensor("w")
    assert "some/file" in str(caught.value)
    assert "'w'" in str(caught.value)
    assert caught.value.offset is not None


@given(st.binary(min_size=1, max_size=40))
def test_bytes_that_follow_are_refused(extra: bytes) -> None:
    reader = Reader(stream(np.zeros(3)) + extra)
    reader.tensor("x")
    with pytest.raises(FormatError, match="follow"):
        reader.end()


@given(st.data())
@settings(max_examples=200)
def test_a_flipped_byte_never_crashes(data: Any) -> None:
    """Without a checksum in the format a flip in the data is invisible; one in a header is not."""
    whole = bytearray((RECORDED / "streams" / "lod").read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        reader = Reader(bytes(whole))
        value = reader.tensor("x")
        reader.end()
    except FormatError:
        return
    assert value.array.nbytes == 96


@given(st.data())
@settings(max_examples=100)
def test_a_damaged_program_is_refused_or_still_a_program(data: Any) -> None:
    whole = bytearray((RECORDED / "inference" / "__model__").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        program = from_bytes(bytes(whole[: data.draw(st.integers(1, len(whole)))]))
    except FormatError:
        return
    assert from_bytes(to_bytes(program)).num_blocks == program.num_blocks


def _described(edit: Any) -> bytes:
    program = Program()
    block = program.global_block()
    for name, size in {"some": 2, "more": 2, "last": 3}.items():
        block.create_var(name=name, shape=[size], dtype="float32")
    block.append_op(type="relu", inputs={"X": "some"}, outputs={"Out": "more"})
    data: bytes = edit(to_bytes(program))
    return data


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.replace(b"some", b"som\xf3"), "is not UTF-8"),
        (lambda data: data.replace(b"last", b"some"), "'some' has the shape"),
    ],
)
def test_names_of_a_program_are_text_and_declare_one_variable(edit: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_bytes(_described(edit))

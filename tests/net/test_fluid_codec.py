"""Fluid's messages: protobuf reads what is written, and damage is always a FormatError."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.arrays.values import LoDTensor, SelectedRows
from bireme.errors import FormatError
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.protos.transport_pb2 import VariableMessage

DTYPES = st.sampled_from("bool int16 int32 int64 float16 float32 float64 uint8 int8".split())
TEXT = st.text(max_size=12)


@st.composite
def variables(draw: st.DrawFn) -> Variable:
    dtype, rows, width = draw(DTYPES), draw(st.integers(0, 5)), draw(st.integers(1, 3))
    value: Any = np.arange(rows * width).reshape(rows, width).astype(dtype)
    kind = draw(st.sampled_from(["dense", "rows", "lod", "none"]))
    if kind == "rows":
        value = SelectedRows(np.arange(rows, dtype=np.int64)[::-1].copy(), value, 40)
    elif kind == "lod":
        value = LoDTensor(value, (np.array([0, rows], np.int64), np.arange(rows + 1)))
    name, out_name, table = draw(TEXT), draw(TEXT), draw(TEXT)
    trainer = draw(st.integers(0, 1 << 40))
    held = None if kind == "none" else value
    return Variable(name, out_name, table, trainer, draw(st.integers(0, 2)), held)


def same_value(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(a, SelectedRows):
        whole = np.array_equal(a.rows, b.rows) and a.height == b.height
        return whole and same_value(a.value, b.value)
    if isinstance(a, LoDTensor):
        return a.lod() == b.lod() and same_value(a.array, b.array)
    return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b))


@given(variables())
def test_a_message_comes_back(sent: Variable) -> None:
    got = decode_variable(encode_variable(sent))
    assert same_value(got.value, sent.value)
    assert (got.name, got.out_name, got.table) == (sent.name, sent.out_name, sent.table)
    assert (got.trainer, got.profile) == (sent.trainer, sent.profile)


@given(variables())
def test_protobuf_reads_what_we_write_and_we_read_what_it_writes(sent: Variable) -> None:
    message = VariableMessage.FromString(encode_variable(sent))
    assert message.varname == sent.name
    assert message.trainer_id == sent.trainer
    got = decode_variable(message.SerializeToString())
    assert same_value(got.value, sent.value)


def test_the_header_of_a_reply_is_what_fluid_writes() -> None:
    message = encode_variable(Variable(name="w", value=np.zeros(512, np.float32)))
    assert message[:13].hex(" ") == "0a 01 77 18 05 22 02 80 04 42 80 10 00"


@given(st.binary(max_size=60))
def test_noise_is_a_format_error_or_a_message(noise: bytes) -> None:
    with contextlib.suppress(FormatError):
        assert isinstance(decode_variable(noise), Variable)


@pytest.mark.parametrize("dims", [[-1], [3, 3], [1 << 62, 4]])
def test_dims_that_do_not_fit_the_payload_are_refused(dims: list[int]) -> None:
    message = VariableMessage(varname="g", data_type=5, dims=dims, serialized=bytes(16))
    with pytest.raises(FormatError):
        decode_variable(message.SerializeToString())


def test_row_ids_must_match_the_rows() -> None:
    message = VariableMessage(
        varname="g", type=1, data_type=5, dims=[2, 2], serialized=bytes(16), rows=bytes(8)
    )
    with pytest.raises(FormatError, match="row ids"):
        decode_variable(message.SerializeToString())

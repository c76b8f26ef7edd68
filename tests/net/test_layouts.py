"""Payloads described once: what both sides work out about them agrees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.arrays.values import SelectedRows
from bireme.errors import FormatError
from bireme.net.layouts import describe, layout_of, read_layout
from bireme.net.messages import Tensor

kinds = st.tuples(
    st.sampled_from("int8 float32 float64".split()),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
)
payloads = st.lists(kinds, max_size=8).map(
    lambda found: tuple(Tensor(f"t{i}", *kind) for i, kind in enumerate(found))
)


@given(payloads)
def test_what_is_described_is_read_and_parts_do_not_overlap(tensors: tuple[Tensor, ...]) -> None:
    layout = layout_of(tensors)
    assert read_layout(layout.encoded).tensors == tensors
    assert read_layout(layout.encoded).parts == layout.parts
    end = 0
    for part in layout.parts:
        assert part.begin >= end
        assert part.begin % np.dtype(part.dtype).itemsize == 0
        end = part.begin + part.size
    assert layout.aligned_size >= end


@given(payloads)
def test_values_are_put_where_they_are_looked_for(tensors: tuple[Tensor, ...]) -> None:
    rs = np.random.RandomState(1)
    values = {t.name: rs.randint(0, 99, t.shape).astype(t.dtype) for t in tensors}
    layout, arrays = describe(values)
    memory = np.zeros(layout.aligned_size + 8, np.uint8)
    layout.fill(memory[8:], arrays)
    found = layout.views(memory, 8)
    assert all(np.array_equal(found[name], value) for name, value in values.items())
    sent = b"".join(bytes(section) for section in layout.sections(arrays))
    assert sent == b"".join(value.tobytes() for value in values.values())


def test_equal_payloads_are_known_again() -> None:
    one, _ = describe({"a": np.zeros((2, 3), np.float32)})
    two, _ = describe({"a": np.ones((2, 3), np.float32)})
    other, _ = describe({"a": np.ones((3, 2), np.float32)})
    assert one is two
    assert one is not other
    assert read_layout(one.encoded) is read_layout(bytes(bytearray(one.encoded)))


def test_rows_and_lod_are_not_expected_again() -> None:
    rows = SelectedRows(np.array([1, 5]), np.ones((2, 3), np.float32), 9)
    layout, parts = describe({"g": rows})
    assert not layout.steady
    assert len(parts) == 2


def test_small_tensors_of_one_dtype_are_copied_together() -> None:
    layout, _ = describe({f"t{i}": np.zeros(10, np.float32) for i in range(50)})
    assert [(run.first, run.last) for run in layout.runs] == [(0, 50)]


def test_a_tensor_that_is_named_twice_is_refused() -> None:
    encoded = layout_of((Tensor("a", "int8", (1,)), Tensor("a", "int8", (1,)))).encoded
    with pytest.raises(FormatError, match="duplicate tensor"):
        read_layout(encoded)

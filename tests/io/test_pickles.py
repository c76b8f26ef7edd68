"""Pickles of arrays: what others wrote loads, and what is hostile costs nothing."""

import io
import pickle
import struct
import tracemalloc
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError
from bireme.io.pickles import dump_arrays, load_arrays

LARGE = 1 << 31


class Asks:
    """Pickles as a call of `what` with `arguments`."""

    def __init__(self, what: Any, *arguments: Any) -> None:
        self.asked = what, arguments

    def __reduce__(self) -> Any:
        return self.asked


def asking(*asked: Any) -> bytes:
    return pickle.dumps({"w": Asks(*asked)}, 2)


def rebuilt(state: Any) -> bytes:
    """An array that is made empty and given this state."""

    class Empty:
        def __reduce__(self) -> Any:
            return np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), state

    return pickle.dumps({"w": Empty()}, 2)


SCALAR = np.float64(1).__reduce__()[0]
FLOAT = np.dtype("<f4")
HOSTILE = {
    "a bytearray of a length": asking(bytearray, LARGE),
    "a bytearray of a length without its bytes": b"\x80\x05\x96" + struct.pack("<Q", LARGE) + b".",
    "bytes of a length without them": b"\x80\x04\x8e" + struct.pack("<Q", LARGE) + b".",
    "an object of a large number": b"\x80\x02}r" + struct.pack("<I", LARGE >> 4) + b".",
    "an object of a large number, in digits": b"}p%d\n." % (LARGE >> 4),
    "an array of a shape": asking(np.ndarray, (LARGE,), "u1"),
    "an array of a shape with too few bytes": asking(np.ndarray, (LARGE,), "u1", bytearray(b"x")),
    "a state of a shape with too few bytes": rebuilt((1, (LARGE,), FLOAT, False, b"x")),
    "a state of objects": rebuilt((1, (1,), np.dtype("O"), False, [LARGE])),
    "a scalar without its bytes": asking(SCALAR, np.dtype(f"V{LARGE - 1}"), None),
    "bytes by another encoding": asking(__import__("_codecs").encode, "x", "utf-32"),
    "lists in lists": pickle.dumps({"w": [[1.0]]}),
    "a list": pickle.dumps([1.0]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused_before_it_takes_memory(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.pdparams").write_bytes(HOSTILE[kind])
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="not a pickled dict of arrays"):
            fluid.io.load_program_state(str(tmp_path / "model"))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


ARRAYS: dict[str, Any] = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "none": np.zeros((0, 3)),
    "single": np.float32(2.5),
    "bits": np.array([True, False]),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("made", [dict, OrderedDict])
def test_arrays_of_every_protocol_come_back(protocol: int, made: Any) -> None:
    found = load_arrays(pickle.dumps(made(ARRAYS), protocol), "latin1")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_what_is_written_here_is_read_here_and_by_python() -> None:
    file = io.BytesIO()
    dump_arrays(file, {"w": ARRAYS["matrix"]})
    for found in (load_arrays(file.getvalue(), "latin1"), pickle.loads(file.getvalue())):
        assert np.array_equal(found["w"], ARRAYS["matrix"])

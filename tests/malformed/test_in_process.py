"""Damaged input of every kind is refused with an error of ours, takes up no memory that lasts, and
valid input works afterwards. `make malformed` tries a hundred times as many.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from bireme.arrays.values import LoDTensor
from bireme.errors import FormatError, ProtocolError
from bireme.net import messages as m
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.frames import HEAD, frame
from bireme.pserver.journal.records import Begin, Known, Left, Round, read_record, written_record
from tests.support.frames import begin_frame

from .hunting import KEPT, PEAK, hunt
from .kinds import KINDS, NUMBERED, RECORDS, Kind, kinds, sealed

COUNT = 100  # times a kind's weight


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kind]]:
    with kinds(tmp_path_factory.mktemp("malformed")) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_input_is_refused_and_leaves_nothing_behind(
    made: dict[str, Kind], kind: str
) -> None:
    found = hunt(made[kind], COUNT * made[kind].weight, seed=1)
    assert not found.raw
    assert found.refused > found.tried // 4
    assert found.kept < KEPT
    assert found.peak < PEAK


def test_all_kinds_are_named(made: dict[str, Kind]) -> None:
    assert tuple(made) == KINDS


# -- what was found so -------------------------------------------------------------------------
@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_a_record_that_is_cut_is_refused(cut: int) -> None:
    data = b"".join(written_record(Round(1, (1,), (), (), ()), {"w": np.ones(4)}))
    with pytest.raises(FormatError):
        read_record(data[:cut])


def test_a_record_whose_names_are_not_text_is_refused() -> None:
    with pytest.raises(FormatError, match="record"):
        read_record(RECORDS[0].replace(b"start", b"st\xff\xffx"))


@pytest.mark.parametrize("record", [Left(3), Round(1, (), (), (), ((3, 7, 1),))])
def test_a_record_of_a_trainer_that_never_joined_is_refused(record: Left | Round) -> None:
    with pytest.raises(FormatError, match="trainer 3, which has not joined"):
        Known.at(Begin("start", 0, (5,), (), 3)).add(record, {})


@pytest.mark.parametrize("shape", [b"", b"\x22\x02\x02\x02"])
def test_row_ids_beside_a_value_without_rows_are_refused(shape: bytes) -> None:
    value = b"\x10\x01\x18\x05" + shape + b"\x42\x04\0\0\0\0\x4a\x08" + bytes(8)
    with pytest.raises(FormatError):
        decode_variable(value)


def test_a_lod_that_does_not_fit_its_value_is_refused() -> None:
    lod = (np.array([0, 2, 9]),)
    wrong = encode_variable(Variable(name="x", value=LoDTensor(np.ones((3, 2)), lod)))
    with pytest.raises(FormatError, match="LoD"):
        decode_variable(wrong)


def test_an_answer_that_is_none_is_refused() -> None:
    from bireme.collective.register import read_answer

    with pytest.raises(ProtocolError, match="rank 0"):
        read_answer(b"\x93\xa1")


def test_a_frame_that_announces_more_than_it_brings_gets_no_memory() -> None:
    import tracemalloc

    header = bytes(frame(m.Push(**NUMBERED))[0])[HEAD:]
    tensor = m.Tensor("w", "float32", (1 << 38,))
    data = sealed(header, msgspec.msgpack.encode((tensor,)), b"")
    tracemalloc.start()
    try:
        for _ in range(1000):
            with pytest.raises(FormatError, match="FLAGS_rpc_frame_mb"):
                begin_frame(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()

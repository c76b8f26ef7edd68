"""The sum of a round's gradients stands for them, bit for bit."""

from itertools import product
from typing import Any

import numpy as np
import pytest

import bireme.ops  # noqa: F401  # the rows
from bireme.arrays.values import SelectedRows
from bireme.errors import FormatError
from bireme.ir import Program
from bireme.pserver.journal.records import (
    Begin,
    Gathered,
    Joined,
    Known,
    KnownTrainer,
    Left,
    Round,
    read_record,
)
from bireme.pserver.journal.records import written_record as written
from bireme.pserver.journal.round_payloads import RoundPayloads
from bireme.pserver.rules.server_spec import Settings

AWKWARD = [0.0, -0.0, 1.5, -1.5, np.inf, 1e-45, 3e38]
NAMES = ("g.trainer_0", "g.trainer_1", "g.trainer_2")


def payloads() -> RoundPayloads:
    """A server whose only block adds the gradients of three trainers."""
    program = Program()
    outer = program.global_block()
    for name in (*NAMES, "g"):
        outer.create_var(name=name, shape=(len(AWKWARD) ** 3,), dtype="float32")
    block = program.add_block(0)
    block.append_op(type="sum", inputs={"X": list(NAMES)}, outputs={"Out": ["g"]})
    settings = Settings(blocks=(block.idx,), gradients=dict.fromkeys(NAMES, block.idx))
    return RoundPayloads(program, settings)


def columns() -> dict[str, Any]:
    rows = np.array(list(product(AWKWARD, repeat=3)), np.float32)
    return dict(zip(NAMES, rows.T.copy(), strict=True))


@pytest.mark.parametrize("absent", [(), NAMES[:1], NAMES[1:2], NAMES[1:]])
def test_terms_add_up_to_what_they_stand_for(absent: tuple[str, ...]) -> None:
    given = {name: value for name, value in columns().items() if name not in absent}
    zero = np.zeros(len(AWKWARD) ** 3, np.float32)
    with np.errstate(all="ignore"):
        expected = sum_of([given.get(name, zero) for name in NAMES])
        kept, missing, summed = payloads().summed(given, absent)
        assert (list(kept), missing, summed) == ([NAMES[0]], (), (NAMES[0],))
        terms = payloads().terms({NAMES[0]: kept[NAMES[0]].copy()}, summed)
        found = sum_of([terms[name] for name in NAMES])
    assert found.tobytes() == expected.tobytes()


def sum_of(terms: list[Any]) -> Any:
    """As the operator computes it."""
    total = np.add(terms[0], terms[1])
    for term in terms[2:]:
        total = np.add(total, term)
    return total


def test_rows_and_incomplete_sums_are_kept_as_they_are() -> None:
    rows = SelectedRows(np.array([1]), np.ones((1, 2), np.float32), 5)
    given = {NAMES[0]: rows, NAMES[1]: rows, NAMES[2]: rows}
    assert payloads().summed(given, ()) == (given, (), ())
    alone = {NAMES[0]: columns()[NAMES[0]]}
    assert payloads().summed(alone, ("other",)) == (alone, ("other",), ())


# -- records -----------------------------------------------------------------------------------
def test_a_record_comes_back_with_its_payload() -> None:
    barriers = ((0, 11, 4), (1, 12, 5))
    record = Round(3, (1, 2), ("a",), ("b",), barriers)
    rows = SelectedRows(np.array([4, 4, 1]), np.arange(6, dtype="float32").reshape(3, 2), 9)
    values = {"dense": np.arange(5.0), "rows": rows, "none": np.empty((0, 3), "int64")}
    found, payload = read_record(b"".join(written(record, values)))
    assert found == record
    assert payload["dense"].tobytes() == np.arange(5.0).tobytes()
    np.testing.assert_array_equal(payload["rows"].rows, rows.rows)
    np.testing.assert_array_equal(payload["rows"].value, rows.value)
    assert payload["none"].shape == (0, 3)
    assert read_record(b"".join(written(Left(1)))) == (Left(1), {})


def test_what_records_add_up_to() -> None:
    known = Known()
    for record in (Joined(0, 11, True), Joined(1, 12, False), Joined(0, 11, True)):
        known.add(record, {})
    known.add(Round(1, (1,), (), (), ((0, 11, 4), (1, 12, 7))), {})
    known.add(Gathered(((0, 11, 5), (1, 12, 8))), {"0 x": np.ones(1)})
    known.add(Left(1), {})
    assert known.version == 1
    assert [
        (t.number, t.incarnation, t.beats, t.left, t.next) for t in known.trainers.values()
    ] == [
        (0, 11, True, False, 6),
        (1, 12, False, True, 9),
    ]
    assert known.gathered[0][1].sequence == 8


def test_what_was_shared_earlier_takes_back_no_call() -> None:
    """A log begins with what trainers have shared, however long ago."""
    known = Known.at(Begin("start", 9, (5,), (KnownTrainer(0, 11, next=50),), 3))
    known.add(Gathered(((0, 11, 10),)), {"0 x": np.ones(1)})
    assert known.trainers[0].next == 50


def test_a_round_that_is_recorded_twice_or_is_missing_is_refused() -> None:
    known = Known.at(Begin("start", 3, (5,), (KnownTrainer(0, 11),), 3))
    known.add(Round(4, (1,), (), (), ()), {})
    for number in (4, 6):
        with pytest.raises(FormatError, match=f"round {number} follows round 4"):
            known.add(Round(number, (1,), (), (), ()), {})


def test_a_log_of_another_life_is_refused() -> None:
    """Of two servers that have written to one folder."""
    known = Known.at(Begin("start", 3, (5, 6), (), 3))
    known.add(Begin("", 3, (5, 6, 7), (), 3), {})
    with pytest.raises(FormatError, match="another server"):
        known.add(Begin("", 3, (5, 8), (), 3), {})

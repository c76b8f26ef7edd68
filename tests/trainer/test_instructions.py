"""What the communication operators say, read from operators alone."""

from typing import Any

import pytest

from bireme.errors import ProgramError, UnsupportedError
from bireme.ir import Operator, Program
from bireme.trainer.instructions import (
    Barrier,
    Fetch,
    LookUp,
    Part,
    Receive,
    Send,
    read_instructions,
    trainer_of,
)


def op(kind: str, ins: Any = (), outs: Any = (), **attrs: Any) -> Operator:
    slots = {"X": tuple(ins)} if ins else {}
    return Operator(kind, slots, {"Out": tuple(outs)}, attrs)


def only(operator: Operator) -> Any:
    (route,) = read_instructions([operator])
    return route


def test_slices_go_to_their_servers_under_their_own_names() -> None:
    route = only(op("send", ["g.block0", "g.block1"], epmap=("a", "b"), sections=()))
    assert route == Send((Part("g.block0", "a", "g.block0"), Part("g.block1", "b", "g.block1")))


def test_a_runtime_split_cuts_the_gradient_by_rows() -> None:
    given = {"epmap": ("a", "b"), "sections": (3, 2), "send_varnames": ("g.block0", "g.block1")}
    route = only(op("send", ["g"], **given))
    assert route == Send((Part("g", "a", "g.block0", 0, 3), Part("g", "b", "g.block1", 3, 5)), True)


def test_a_runtime_split_in_one_piece_sends_the_whole() -> None:
    route = only(op("send", ["g"], epmap=("a",), sections=(7,), send_varnames=("g",)))
    assert route == Send((Part("g", "a", "g"),), queued=True)


def test_the_step_counter_goes_to_every_server_with_its_suffix() -> None:
    name = "@LR_DECAY_COUNTER@.trainer_1"
    for wire_names in ((), ("@LR_DECAY_COUNTER@",)):
        route = only(op("send", [name], epmap=("a", "b"), send_varnames=wire_names))
        assert route == Send((Part(name, "a", name), Part(name, "b", name)))


def test_received_slices_are_variables_of_their_own_or_parts_of_one() -> None:
    separate = read_instructions([op("recv", outs=["w.block0", "w.block1"], epmap=("a", "b"))])
    assert separate == (
        Receive((Part("w.block0", "a", "w.block0"),)),
        Receive((Part("w.block1", "b", "w.block1"),)),
    )
    names = ("w.block0", "w.block1")
    together = only(op("recv", outs=["w"], epmap=("a", "b"), recv_varnames=names))
    assert together == Receive((Part("w", "a", "w.block0"), Part("w", "b", "w.block1")))


def test_a_recv_that_is_not_to_run_asks_for_nothing() -> None:
    assert read_instructions([op("recv", outs=["w"], epmap=("a",), do_not_run=1)]) == ()


def test_barriers_name_their_servers() -> None:
    found = read_instructions(
        [
            op("send_barrier", endpoints=("a", "b"), half_async=False),
            op("send_barrier", endpoints=("a",), half_async=True),
            op("fetch_barrier", endpoints=("a", "b")),
        ]
    )
    assert found == (Barrier(("a", "b"), True), Barrier(("a",), False), Fetch(("a", "b")))


def test_a_look_up_knows_which_rows_lie_where() -> None:
    operator = Operator(
        "distributed_lookup_table",
        {"Ids": ("ids",), "W": ("t",)},
        {"Outputs": ("rows",)},
        {
            "table_names": ("t.block0", "t.block1"),
            "height_sections": (6, 4),
            "endpoints": ("a", "b"),
            "padding_idx": 2,
            "lookup_table_version": "lookup_table_v2",
        },
    )
    shards = (Part("t", "a", "t.block0", 0, 6), Part("t", "b", "t.block1", 6, 10))
    assert only(operator) == LookUp(("ids",), ("rows",), shards, 2, False, 10)


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ProgramError, match="differ in length"):
        only(op("send", ["g", "h", "i"], epmap=("a", "b")))


def test_an_operator_without_servers_is_refused() -> None:
    with pytest.raises(ProgramError, match="epmap names no server"):
        only(op("send", ["g"], epmap=()))


def test_an_operator_of_the_old_tables_is_refused_with_the_alternative() -> None:
    with pytest.raises(UnsupportedError, match="is_sparse=True"):
        only(op("prefetch", ["ids"], epmap=("a",)))


def test_the_trainer_is_known_from_recv_not_from_send() -> None:
    program = Program()
    block = program.global_block()
    block.append(op("send", ["g"], epmap=("a",), trainer_id=0))
    assert trainer_of(program) == 0
    block.append(op("recv", outs=["w"], epmap=("a",), trainer_id=3))
    assert trainer_of(program) == 3

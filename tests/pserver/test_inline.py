"""Who does the work of an instruction: the event loop what is small, the worker the rest, so that
no heartbeat waits behind a large copy. Bytes decide, not how long the last one of its kind took.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import Program
from bireme.net import messages as m
from bireme.net.carriers import answers
from bireme.net.frames import encode, frame, pieces_of
from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.footprint import Footprint, footprints, together
from bireme.pserver.rules.server_spec import Settings, read_settings
from bireme.pserver.shell.server import INLINE, Server
from bireme.pserver.store.updates import Updates
from tests.support.cluster import LIMITS, descending, tiny_server
from tests.support.job import Job
from tests.trainer.test_tables import model

from .core_driver import barrier, hello, look_up, pull, push, share

MILLION = 1_000_000


async def looked_up(service: Server, sequence: int, ids: int) -> None:
    """One look-up of so many rows, answered."""

    async def pieces() -> AsyncIterator[bytes]:
        said = m.Lookup(trainer=0, incarnation=1, sequence=sequence, step=0, answer=True)
        for piece in pieces_of(frame(said, {"w": np.zeros(ids, np.int64)})):
            yield piece

    async for _ in answers(service.connect(), pieces()):
        pass


def test_a_large_look_up_after_small_ones_leaves_the_event_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program, scope = tiny_server(trainers=1)
    settings = read_settings(program.global_block().ops[0], program)
    updates = Updates(program, settings, scope, descending(program, scope))
    service = Server(Core(settings, LIMITS), updates)
    rows, on_the_loop = updates.rows, []

    def watched(table: str, ids: np.ndarray) -> np.ndarray:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        found: np.ndarray = rows(table, ids)
        return found

    monkeypatch.setattr(updates, "rows", watched)

    async def talk() -> None:
        await service.call(encode(m.Hello(trainer=0, incarnation=1)))
        for sequence, ids in enumerate([10, 10, MILLION, 10], 1):
            await looked_up(service, sequence, ids)

    asyncio.run(talk())
    service.close()
    assert on_the_loop == [True, True, False, True]


def core(touches: dict[int, Footprint], mode: int = 0) -> Core:
    gradients = {"w@GRAD.trainer_0" if mode == 0 else "w@GRAD": 1}
    settings = Settings(blocks=(1,), mode=mode, gradients=gradients, touched=touches)
    made = Core(settings, LIMITS)
    made.handle(hello(1, 0, 1))
    return made


def answer(made: Core, event: e.Event) -> e.Answer:
    (reply,) = [out for out in made.handle(event) if isinstance(out, e.Reply)]
    return reply.answer


@pytest.mark.parametrize("size", [0, INLINE, INLINE + 1])
def test_an_answer_says_how_many_bytes_are_read_for_it(size: int) -> None:
    made = core({}, mode=1)
    for event in (
        pull(2, e.Call(0, 1, 1), ("w",), True, size),
        look_up(3, e.Call(0, 1, 2), ("w",), size),
        share(4, e.Call(0, 1, 3), 1, size),
    ):
        found = answer(made, event)
        assert isinstance(found, e.Send | e.Shared)
        assert found.size == size


@pytest.mark.parametrize("mode", [0, 1])
def test_an_update_says_how_many_bytes_it_touches(mode: int) -> None:
    made = core({1: Footprint(100, 3)}, mode)
    name = "w@GRAD.trainer_0" if mode == 0 else "w@GRAD"
    applied = []
    for step in range(2):
        out = [*made.handle(push(2, e.Call(0, 1, 2 * step + 1), step, (name,), 7))]
        if mode == 0:
            out += made.handle(barrier(3, e.Call(0, 1, 2 * step + 2), step))
        applied += [found for found in out if isinstance(found, e.Apply)]
        made.handle(e.Applied(applied[-1].number))
        if mode == 1:
            made.handle(pull(4, e.Call(0, 1, 2 * step + 2), ("w",)))
    assert [a.size for a in applied] == [121, 121]
    assert [a.first for a in applied] == [True, False]


def sgd() -> Any:
    return fluid.optimizer.SGD(0.1)


def adam() -> Any:
    return fluid.optimizer.Adam(0.1)


def server_program(shape: list[int], optimizer: Callable[[], Any]) -> Program:
    transpiler, *_ = Job(model(shape, optimizer), servers=1).transpiled()
    program: Program = transpiler.get_pserver_program("127.0.0.1:7000")
    return program


def cost(shape: list[int], optimizer: Callable[[], Any], payload: int) -> int:
    """What the update of an embedding of this shape touches."""
    program = server_program(shape, optimizer)
    blocks = [ref.idx for ref in program.global_block().ops[-1].attrs["optimize_blocks"]]
    known = footprints(program, blocks)
    cost = together(known, blocks)
    return cost.fixed + cost.rows * payload


def test_rows_cost_what_was_pushed_not_what_the_table_holds() -> None:
    assert cost([MILLION, 4], sgd, 1000) < 100_000
    assert cost([-1, 4], sgd, 1000) < 100_000
    assert cost([-1, 4], sgd, MILLION) > MILLION


def test_what_moves_every_row_costs_all_of_them() -> None:
    assert cost([MILLION, 4], adam, 1000) > 3 * MILLION * 16

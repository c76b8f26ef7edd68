"""When a trainer counts as disconnected, and whose key a connection presents."""

import asyncio
import os
import subprocess

import pytest

from bireme.net.processes import UNKNOWN, ProcessId, Watched, host_id
from bireme.pserver.shell.connections import Connections

LIFE, OTHER = (1, 7), (0, 7)


def _ignored(life: tuple[int, int]) -> None:
    pass


def test_the_last_of_a_trainers_connections_counts() -> None:
    reset: list[tuple[int, int]] = []
    connections = Connections(reset.append, reset.append)
    first, second = connections.open(None), connections.open(None)
    for opened in (first, second):
        opened.belongs(LIFE)
        opened.belongs(LIFE)
    first.end(reset=True)
    assert not reset
    second.end(reset=True)
    assert reset == [LIFE]


def test_an_end_in_order_is_no_reset() -> None:
    reset: list[tuple[int, int]] = []
    opened = Connections(reset.append, reset.append).open(None)
    opened.belongs(LIFE)
    opened.end(reset=False)
    assert not reset


def test_a_key_tells_the_trainer_before_its_first_frame() -> None:
    reset: list[tuple[int, int]] = []
    connections = Connections(reset.append, reset.append)
    keys = [connections.key_for(life) for life in (LIFE, OTHER)]
    assert connections.key_for(LIFE) == keys[0] != keys[1]
    opened = connections.open(None)
    assert opened.admit(keys[0])
    opened.end(reset=True)
    assert reset == [LIFE]


def test_a_strangers_key_is_not_admitted_and_its_end_means_nothing() -> None:
    reset: list[tuple[int, int]] = []
    opened = Connections(reset.append, reset.append).open(None)
    assert not opened.admit(b"?" * 16)
    opened.end(reset=True)
    assert not reset


def test_an_ended_process_is_told_of_once_and_at_once() -> None:
    died: list[tuple[int, int]] = []

    async def watch() -> None:
        child = subprocess.Popen(["sleep", "600"])
        told = asyncio.Event()
        connections = Connections(_ignored, lambda life: (died.append(life), told.set()))  # type: ignore[func-returns-value]
        for _ in range(2):
            connections.watch(LIFE, ProcessId(host_id(), child.pid))
        child.kill()
        await asyncio.wait_for(told.wait(), 30)
        child.wait()
        await asyncio.sleep(0)
        connections.close()

    asyncio.run(watch())
    assert died == [LIFE]


def test_a_process_that_has_ended_before_it_is_watched_is_told_of() -> None:
    died: list[tuple[int, int]] = []

    async def watch() -> None:
        child = subprocess.Popen(["true"])
        child.wait()
        connections = Connections(_ignored, died.append)
        connections.watch(LIFE, ProcessId(host_id(), child.pid))
        await asyncio.sleep(0)
        connections.close()

    asyncio.run(watch())
    assert died == [LIFE]


@pytest.mark.parametrize(
    "process", [UNKNOWN, ProcessId("another host", 1), ProcessId(host_id(), os.getpid())]
)
def test_processes_that_are_out_of_sight_are_never_known_to_have_ended(process: ProcessId) -> None:
    watched = Watched(process)
    assert watched.fileno() == -1
    assert not watched.ended
    watched.close()


def test_everybody_hangs_up_once_the_job_has_failed() -> None:
    ended: list[str] = []
    connections = Connections(_ignored, _ignored)
    connections.open(lambda: ended.append("a"))
    connections.open(lambda: ended.append("b")).end(reset=False)
    connections.open(None)
    connections.hang_up()
    assert ended == ["a"]

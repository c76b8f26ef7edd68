"""Ranks as processes: killed, frozen, failing and leaving. The others always end, and say why."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.wire

SCRIPT = Path(__file__).with_name("rank_script.py")
TRAINER = Path(__file__).with_name("trainer_script.py")
HEARTBEAT = 2.0  # where silence is what tells
NEVER = 2 * PATIENCE  # where a connection's end is


@contextmanager
def ranks(
    size: int, port: int, payload: str, mode: str, heartbeat: float = NEVER
) -> Iterator[list[subprocess.Popen[str]]]:
    words = [[rank, size, port, payload, heartbeat, mode] for rank in range(size)]
    with started(SCRIPT, words, heartbeat) as processes:
        yield processes


@contextmanager
def started(
    script: Path, arguments: Sequence[Sequence[object]], heartbeat: float = NEVER
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process per list of arguments, once all say that they run; killed at the end."""
    flags = {"OMP_NUM_THREADS": "1", "FLAGS_heartbeat_seconds": str(heartbeat)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **flags},
        )
        for words in arguments
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("payload", ["auto", "sockets"])
def test_a_killed_rank_is_named_by_all_others(free_port, payload, victim):
    with ranks(3, free_port(), payload, "run") as processes:
        processes[victim].send_signal(signal.SIGKILL)
        for rank, process in enumerate(processes):
            if rank != victim:
                code, errors = ending(process)
                assert code == 1
                assert f"PeerLost: rank {victim}" in errors


def test_a_frozen_rank_is_named_for_its_silence(free_port):
    with ranks(3, free_port(), "auto", "run", HEARTBEAT) as processes:
        processes[1].send_signal(signal.SIGSTOP)
        for rank in (0, 2):
            code, errors = ending(processes[rank])
            assert code == 1
            assert "PeerLost: rank 1 of 3 is lost: silent" in errors


def test_a_rank_that_raises_tells_the_others_what(free_port):
    with ranks(3, free_port(), "auto", "raise") as processes:
        for rank in (0, 2):
            code, errors = ending(processes[rank])
            assert code == 1
            assert "rank 1 of 3 is lost: ValueError: the loss is not a number" in errors


def test_ranks_that_are_done_leave_at_once(free_port):
    with ranks(3, free_port(), "auto", "leave") as processes:
        assert [ending(process) for process in processes] == [(0, "")] * 3


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_trainer_is_named_with_the_step(free_port, victim):
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    with started(TRAINER, [[rank, endpoints] for rank in range(3)]) as processes:
        processes[victim].send_signal(signal.SIGKILL)
        for rank, process in enumerate(processes):
            if rank != victim:
                code, errors = ending(process)
                assert code == 1
                assert f"rank {victim} of 3 is lost" in errors
                assert re.search(rf"rank {victim}, step \d+", errors)


@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_an_error_that_leaves_an_executor_is_told_to_the_other_trainers(free_port, error):
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    with started(TRAINER, [[rank, endpoints, error] for rank in range(3)]) as processes:
        for rank in (0, 2):
            code, errors = ending(processes[rank])
            assert code == 1
            assert f"rank 1 of 3 is lost: {error}: the loss is not a number" in errors


def test_a_frozen_rank_0_ends_its_trainers(free_port):
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    with started(TRAINER, [[rank, endpoints] for rank in range(3)], HEARTBEAT) as processes:
        processes[0].send_signal(signal.SIGSTOP)
        for process in processes[1:]:
            code, errors = ending(process)
            assert code == 1
            assert "PeerLost: rank 0 of 3 is lost" in errors


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_is_named_to_ranks_that_compute(free_port, victim):
    """Nobody is in a collective: only the end of its connection tells that a rank is dead."""
    port = free_port()
    words = [[rank, 3, port, "auto", NEVER, "compute"] for rank in range(3)]
    with started(SCRIPT, words) as processes:
        processes[victim].send_signal(signal.SIGKILL)
        for rank, process in enumerate(processes):
            if rank != victim:
                code, errors = ending(process)
                assert code == 1
                assert f"PeerLost: rank {victim} of 3 is lost" in errors

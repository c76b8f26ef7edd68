"""Message passing between processes, and what is refused before any is sent."""

import array
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import bireme.distributed as dist
from bireme.errors import ConfigError, InvalidArgument, UnknownName

SCRIPT = Path(__file__).with_name("rank_script.py")
RANDOM = Path(__file__).with_name("random_script.py")


@pytest.fixture
def alone(free_port) -> Iterator[None]:
    """A job of one process."""
    method = f"tcp://127.0.0.1:{free_port()}"
    dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def outputs(
    commands: list[list[str]],
    environments: list[Mapping[str, str]] | None = None,
    script: Path = SCRIPT,
) -> list[str]:
    """What each process printed; all must end well."""
    extra = environments or [{}] * len(commands)
    started = [
        subprocess.Popen(
            [sys.executable, str(script), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **more},
        )
        for command, more in zip(commands, extra, strict=True)
    ]
    return [process.communicate(timeout=60)[0] for process in started]


def content(size: int) -> list[str]:
    return [f"rank {rank} is content\n" for rank in range(size)]


@pytest.mark.wire
@pytest.mark.parametrize("size", [2, 3])
def test_processes_meet_at_an_address(free_port, size):
    method = f"tcp://127.0.0.1:{free_port()}"
    commands = [[method, str(rank), str(size)] for rank in range(size)]
    assert outputs(commands) == content(size)


@pytest.mark.wire
def test_processes_meet_by_the_environment(free_port):
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environments = [{**where, "RANK": str(rank)} for rank in range(2)]
    assert outputs([["env://"], ["env://"]], environments) == content(2)


@pytest.mark.wire
def test_processes_meet_by_a_file_even_if_an_old_one_is_there(free_port, tmp_path):
    path = tmp_path / "meeting"
    path.write_text(f"127.0.0.1:{free_port()}")
    commands = [[f"file://{path}", str(rank), "3"] for rank in range(3)]
    assert outputs(commands) == content(3)
    assert not path.exists()


@pytest.mark.wire
@pytest.mark.parametrize(
    ("backend", "size", "seed"), [("gloo", 2, 1), ("tcp", 3, 2), ("gloo", 4, 3)]
)
def test_random_calls_agree_with_numpy_and_again_after_a_new_beginning(
    free_port, backend, size, seed
):
    method = f"tcp://127.0.0.1:{free_port()}"
    commands = [[backend, method, str(seed), str(rank), str(size)] for rank in range(size)]
    assert outputs(commands, script=RANDOM) == content(size)


FAILING = """
import sys, numpy as np, bireme.distributed as dist
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
if rank == 1:
    {how}
dist.all_reduce(np.zeros(3))
"""


@pytest.mark.wire
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raise ValueError('the loss is not a number')", "ValueError: the loss is not a number"),
        ("sys.exit(1)", "it exited with code 1|it called sys.exit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "it was ended by SIGTERM"),
    ],
)
def test_an_end_without_order_is_told_to_the_others(free_port, how, cause):
    method = f"tcp://127.0.0.1:{free_port()}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", FAILING.format(how=how), method, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    told = started[0].communicate(timeout=60)[0]
    started[1].communicate(timeout=60)
    assert started[0].returncode == 1
    assert re.search(rf"rank 1 of 2 is lost: ({cause})", told)


def test_a_process_alone_makes_every_call(alone):
    x = np.array([3.0])
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    out = np.empty(1)
    dist.all_gather([out], x)
    assert (out[0], dist.get_rank(), dist.get_world_size()) == (3.0, 0, 1)


def test_memory_of_other_libraries_is_used_in_place(alone):
    class Foreign:
        """Exports by DLPack alone, as tensors of other libraries do."""

        def __init__(self, inner: np.ndarray) -> None:
            self.inner = inner

        def __dlpack__(self, **kwargs: object) -> object:
            return self.inner.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.inner.__dlpack_device__()

    foreign, plain = Foreign(np.ones(3)), array.array("f", [1, 2])
    dist.all_gather([foreign], np.full(3, 7.0))
    dist.all_gather([plain], np.array([8, 9], np.float32))
    assert foreign.inner.tolist() == [7, 7, 7]
    assert plain.tolist() == [8, 9]


@pytest.mark.parametrize("value", [[1.0, 2.0], b"bytes", 3.0])
def test_what_cannot_hold_a_result_is_refused(alone, value):
    with pytest.raises(InvalidArgument):
        dist.all_reduce(value)


def test_calls_before_the_beginning_say_what_to_do():
    for call in (dist.get_rank, dist.barrier, lambda: dist.send(np.zeros(1), 1)):
        with pytest.raises(ConfigError, match="init_process_group"):
            call()


def test_a_second_beginning_is_refused(alone):
    with pytest.raises(ConfigError, match="initialised already"):
        dist.init_process_group("gloo")


def test_sending_to_oneself_is_refused(alone):
    with pytest.raises(ValueError, match="should not be the same as the rank of this process"):
        dist.send(np.zeros(1), dst=0)


def test_lists_of_the_wrong_length_or_shape_are_refused(alone):
    with pytest.raises(InvalidArgument, match="2 arrays for 1 ranks"):
        dist.all_gather([np.zeros(2)] * 2, np.zeros(2))
    with pytest.raises(InvalidArgument, match=r"tensor_list\[0\] is float64\[3\]"):
        dist.all_gather([np.zeros(3)], np.zeros(2))
    with pytest.raises(InvalidArgument, match="must pass gather_list"):
        dist.gather(np.zeros(2))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "gluu"}, UnknownName, "gloo"),
        ({"init_method": "udp://x"}, ConfigError, "file:///"),
        ({"init_method": "env://", "rank": 0, "world_size": 1}, ConfigError, "MASTER_PORT"),
        ({"init_method": "tcp://127.0.0.1:1"}, ConfigError, "RANK is not known"),
        ({"init_method": "tcp://127.0.0.1:1", "rank": 2, "world_size": 2}, ConfigError, "rank 2"),
        ({"init_method": "tcp://nowhere", "rank": 1, "world_size": 2}, ConfigError, "host:port"),
    ],
)
def test_a_wrong_beginning_says_what_is_wrong(monkeypatch, arguments, error, words):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=words):
        dist.init_process_group(**{"backend": "gloo", **arguments})
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([1.0, -1.0], "tensor([ 1., -1.])"),
        ([0.0], "tensor([0.])"),
        ([0.5], "tensor([0.5000])"),
        ([1, 2], "tensor([1, 2])"),
    ],
)
def test_arrays_print_as_in_tutorials(value, wanted):
    assert dist.text(np.array(value)) == wanted

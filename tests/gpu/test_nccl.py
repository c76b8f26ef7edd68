"""The nccl engine on a device: one rank, and two ranks that share it as separate processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from bireme.arrays.places import device_count
from tests.support.waiting import PATIENCE

from ..collective.test_nccl2 import build, train

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.wire,
    pytest.mark.skipif(device_count() == 0, reason="no CUDA device, or no CuPy"),
]


def started(script: str, words: Sequence[Sequence[object]]) -> list[subprocess.Popen[str]]:
    """A process for each list of words; all share the one device."""
    return [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *map(str, given)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **one_device(rank)},
        )
        for rank, given in enumerate(words)
    ]


def one_device(rank: int) -> dict[str, str]:
    """NCCL refuses two ranks on one device of one host, so that each claims a host of its own."""
    here = str(HERE.parent.parent)
    return {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_MAX_CTAS": "2",
        "NCCL_NET_GDR_LEVEL": "LOC",
        "NCCL_CUMEM_ENABLE": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")])),
    }


@pytest.mark.parametrize("size", [1, 2])
def test_every_call_on_a_device(free_port: Callable[[], int], size: int) -> None:
    port = free_port()
    processes = started("nccl_script.py", [[rank, size, port] for rank in range(size)])
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    wanted = [f"rank {rank} is content" for rank in range(size)]
    assert [text.splitlines()[-1] for text in outputs] == wanted, "\n".join(outputs)


def test_a_killed_rank_is_named_by_the_other(free_port: Callable[[], int]) -> None:
    port = free_port()
    processes = started("nccl_script.py", [[rank, 2, port, "die"] for rank in range(2)])
    processes[1].communicate(timeout=200)
    text = processes[0].communicate(timeout=PATIENCE)[0]
    assert processes[0].returncode != 0
    assert "rank 1 of 2 is lost" in text


def test_two_trainers_equal_one_on_the_union_of_batches(
    free_port: Callable[[], int], tmp_path: Path
) -> None:
    endpoints = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    files = [tmp_path / f"{rank}.npz" for rank in range(2)]
    processes = started("trainer_script.py", [[rank, endpoints, files[rank]] for rank in range(2)])
    texts = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
    found = [np.load(file) for file in files]
    for name, value in train(*build()).items():
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)
        np.testing.assert_allclose(found[0][name], value, rtol=1e-4, atol=1e-5, err_msg=name)

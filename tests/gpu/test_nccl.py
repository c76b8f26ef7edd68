"""The nccl engine on a device: one rank, and two ranks that share it as separate processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bireme.runtime.places import device_count

SCRIPT = Path(__file__).with_name("nccl_script.py")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.wire,
    pytest.mark.skipif(device_count() == 0, reason="no CUDA device, or no CuPy"),
]


@pytest.mark.parametrize("size", [1, 2])
def test_every_call_on_a_device(free_port, size):
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(size), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **one_device(rank)},
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert outputs == [f"rank {rank} is content\n" for rank in range(size)], "\n".join(outputs)


def one_device(rank: int) -> dict[str, str]:
    """NCCL refuses two ranks on one device of one host, so that each claims a host of its own."""
    return {
        "NCCL_HOSTID": f"host{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_MAX_CTAS": "2",
        "NCCL_NET_GDR_LEVEL": "LOC",
        "NCCL_CUMEM_ENABLE": "0",
    }

"""One rank as a process: reduces for ever, or ends as its last argument says.

Usage: rank_script.py RANK SIZE PORT PAYLOAD HEARTBEAT [MODE]
"""

import sys
import time

import numpy as np

from bireme.collective import Settings, World


def main(rank: int, size: int, port: str, payload: str, heartbeat: float, mode: str) -> None:
    settings = Settings(heartbeat=heartbeat, timeout=30, payload=payload)
    world = World(rank, size, f"127.0.0.1:{port}", "127.0.0.1:0", settings)
    group = world.group()
    array = np.ones(1 << 20, np.float32)
    for step in range(10**9):
        group.all_reduce(array, "max")
        if step == 3:
            print("running", flush=True)
            if mode == "raise" and rank == 1:
                raise ValueError("the loss is not a number")
            if mode == "leave":
                break
            if mode == "compute":
                compute(world)
    world.close()


def compute(world: World) -> None:
    """Look after the others and call no collective, as a device's watchdog does."""
    for _ in range(10**9):
        world.check()
        time.sleep(0.05)  # a device that computes


if __name__ == "__main__":
    rank, size, port, payload, heartbeat, mode = sys.argv[1:]
    main(int(rank), int(size), port, payload, float(heartbeat), mode)

"""The job of `tests/wire/job.py` in the role that the environment names, or in nccl2 mode.

Usage: matrix_job.py MODE [STEPS]. Run as a script, never collected as a test.
"""

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import bireme as fluid
from bireme.fleet.role_maker import Role

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))
job: Any = importlib.import_module("job")

PAUSE = 0.02  # seconds that a step takes at least


def all_reduce(role: Role, steps: int, loss: Any) -> None:
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    everybody = ",".join(role.trainer_endpoints)
    fluid.DistributeTranspiler(config).transpile(
        role.trainer_id, trainers=everybody, current_endpoint=role.endpoint
    )
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(fluid.default_startup_program())
        for step in range(steps):
            executor.run(feed=job.batch(step, role.trainer_id), fetch_list=[loss])
            time.sleep(PAUSE)  # a step of a larger model


def main(mode: str, steps: int) -> None:
    role = Role.from_env()
    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = 7
    loss = job.model()
    if role.is_collective:
        all_reduce(role, steps, loss)
        return
    given = argparse.Namespace(
        role=role.endpoint if role.is_server else str(role.trainer_id),
        endpoints=",".join(role.servers),
        trainers=role.trainers,
        steps=steps,
        pause=PAUSE,
        mode=mode,
        out="",
        fail=-1,
    )
    if role.is_server:
        job.serve(given)
    else:
        job.train(given, loss)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)

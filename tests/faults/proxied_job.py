"""A job whose result shows every push: parameters go down by what was fed, and by nothing else.

Usage: proxied_job.py MODE ROLE ENDPOINTS TRAINERS FOLDER. ROLE is a server's endpoint, or a
trainer's number. Trainers train until FOLDER/enough exists, and note there how many steps they
made; servers note what their parameters have become. Run as a script, never collected as a test.
"""

import importlib
import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

import bireme as fluid
from bireme import distributed
from bireme.trainer.communicator import Communicator

sys.path.insert(0, str(Path(__file__).parent.parent / "wire"))
job: Any = importlib.import_module("job")

PAUSE = 0.05  # seconds that a step takes at least
PARAMS = ("w", "v")


def fed(step: int, trainer: int) -> Any:
    """What a trainer feeds in a step: sums of these show what is missing, and what came twice."""
    number = 2 * step + trainer + 1
    return np.array([[1, number % 97, number % 89, number % 31]], np.float32)


def model() -> Any:
    x = fluid.data("x", [1, 4], "float32")
    zero = fluid.initializer.Constant(0.0)
    made = [
        fluid.layers.create_parameter([1, 4], "float32", name=name, default_initializer=zero)
        for name in PARAMS
    ]
    sums = [fluid.layers.reduce_sum(fluid.layers.elementwise_mul(x, each)) for each in made]
    loss = fluid.layers.elementwise_add(*sums)
    fluid.optimizer.SGD(learning_rate=1.0).minimize(loss)
    return loss


def serve(given: Namespace, folder: Path) -> None:
    job.serve(given)
    found = {name: fluid.global_scope().find_var(name) for name in PARAMS}
    held = {
        name: np.array(cell.get_tensor()).reshape(-1).tolist()
        for name, cell in found.items()
        if cell is not None and cell.get_tensor()._is_initialized()
    }
    port = given.role.rpartition(":")[2]
    (folder / f"server-{port}.json").write_text(json.dumps(held))


def train(given: Namespace, folder: Path) -> None:
    trainer = int(given.role)
    transpiler = job.transpiled(given, trainer)
    program = transpiler.get_trainer_program()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(fluid.default_startup_program())
        communicator = None
        if given.mode in ("geo", "queued"):
            words = {"push_vars": transpiler.vars_info} if given.mode == "geo" else {}
            more = {"trainers": given.trainers, "push_nums": 3, **words}
            communicator = Communicator(program, 3 if given.mode == "geo" else 1, more)
            communicator.start()
        step = 0
        while not (folder / "enough").exists():
            executor.run(program, feed={"x": fed(step, trainer)})
            step += 1
            print("step", step, flush=True)
            time.sleep(PAUSE)  # a step of a larger model
        if communicator is not None:
            communicator.stop()
    (folder / f"trainer-{trainer}.json").write_text(json.dumps(step))


def reduce_all(given: Namespace, folder: Path) -> None:
    """Ranks that meet at rank 0's register, which is behind the proxy."""
    rank = int(given.role)
    distributed.init_process_group(
        "gloo", f"tcp://{given.endpoints}", rank=rank, world_size=given.trainers
    )
    total, step, over = np.zeros((1, 4), np.float32), 0, np.zeros(1, np.float32)
    while not over[0]:
        moved = fed(step, rank)
        distributed.all_reduce(moved)
        total -= moved
        step += 1
        print("step", step, flush=True)
        over[0] = rank == 0 and (folder / "enough").exists()
        distributed.all_reduce(over)
        time.sleep(PAUSE)  # a step of a larger model
    (folder / f"trainer-{rank}.json").write_text(json.dumps(step))
    held = dict.fromkeys(PARAMS, total.reshape(-1).tolist())
    (folder / f"server-{rank}.json").write_text(json.dumps(held))
    distributed.destroy_process_group()


def main(mode: str, role: str, endpoints: str, trainers: str, folder: str) -> None:
    given = Namespace(mode=mode, role=role, endpoints=endpoints, trainers=int(trainers))
    if mode == "all-reduce":
        reduce_all(given, Path(folder))
        return
    model()
    (serve if ":" in role else train)(given, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

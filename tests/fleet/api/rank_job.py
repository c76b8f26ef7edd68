"""An all-reduce job by Fleet; run by tests, never collected.

    rank_job.py --strategy nccl2|grad_allreduce|local_sgd --out FOLDER [--epochs N] [--fail EPOCH]

Every rank writes its losses and parameters to FOLDER/rank.N.json. With --epochs it saves a
checkpoint after each and goes on from the newest.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import bireme as fluid
from bireme.fleet.api.collective import DistributedStrategy, TrainStatus, fleet
from bireme.fleet.api.role_makers import PaddleCloudRoleMaker

STEPS = 6


def model(rank: int) -> Any:
    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = (
        7 + rank
    )
    x = fluid.data("x", [None, 6], "float32")
    y = fluid.data("y", [None, 1], "float32")
    hidden = fluid.layers.fc(x, size=5, act="tanh")
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))


def batch(step: int, rank: int) -> dict[str, Any]:
    random = np.random.RandomState(100 * step + rank)
    x = random.standard_normal((8, 6)).astype("float32")
    return {"x": x, "y": x[:, :2].sum(axis=1, keepdims=True) + 1}


def strategy_named(name: str) -> DistributedStrategy:
    strategy = DistributedStrategy()
    if name == "grad_allreduce":
        strategy.mode, strategy.collective_mode = "collective", name
    strategy.use_local_sgd = name == "local_sgd"
    return strategy


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="nccl2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--fail", type=int, default=-1)
    given = parser.parse_args()
    fleet.init(PaddleCloudRoleMaker(is_collective=True))
    rank = fleet.worker_index()
    loss = model(rank)  # seeds differ: rank 0's parameters go to all
    optimizer = fluid.optimizer.Momentum(0.1, 0.9)
    fleet.distributed_optimizer(optimizer, strategy_named(given.strategy)).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    losses: list[float] = []

    def steps(first: int) -> None:
        for step in range(first, first + STEPS):
            (found,) = exe.run(fleet.main_program, feed=batch(step, rank), fetch_list=[loss.name])
            losses.append(float(np.asarray(found).reshape(-1)[0]))

    if given.epochs:
        root = str(given.out / "epochs")
        status = fleet.load_check_point(exe, root, rank) or TrainStatus()
        for epoch in range(status.next(), given.epochs):
            print("epoch", epoch, flush=True)
            steps(epoch * STEPS)
            if rank == 0:
                fleet.save_check_point(exe, root, TrainStatus(epoch), remain_all_checkpoint=False)
            fleet.barrier_worker()
            marker = given.out / "failed"
            if epoch == given.fail and rank == 1 and not marker.exists():
                marker.touch()
                raise ValueError("the batch is bad")
    else:
        steps(0)
    names = [p.name for p in fluid.default_main_program().all_parameters()]
    scope = fluid.global_scope()
    params = {n: np.array(scope.find_var(n).get_tensor()).tolist() for n in names}
    summed = np.zeros(1)
    fleet.all_reduce_worker(np.array([rank + 1.0]), summed)
    found = {"losses": losses, "params": params, "summed": summed.tolist()}
    (given.out / f"rank.{rank}.json").write_text(json.dumps(found))
    if rank == 0:
        fleet.save_persistables(exe, str(given.out / "persistables"))


if __name__ == "__main__":
    main()

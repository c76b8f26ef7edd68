"""A job over parameter servers, by Fleet or by the transpiler; run by tests, never collected.

    server_job.py --api fleet|transpiler --strategy sync|half|async|geo --out FOLDER

Every trainer writes its losses and parameters to FOLDER/trainer.N.json; with --save, worker 0 saves
there.
"""

import argparse
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import bireme as fluid
from bireme.fleet.api.parameter_server import StrategyFactory, fleet
from bireme.fleet.api.role_makers import PaddleCloudRoleMaker
from bireme.trainer.communicator import Communicator
from bireme.transpiler import GeoSgdTranspiler

STEPS = 12
FIELDS: dict[str, dict[str, Any]] = {
    "sync": {"half_async": True, "completely_not_async": True},
    "half": {"half_async": True},
    "async": {},
    "geo": {"geo_sgd_mode": True, "geo_sgd_need_push_nums": 4},
}
MODES = {"sync": 0, "async": 1, "half": 2, "geo": 3}


def model() -> Any:
    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = 7
    x = fluid.layers.data("x", shape=[64], dtype="float32")
    y = fluid.layers.data("y", shape=[1], dtype="float32")
    hidden = fluid.layers.fc(x, size=300, act="tanh")
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))


def batch(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.RandomState(100 * step + trainer)
    x = random.standard_normal((8, 64)).astype("float32")
    return {"x": x, "y": x[:, :4].sum(axis=1, keepdims=True) + 1}


def train(program: Any, trainer: int, loss: Any, exe: Any, given: argparse.Namespace) -> None:
    losses = []
    for step in range(given.steps):
        (found,) = exe.run(program, feed=batch(step, trainer), fetch_list=[loss.name])
        losses.append(float(np.asarray(found).reshape(-1)[0]))
    names = [p.name for p in program.all_parameters()]
    params = {n: np.array(fluid.global_scope().find_var(n).get_tensor()).tolist() for n in names}
    (given.out / f"trainer.{trainer}.json").write_text(
        json.dumps({"losses": losses, "params": params})
    )


def by_fleet(given: argparse.Namespace) -> None:
    fleet.init(PaddleCloudRoleMaker())
    made = {
        "sync": StrategyFactory.create_sync_strategy,
        "half": StrategyFactory.create_half_async_strategy,
        "async": StrategyFactory.create_async_strategy,
        "geo": lambda: StrategyFactory.create_geo_strategy(4),
    }[given.strategy]()
    loss = model()
    fleet.distributed_optimizer(fluid.optimizer.Adagrad(0.01), made).minimize(loss)
    if fleet.is_server():
        fleet.init_server(given.load or None)
        fleet.run_server()
        return
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    train(fleet.main_program, fleet.worker_index(), loss, exe, given)
    fleet.barrier_worker()
    if given.save and fleet.is_first_worker():
        fleet.save_persistables(exe, str(given.out / "persistables"))
        guess = fluid.default_main_program().global_block().var("fc_1.tmp_1")
        fleet.save_inference_model(exe, str(given.out / "inference"), "x", guess)
    fleet.barrier_worker()
    fleet.stop_worker()


def by_transpiler(given: argparse.Namespace) -> None:
    server = os.environ["TRAINING_ROLE"] == "PSERVER"
    trainer = int(os.environ.get("PADDLE_TRAINER_ID", 0))
    trainers = int(os.environ["PADDLE_TRAINERS_NUM"])
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode, config.runtime_split_send_recv = False, True
    for name, value in FIELDS[given.strategy].items():
        setattr(config, name, value)
    loss = model()
    fluid.optimizer.Adagrad(0.01).minimize(loss)
    made = GeoSgdTranspiler if given.strategy == "geo" else fluid.DistributeTranspiler
    transpiler = made(config)
    servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"]
    transpiler.transpile(trainer, pservers=servers, trainers=trainers, sync_mode=False)
    exe = fluid.Executor(fluid.CPUPlace())
    if server:
        main, startup = transpiler.get_pserver_programs(os.environ["PADDLE_CURRENT_ENDPOINT"])
        exe.run(startup)
        exe.run(main)
        return
    program = transpiler.get_trainer_program()
    words = None
    if isinstance(transpiler, GeoSgdTranspiler):
        words = {"push_vars": transpiler.vars_info, "trainers": trainers, "push_nums": 4}
    communicator = Communicator(program, MODES[given.strategy], words)
    communicator.start()
    exe.run(fluid.default_startup_program())
    train(program, trainer, loss, exe, given)
    communicator.stop()
    exe.close()


if __name__ == "__main__":
    warnings.simplefilter("error")
    parser = argparse.ArgumentParser()
    parser.add_argument("--api", default="fleet")
    parser.add_argument("--strategy", default="sync")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--load", default="")
    found = parser.parse_args()
    (by_fleet if found.api == "fleet" else by_transpiler)(found)

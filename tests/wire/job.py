"""A small job for tests that need processes: linear regression, one role per process.

    python job.py ROLE ENDPOINTS TRAINERS [--steps N] [--pause S] [--mode M] [--out FILE] [--fail
    STEP] [--how STATEMENT] [--decay]

ROLE is the endpoint of a server, or a trainer's number. Run as a script, never collected as a test.
"""

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

import bireme as fluid
from bireme.trainer.communicator import Communicator
from bireme.transpiler import GeoSgdTranspiler


def model(rate: Any = 0.01) -> Any:
    x = fluid.layers.data("x", shape=[64], dtype="float32")
    y = fluid.layers.data("y", shape=[1], dtype="float32")
    hidden = fluid.layers.fc(x, size=300, act="tanh")  # large enough to be cut into slices
    guess = fluid.layers.fc(hidden, size=1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    fluid.optimizer.SGD(rate).minimize(loss)
    return loss


def batch(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.RandomState(100 * step + trainer)
    x = random.standard_normal((8, 64)).astype("float32")
    return {"x": x, "y": x[:, :4].sum(axis=1, keepdims=True) + 1}


def union(step: int, trainers: int) -> dict[str, Any]:
    parts = [batch(step, trainer) for trainer in range(trainers)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"sync_mode": False},
    "dc-asgd": {"sync_mode": False, "enable_dc_asgd": True},
    "split": {"sync_mode": False, "runtime_split_send_recv": True},
    "half-async": {"sync_mode": False, "runtime_split_send_recv": True, "half_async": True},
    "split-sync": {
        "sync_mode": False,
        "runtime_split_send_recv": True,
        "half_async": True,
        "completely_not_async": True,
    },
    "queued": {"sync_mode": False, "runtime_split_send_recv": True},
    "geo": {"sync_mode": False},
}


def transpiled(given: argparse.Namespace, trainer: int) -> Any:
    config = fluid.DistributeTranspilerConfig()
    for name, value in MODES[given.mode].items():
        setattr(config, name, value)
    kind = GeoSgdTranspiler if given.mode == "geo" else fluid.DistributeTranspiler
    transpiler = kind(config=config)
    transpiler.transpile(
        trainer,
        pservers=given.endpoints,
        trainers=given.trainers,
        sync_mode=given.mode == "sync",
    )
    return transpiler


def serve(given: argparse.Namespace) -> None:
    transpiler = transpiled(given, 0)
    main, startup = transpiler.get_pserver_programs(given.role)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(main)


def train(given: argparse.Namespace, loss: Any) -> None:
    local = given.role == "local"
    trainer = 0 if local else int(given.role)
    main = fluid.default_main_program()
    transpiler = None if local else transpiled(given, trainer)
    program = main if transpiler is None else transpiler.get_trainer_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    if given.mode in ("geo", "queued"):
        words = {"push_vars": transpiler.vars_info} if given.mode == "geo" else {}
        more = {"trainers": given.trainers, "push_nums": 3, **words}
        Communicator(program, 3 if given.mode == "geo" else 1, more).start()
    root = fluid.get_flags("FLAGS_checkpoint_dir")["FLAGS_checkpoint_dir"]
    begin = (fluid.io.load_checkpoint(root, program, trainer=trainer) or 0) if root else 0
    losses = []
    for step in range(begin, given.steps):
        if step == given.fail:
            exec(given.how, {"exe": exe, "os": os, "signal": signal, "sys": sys})
        feed = union(step, given.trainers) if local else batch(step, trainer)
        (found,) = exe.run(program, feed=feed, fetch_list=[loss])
        losses.append(float(np.asarray(found).reshape(-1)[0]))
        print("step", step, flush=True)
        time.sleep(given.pause)  # a step of a larger model
    if given.out:
        names = [p.name for p in fluid.default_main_program().all_parameters()]
        values = {
            n: np.array(fluid.global_scope().find_var(n).get_tensor()).tolist() for n in names
        }
        with open(given.out, "w") as file:
            json.dump({"losses": losses, "params": values}, file)
    exe.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role")
    parser.add_argument("endpoints")
    parser.add_argument("trainers", type=int)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--mode", default="sync")
    parser.add_argument("--decay", action="store_true")
    parser.add_argument("--out", default="")
    parser.add_argument("--fail", type=int, default=-1)
    parser.add_argument("--how", default="raise ValueError('the batch is bad')")
    given = parser.parse_args()
    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = 7
    loss = model(fluid.layers.exponential_decay(0.01, 10, 0.9)) if given.decay else model()
    if given.role.isdigit() or given.role == "local":
        train(given, loss)
    else:
        serve(given)


if __name__ == "__main__":
    main()

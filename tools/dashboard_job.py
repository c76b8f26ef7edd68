"""The job of the dashboard's pictures and benchmark: dense layers and a table that grows, on
invented clicks, in every role.

    bireme launch --servers 2 --trainers 4 tools/dashboard_job.py --steps 2000 --slow 2

Trainer `--slow` reads its data slowly, so the others wait for it.
"""

import argparse
import time
from typing import Any

import numpy as np

import bireme as fluid
from bireme.fleet.progress import report
from bireme.fleet.role_maker import Role

KINDS, WIDTH, COUNTS = 8, 16, 64


def build(hidden: int) -> tuple[Any, Any]:
    """Ids of eight kinds and 64 numbers to the probability of a click."""
    ids = fluid.data("ids", [None, KINDS], dtype="int64")
    counts = fluid.data("counts", [None, COUNTS])
    click = fluid.data("click", [None, 1], dtype="int64")
    attr = fluid.ParamAttr(name="vectors", initializer=fluid.initializer.Uniform(-0.01, 0.01))
    rows = fluid.embedding(
        ids, size=[-1, WIDTH], is_sparse=True, is_distributed=True, param_attr=attr
    )
    deep = fluid.layers.concat([fluid.layers.reshape(rows, [-1, KINDS * WIDTH]), counts], axis=1)
    for size in (hidden, hidden // 2, hidden // 4):
        deep = fluid.layers.fc(deep, size, act="relu")
    guess = fluid.layers.fc(deep, 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, click))
    accuracy = fluid.layers.accuracy(guess, click)
    fluid.optimizer.Adam(1e-3).minimize(loss)
    return loss, accuracy


def batch(random: np.random.RandomState, step: int, size: int) -> dict[str, Any]:
    """Clicks depend on the numbers; new ids come with the steps."""
    counts = random.normal(size=(size, COUNTS)).astype("float32")
    ids = random.randint(0, 2000 + 4 * step, (size, KINDS)).astype("int64")
    click = counts[:, :8].sum(axis=1) + 0.5 * random.normal(size=size) > 0
    return {"ids": ids, "counts": counts, "click": click.astype("int64").reshape(-1, 1)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this time")
    parser.add_argument("--fail", type=float, default=1e9, help="trainer 3 fails after this time")
    parser.add_argument("--stamps", default="", help="where trainer 0 writes when its steps ended")
    options = parser.parse_args()
    role, exe = Role.from_env(), fluid.Executor(fluid.CPUPlace())
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    loss, accuracy = build(options.hidden)
    program, startup = fluid.default_main_program(), fluid.default_startup_program()
    if role.kind != "local":
        t = fluid.DistributeTranspiler()
        t.transpile(role.trainer_id, pservers=",".join(role.servers), trainers=role.trainers)
        if role.is_server:
            program, startup = t.get_pserver_programs(role.endpoint)
        else:
            program = t.get_trainer_program()
    exe.run(startup)
    if role.is_server:
        exe.run(program)
        return
    random, right, stamps = np.random.RandomState(role.trainer_id), 0.5, [time.monotonic()]
    for step in range(options.steps):
        if role.trainer_id == options.slow:
            time.sleep(0.02)
        feed = batch(random, step, options.batch)
        lost, share = (v.item() for v in exe.run(program, feed, [loss, accuracy]))
        stamps.append(time.monotonic())
        right = 0.98 * right + 0.02 * share
        report(step + 1, lost, share, samples=options.batch * (step + 1), smoothed_accuracy=right)
        if step % 100 == 0:
            print(f"step {step}: loss {lost:.4f}, accuracy {right:.3f}")
        if stamps[-1] - stamps[0] > options.seconds:
            break
        if role.trainer_id == 3 and stamps[-1] - stamps[0] > options.fail:
            raise ValueError("clicks.3.txt: line 4711 has 72 fields, not 73")
    if options.stamps and role.is_first:
        np.save(options.stamps, stamps)
    print(f"trainer {role.trainer_id} has done {step + 1} steps, loss {lost:.4f}")
    exe.close()


if __name__ == "__main__":
    main()

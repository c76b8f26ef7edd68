"""Clicks with three kinds of parameters, Adam, a schedule, and checkpoints: a job that goes on
where it was.

    bireme launch --servers 2 --trainers 2 examples/resume.py

    FLAGS_checkpoint_dir=/tmp/kept FLAGS_checkpoint_every_steps=20 \\
        bireme launch --servers 2 --trainers 2 --restart 3 examples/resume.py

    FLAGS_checkpoint_dir=/tmp/kept FLAGS_checkpoint_every_steps=20 \\
        bireme chaos examples/resume.py --servers 2 --trainers 2 --seconds 7200

Dense layers are cut into slices, a table of declared size is updated in the rows that a batch
names, and a growing table has its rows on servers only.
"""

import argparse

import numpy as np

import bireme as fluid
from bireme.fleet.role_maker import Role

WORDS, IDS = 1000, 10**9


def build():
    """The loss of a model with a table of declared size, a growing table, and two layers."""
    words = fluid.layers.data(name="words", shape=[4, 1], dtype="int64")
    ids = fluid.layers.data(name="ids", shape=[1], dtype="int64")
    clicked = fluid.layers.data(name="clicked", shape=[1], dtype="float32")
    sums = fluid.layers.embedding(words, size=[WORDS, 16], is_sparse=True)
    person = fluid.layers.embedding(ids, size=[-1, 16], is_sparse=True, is_distributed=True)
    joined = fluid.layers.concat([fluid.layers.flatten(sums), person], axis=1)
    hidden = fluid.layers.fc(joined, size=256, act="relu")
    logit = fluid.layers.fc(hidden, size=1)
    loss = fluid.layers.sigmoid_cross_entropy_with_logits(logit, clicked)
    return fluid.layers.mean(loss)


def batch(step, trainer, size=32):
    """The same samples whenever a step is made, so that a restart can repeat it."""
    random = np.random.RandomState(1000 * step + trainer)
    words = random.randint(0, WORDS, (size, 4, 1)).astype("int64")
    ids = (random.randint(0, 300, (size, 1)) * 3_333_331 % IDS).astype("int64")
    clicked = (words[:, :, 0].sum(1, keepdims=True) % 3 == 0).astype("float32")
    return {"words": words, "ids": ids, "clicked": clicked}


def main(steps):
    role = Role.from_env()
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    loss = build()
    rate = fluid.layers.exponential_decay(0.01, decay_steps=100, decay_rate=0.9)
    fluid.optimizer.Adam(rate).minimize(loss)
    program, startup = fluid.default_main_program(), fluid.default_startup_program()
    if role.kind != "local":
        t = fluid.DistributeTranspiler()
        t.transpile(role.trainer_id, pservers=",".join(role.servers), trainers=role.trainers)
        if role.is_server:
            program, startup = t.get_pserver_programs(role.endpoint)
        else:
            program = t.get_trainer_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    if role.is_server:
        exe.run(program)
        return
    begin, directory = 0, fluid.get_flags("FLAGS_checkpoint_dir")["FLAGS_checkpoint_dir"]
    if directory:
        begin = fluid.io.load_checkpoint(directory, program, trainer=role.trainer_id) or 0
    for step in range(begin, steps):
        feed = batch(step, role.trainer_id)
        (value,) = exe.run(program, feed=feed, fetch_list=[loss])
        if step % 20 == 0 and role.is_first:
            print(f"step {step}: loss {value.item():.4f}", flush=True)
    exe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)

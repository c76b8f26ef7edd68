"""What `bireme demo` trains: noisy digits drawn from a font of ten letters, by every role.

A Fluid script like any other: build a model, let the transpiler split it, run the part that this
process plays.
"""

import sys
from typing import Any

import numpy as np

import bireme as fluid
from bireme.fleet.progress import report
from bireme.fleet.role_maker import Role

FONT = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""  # ten digits side by side, 7 rows of 5 points each
ROWS = [line.split() for line in FONT.split("\n") if line]
LETTERS = np.array([[[int(p) for p in row[d]] for row in ROWS] for d in range(10)], np.float32)


def drawn(count: int, seed: int) -> dict[str, Any]:
    """Pictures of 9 x 9 points with a digit somewhere in each, under noise."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 10, (count, 1)).astype("int64")
    pixels = random.normal(0, 0.3, (count, 9, 9)).astype("float32")
    for picture, (digit,) in zip(pixels, labels, strict=True):
        top, left = random.randint(0, 3), random.randint(0, 5)
        picture[top : top + 7, left : left + 5] += LETTERS[digit]
    return {"pixels": pixels.reshape(count, 81), "label": labels}


def build() -> tuple[Any, Any, Any]:
    """81 points, 512 hidden units, ten digits."""
    pixels = fluid.layers.data(name="pixels", shape=[81], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    hidden = fluid.layers.fc(pixels, size=512, act="relu")
    guess = fluid.layers.fc(hidden, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=guess, label=label))
    accuracy = fluid.layers.accuracy(input=guess, label=label)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Momentum(learning_rate=0.05, momentum=0.9).minimize(loss)
    return loss, accuracy, test


def main(steps: int) -> None:
    role = Role.from_env()
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    loss, accuracy, test = build()
    program, startup = fluid.default_main_program(), fluid.default_startup_program()
    if role.kind != "local":
        transpiler = fluid.DistributeTranspiler()
        servers = ",".join(role.servers)
        transpiler.transpile(role.trainer_id, pservers=servers, trainers=role.trainers)
        if role.is_server:
            program, startup = transpiler.get_pserver_programs(role.endpoint)
        else:
            program = transpiler.get_trainer_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    if role.is_server:
        exe.run(program)
        return
    for step in range(steps):
        batch = drawn(64, seed=step * role.trainers + role.trainer_id)
        found = exe.run(program, feed=batch, fetch_list=[loss, accuracy])
        lost, right = (float(value.item()) for value in found)
        report(step + 1, lost, right, samples=64 * (step + 1))
    if role.is_first:
        (share,) = exe.run(test, feed=drawn(1000, seed=2**31), fetch_list=[accuracy])
        print(f"accuracy on 1,000 pictures that nobody has seen: {share.item():.3f}")
    exe.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)

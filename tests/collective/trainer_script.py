"""One nccl2 trainer as a process: trains until somebody ends it.

Usage: trainer_script.py RANK ENDPOINTS [ERROR]. With an error, rank 1 leaves its executor by it
and goes on with something else.
"""

import builtins
import contextlib
import sys
import time

import numpy as np

import bireme as fluid


def main(rank: int, endpoints: str, error: str = "") -> None:
    x = fluid.layers.data("x", [64])
    loss = fluid.layers.mean(fluid.layers.fc(x, 512))
    fluid.optimizer.SGD(0.01).minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    own = endpoints.split(",")[rank]
    fluid.DistributeTranspiler(config).transpile(rank, trainers=endpoints, current_endpoint=own)
    if not error or rank != 1:
        train(loss)
    with contextlib.suppress(Exception, KeyboardInterrupt):
        train(loss, getattr(builtins, error)("the loss is not a number"))
    time.sleep(60)  # until the others have ended


def train(loss: fluid.Variable, error: BaseException | None = None) -> None:
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(fluid.default_startup_program())
        batch = np.ones((8, 64), np.float32)
        for step in range(10**9):
            executor.run(feed={"x": batch}, fetch_list=[loss])
            if step == 3:
                print("running", flush=True)
            if step == 5 and error is not None:
                raise error


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])

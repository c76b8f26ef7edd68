"""One nccl2 trainer as a process: trains until somebody ends it.

Usage: trainer_script.py RANK ENDPOINTS
"""

import sys

import numpy as np

import bireme as fluid


def main(rank: int, endpoints: str) -> None:
    x = fluid.layers.data("x", [64])
    loss = fluid.layers.mean(fluid.layers.fc(x, 512))
    fluid.optimizer.SGD(0.01).minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    own = endpoints.split(",")[rank]
    fluid.DistributeTranspiler(config).transpile(rank, trainers=endpoints, current_endpoint=own)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    batch = np.ones((8, 64), np.float32)
    for step in range(10**9):
        executor.run(feed={"x": batch}, fetch_list=[loss])
        if step == 3:
            print("running", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

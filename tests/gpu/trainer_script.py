"""One nccl2 trainer on a device: trains a few steps and writes its parameters.

Usage: trainer_script.py RANK ENDPOINTS FILE.
"""

import sys

import numpy as np

import bireme as fluid


def main(rank: int, endpoints: str, path: str) -> None:
    from tests.collective.test_nccl2 import STEPS, batches, build

    where = endpoints.split(",")
    program, startup = build(len(where), rank, where)
    scope, cut = fluid.Scope(), slice(rank, None, len(where))
    with fluid.Executor(fluid.CUDAPlace(0)) as executor:
        executor.run(startup, scope=scope)
        for step in range(STEPS):
            x, y = batches(step)
            executor.run(program, feed={"x": x[cut], "y": y[cut]}, scope=scope)
        params = program.global_block().all_parameters()
        found = {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in params}
    np.savez(path, **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])

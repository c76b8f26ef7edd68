"""One role of a parameter-server cluster, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

`python fluid_cluster.py MODULE MODEL MODE ROLE RANK ENDPOINTS TRAINERS STEPS`; trainer 0 prints the
times of its steps, in seconds, as JSON.
"""

import importlib
import json
import sys
import time

import numpy as np

MODULE, MODEL, MODE, ROLE, RANK, ENDPOINTS, TRAINERS, STEPS = sys.argv[1:9]
RANK, TRAINERS, STEPS = int(RANK), int(TRAINERS), int(STEPS)
VOCABULARY, IDS = 200000, 2048


def mlp(fluid):
    """32-1280-1280-2, tanh, batch 128: 6.7 MB of parameters."""
    h = fluid.layers.data("x", [32])
    for _ in range(2):
        h = fluid.layers.fc(h, 1280, act="tanh")
    label = fluid.layers.data("label", [1], dtype="int64")
    prob = fluid.layers.fc(h, 2, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(prob, label))


def layers(fluid):
    """201 layers of 16 x 16, batch 8."""
    h = fluid.layers.data("x", [16])
    for _ in range(201):
        h = fluid.layers.fc(h, 16, act="relu")
    return fluid.layers.mean(h)


def wide(fluid):
    """One layer of 4096 x 4096, batch 1: 64 MiB of parameters."""
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", [4096]), 4096, bias_attr=False))


def sparse(fluid):
    """A table of 200,000 x 64, 2,048 ids a step."""
    ids = fluid.layers.data("ids", [1], dtype="int64")
    attr = fluid.ParamAttr(name="table")
    rows = fluid.layers.embedding(ids, [VOCABULARY, 64], is_sparse=True, param_attr=attr)
    return fluid.layers.mean(fluid.layers.fc(rows, 1))


def batch(trainer):
    rs = np.random.RandomState(trainer)
    return {
        "mlp": lambda: {
            "x": rs.rand(128, 32).astype("float32"),
            "label": rs.randint(0, 2, (128, 1)).astype("int64"),
        },
        "layers": lambda: {"x": rs.rand(8, 16).astype("float32")},
        "wide": lambda: {"x": rs.rand(1, 4096).astype("float32")},
        "sparse": lambda: {"ids": rs.randint(0, VOCABULARY, (IDS, 1)).astype("int64")},
    }[MODEL]()


def transpiled(fluid):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss = {"mlp": mlp, "layers": layers, "wide": wide, "sparse": sparse}[MODEL](fluid)
        fluid.optimizer.SGD(0.001).minimize(loss)
    config = fluid.DistributeTranspilerConfig()
    if MODE == "async":
        config.sync_mode = False
    t = fluid.DistributeTranspiler(config=config)
    trainer = RANK if ROLE == "trainer" else 0
    t.transpile(
        trainer,
        program=main,
        pservers=ENDPOINTS,
        trainers=TRAINERS,
        sync_mode=MODE == "sync",
        startup_program=startup,
    )
    return t, startup, loss


def main():
    fluid = importlib.import_module(MODULE)
    t, startup, loss = transpiled(fluid)
    exe = fluid.Executor(fluid.CPUPlace())
    if ROLE == "server":
        program, startup = t.get_pserver_programs(ENDPOINTS.split(",")[RANK])
        exe.run(startup)
        exe.run(program)
        return
    program = t.get_trainer_program()
    exe.run(startup)
    feed, times = batch(RANK), []
    for _ in range(STEPS):
        start = time.perf_counter()
        exe.run(program, feed=feed, fetch_list=[loss], use_program_cache=True)
        times.append(time.perf_counter() - start)
    if RANK == 0:
        print(json.dumps(times), flush=True)
    exe.close()


if __name__ == "__main__":
    main()

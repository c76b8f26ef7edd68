"""One role of a parameter-server cluster, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

`python fluid_cluster.py MODULE MODEL MODE ROLE RANK ENDPOINTS TRAINERS STEPS`; trainer 0 prints the
times of its steps, in seconds, as JSON.
"""

import importlib
import json
import sys
import time

import cluster_models

MODULE, MODEL, MODE, ROLE, RANK, ENDPOINTS, TRAINERS, STEPS = sys.argv[1:9]
RANK, TRAINERS, STEPS = int(RANK), int(TRAINERS), int(STEPS)


def transpiled(fluid):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        loss = getattr(cluster_models, MODEL)(fluid)
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
    feed, times = cluster_models.batch(MODEL, RANK), []
    for _ in range(STEPS):
        start = time.perf_counter()
        exe.run(program, feed=feed, fetch_list=[loss], use_program_cache=True)
        times.append(time.perf_counter() - start)
    if RANK == 0:
        print(json.dumps(times), flush=True)
    exe.close()


if __name__ == "__main__":
    main()

"""200 x fc(16), batch 8, Momentum, as a Fluid script: runs on bireme and on Fluid 1.8 alike.

`python fluid_fc.py MODULE [cached]` answers each line of its input with a round of steps, as JSON;
`cached` asks for `use_program_cache`, which Fluid does not do by itself.
"""

import importlib
import sys
import time

import numpy as np
from rounds import answer

LAYERS, SIZE, BATCH, STEPS = 200, 16, 8, 20
CACHED = len(sys.argv) > 2 and sys.argv[2] == "cached"


def build(fluid):
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        hidden = fluid.layers.data("x", [SIZE])
        for _ in range(LAYERS):
            hidden = fluid.layers.fc(hidden, SIZE, act="relu")
        loss = fluid.layers.mean(hidden)
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, loss


def main():
    fluid = importlib.import_module(sys.argv[1])
    start = time.perf_counter()
    program, startup, loss = build(fluid)
    built = time.perf_counter() - start
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    x = np.random.RandomState(0).rand(BATCH, SIZE).astype("float32")

    def step():
        exe.run(program, feed={"x": x}, fetch_list=[loss], use_program_cache=CACHED)

    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    facts = {"build": built, "first": first, "operators": len(program.global_block().ops)}
    answer(facts, step, STEPS)
    exe.close()


if __name__ == "__main__":
    main()

"""`fluid.install_check.run_check()`: one training step on this machine."""

import numpy as np

import bireme.layers as layers
from bireme.arrays.places import CPUPlace
from bireme.ir import Program, program_guard
from bireme.optimizer import SGD
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope, scope_guard

__all__ = ["run_check"]


def run_check() -> None:
    """Train a small model for a step, and say that it worked."""
    main, startup = Program(), Program()
    with program_guard(main, startup), scope_guard(Scope()):
        x = layers.data("inp", [2, 2], append_batch_size=False)
        loss = layers.mean(layers.fc(x, 3))
        SGD(0.1).minimize(loss)
        executor = Executor(CPUPlace())
        executor.run(startup)
        executor.run(main, feed={"inp": np.ones((2, 2), "float32")}, fetch_list=[loss])
    print("Your Paddle Fluid works well on SINGLE GPU or CPU.")
    print("Your Paddle Fluid is installed successfully! Let's start deep Learning with it now")

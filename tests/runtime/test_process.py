"""What running a program leaves of the process it runs in: everything as it was."""

import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays import blas
from bireme.errors import ProgramError

pytestmark = pytest.mark.skipif(blas.threads() is None, reason="this BLAS cannot be asked")


@pytest.fixture(autouse=True)
def two_threads():
    """BLAS with two threads, whatever the machine."""
    libraries = [(library, library.get_num_threads()) for library in blas._libraries()]
    for library, _ in libraries:
        library.set_num_threads(2)
    yield
    for library, count in libraries:
        library.set_num_threads(count)


def looking(seen: list[int | None], fail: bool = False) -> fluid.Program:
    """A program with an operator that notes how many threads BLAS has while it runs."""
    program = fluid.Program()

    def look(x: object) -> np.ndarray:
        seen.append(blas.threads())
        if fail:
            raise ValueError("enough")
        return np.asarray(x)

    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [1])
        out = program.global_block().create_var(name="out", dtype="float32", shape=[-1, 1])
        fluid.layers.py_func(look, x, out)
    return program


def run(program: fluid.Program) -> None:
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(program, {"x": np.ones((1, 1), "float32")}, ["out"], scope=fluid.Scope())


def test_blas_has_one_thread_while_a_program_runs_and_its_own_afterwards() -> None:
    seen: list[int | None] = []
    run(looking(seen))
    assert seen == [1]
    assert blas.threads() == 2


def test_blas_has_its_threads_back_after_an_error() -> None:
    seen: list[int | None] = []
    with pytest.raises(ProgramError, match="enough"):
        run(looking(seen, fail=True))
    assert (seen, blas.threads()) == ([1], 2)


def test_a_run_inside_a_run_gives_nothing_back_early() -> None:
    with blas.SINGLE:
        run(looking([]))
        assert blas.threads() == 1
    assert blas.threads() == 2


def test_a_run_in_another_thread_leaves_blas_alone() -> None:
    """OpenBLAS takes no number of threads from it, so it could not give one back either."""
    seen: list[int | None] = []
    other = threading.Thread(target=run, args=(looking(seen),))
    other.start()
    other.join(60)
    assert (seen, blas.threads()) == ([2], 2)


def test_what_the_user_sets_between_two_runs_holds() -> None:
    run(looking([]))
    for library in blas._libraries():
        library.set_num_threads(1)
    run(looking([]))
    assert blas.threads() == 1


_KEPT = """
import bireme, numpy, psutil
with bireme.Executor(bireme.CPUPlace()) as exe:
    exe.run(bireme.Program())
own = psutil.Process()
large = numpy.ones(1 << 23)
before = own.memory_info().rss
del large
print((before - own.memory_info().rss) >> 20)
"""


@pytest.mark.parametrize(("flag", "given_back"), [("", True), ("0", True), ("1", False)])
def test_freed_memory_is_kept_only_where_the_flag_asks(flag: str, given_back: bool) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("not glibc's allocator")
    env = {**os.environ, "FLAGS_keep_freed_memory": flag}
    if not flag:
        del env["FLAGS_keep_freed_memory"]
    command = [sys.executable, "-c", _KEPT]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert (int(done.stdout) > 32) == given_back

"""Which files one synchronous step passes through, from `exe.run` to the new parameter and back.

Starts a server and a trainer of a small model and notes every function of bireme's that runs during
one step of the steady state. Kernels of operators are the model's, and are left out.

    python tools/walk.py                  the list, as Markdown
"""

import argparse
import ast
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import bireme as fluid

ROOT = Path(__file__).resolve().parent.parent
HOMES = ("bireme", "transpiler", "pserver", "trainer", "fleet")
KERNELS = "bireme/ops/"
STEPS, WATCHED = 6, 4
Called = dict[str, dict[str, list[float]]]  # file -> function -> when

ROLES = (
    ("the trainer's program", ("bireme/runtime", "bireme/arrays", "bireme/monitoring")),
    ("the trainer", ("trainer",)),
    ("the network", ("bireme/net",)),
    ("the server", ("pserver",)),
)


# -- the two processes -------------------------------------------------------------------------
def model() -> tuple[Any, Any]:
    x, y = fluid.layers.data("x", [300]), fluid.layers.data("y", [1])
    hidden = fluid.layers.fc(x, 300, act="relu")
    guess = fluid.layers.fc(hidden, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return fluid.default_main_program(), loss


def play(role: str, endpoint: str) -> None:
    """One role; prints what was called, and the trainer also when its watched step ran."""
    called: Called = defaultdict(lambda: defaultdict(list))
    watch(called)
    main, loss = model()
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, endpoint, 1)
    executor = fluid.Executor(fluid.CPUPlace())
    span = (0.0, 0.0)
    if role == "server":
        program, startup = transpiler.get_pserver_programs(endpoint)
        executor.run(startup)
        executor.run(program)
    else:
        executor.run(fluid.default_startup_program())
        span = train(executor, transpiler.get_trainer_program(), loss)
    sys.setprofile(None)
    print(json.dumps([span, called]))


def train(executor: Any, program: Any, loss: Any) -> tuple[float, float]:
    """When the watched step began and ended."""
    import numpy as np

    feed = {"x": np.ones((8, 300), np.float32), "y": np.ones((8, 1), np.float32)}
    span = (0.0, 0.0)
    for step in range(STEPS):
        began = time.monotonic()
        executor.run(program, feed=feed, fetch_list=[loss])
        span = (began, time.monotonic()) if step == WATCHED else span
        time.sleep(0.05)  # the server's own work of this step is over before the next begins
    executor.close()
    return span


def watch(called: Called) -> None:
    """Note the functions of this project that run from now on, in every thread."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT)):
            file = str(Path(name).relative_to(ROOT))
            if file.startswith(HOMES) and not file.startswith(KERNELS):
                called[file][frame.f_code.co_qualname].append(time.monotonic())

    threading.setprofile(note)
    sys.setprofile(note)


# -- the list ----------------------------------------------------------------------------------
def walked() -> dict[str, list[str]]:
    """File -> functions, of one step."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "FLAGS_paddle_num_threads": "1"}
    found = [
        subprocess.Popen(
            [sys.executable, __file__, "--play", role, "--endpoint", endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )
        for role in ("server", "trainer")
    ]
    answers = [json.loads(child.communicate(timeout=120)[0].splitlines()[-1]) for child in found]
    began, ended = answers[1][0]
    files: dict[str, list[str]] = defaultdict(list)
    for _, called in answers:
        for file, functions in called.items():
            names = [n for n, times in functions.items() if any(began <= t <= ended for t in times)]
            if names:
                files[file] += [name for name in names if name not in files[file]]
    return files


def lines_of(file: str, functions: list[str] | None = None) -> int:
    """Lines of a file, or of some of its functions."""
    text = (ROOT / file).read_text()
    if functions is None:
        return text.count("\n")
    wanted = {name.rpartition(".")[2] for name in functions}
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in wanted
    ]
    return len({line for a, b in spans for line in range(a, b + 1)})


def rendered(files: dict[str, list[str]]) -> Iterator[str]:
    total = sum(map(lines_of, files))
    run = sum(lines_of(file, functions) for file, functions in files.items())
    yield f"{len(files)} files of {total} lines; {run} of these lines stand in functions that run."
    for title, prefixes in ROLES:
        yield from ("", f"**{title.capitalize()}**", "")
        for file in sorted(files):
            if file.startswith(prefixes):
                doc = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
                first = " ".join(doc.split("\n\n")[0].split())
                yield f"* `{file}` ({lines_of(file)}): {first}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--play", choices=["server", "trainer"])
    parser.add_argument("--endpoint")
    given = parser.parse_args()
    if given.play:
        play(given.play, given.endpoint)
    else:
        print("\n".join(rendered(walked())))


if __name__ == "__main__":
    main()

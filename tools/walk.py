"""What one synchronous step runs, from `exe.run` to the new parameter and back.

Starts a server and a trainer of a small model and records every call of a function of bireme's
during a step of the steady state, by the interpreter's own call events. Of several steps the one
with the fewest calls counts: no heartbeat and no tick of a clock fell into it. Kernels of operators
are the model's, and are excluded. Three measures follow: the files that run, the lines of the
functions that run, and how often two consecutive calls of a process lie in different files.

    python tools/walk.py                          the measures of all models, and the files
    python tools/walk.py --order server --model table    every call of a process, in order
    python tools/walk.py --write                  rewrite the tables of docs/architecture.md
"""

import argparse
import ast
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import bireme as fluid

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
HOMES = ("bireme", "transpiler", "pserver", "trainer", "fleet")
KERNELS = "bireme/ops/"
WARM, WATCHED = 4, 12  # steps
ROLES = ("server", "trainer")
MODELS = {
    "dense": "two dense layers",
    "table": "a dense layer over an `is_sparse` table",
    "journal": "two dense layers, `FLAGS_durability=step`",
}


class Call(NamedTuple):
    """A function of ours that began to run."""

    when: float
    file: str
    function: str


@dataclass(frozen=True)
class Walk:
    """The calls of one step, in the order of time, of each process."""

    calls: Mapping[str, Sequence[Call]]

    @cached_property
    def files(self) -> dict[str, set[str]]:
        """File -> its functions that run."""
        found: dict[str, set[str]] = {}
        for call in (call for calls in self.calls.values() for call in calls):
            found.setdefault(call.file, set()).add(call.function)
        return found

    @property
    def lines(self) -> int:
        """Lines of the functions that run."""
        return sum(lines_of(file, functions) for file, functions in self.files.items())

    def changes(self, role: str) -> int:
        """How often two consecutive calls of a process lie in different files."""
        files = [call.file for call in self.calls[role]]
        return sum(a != b for a, b in pairwise(files))


# -- the two processes -------------------------------------------------------------------------
def build(model: str) -> tuple[Any, Any]:
    """A program and its loss."""
    y = fluid.layers.data("y", [1])
    if model == "table":
        ids = fluid.layers.data("x", [1], dtype="int64")
        table = fluid.ParamAttr(name="table")
        hidden = fluid.layers.embedding(ids, [1000, 64], is_sparse=True, param_attr=table)
    else:
        hidden = fluid.layers.fc(fluid.layers.data("x", [300]), 300, act="relu")
    guess = fluid.layers.fc(hidden, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return fluid.default_main_program(), loss


def play(role: str, model: str, endpoint: str) -> None:
    """One role; prints when its watched steps ran (of the trainer), and what was called."""
    called: list[Call] = []
    watch(called)
    main, loss = build(model)
    transpiler = fluid.DistributeTranspiler()
    transpiler.transpile(0, main, endpoint, 1)
    executor = fluid.Executor(fluid.CPUPlace())
    spans: list[tuple[float, float]] = []
    if role == "server":
        program, startup = transpiler.get_pserver_programs(endpoint)
        executor.run(startup)
        executor.run(program)
    else:
        executor.run(fluid.default_startup_program())
        spans = train(executor, transpiler.get_trainer_program(), loss, model)
    sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps([spans, called]))


def train(executor: Any, program: Any, loss: Any, model: str) -> list[tuple[float, float]]:
    """When the watched steps began and ended."""
    import numpy as np

    x = np.ones((8, 1), np.int64) if model == "table" else np.ones((8, 300), np.float32)
    feed = {"x": x, "y": np.ones((8, 1), np.float32)}
    spans = []
    for _ in range(WARM + WATCHED):
        began = time.monotonic()
        executor.run(program, feed=feed, fetch_list=[loss])
        spans.append((began, time.monotonic()))
        time.sleep(0.05)  # the server's own work of this step is over before the next begins
    executor.close()
    return spans[WARM:]


def watch(called: list[Call]) -> None:
    """Record the functions of this project that run from now on, in every thread."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(ROOT)):
            file = str(Path(name).relative_to(ROOT))
            if file.startswith(HOMES) and not file.startswith(KERNELS):
                called.append(Call(time.monotonic(), file, frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)


def walked(model: str = "dense") -> Walk:
    """One step of a server and a trainer."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        durable = {"FLAGS_durability": "step", "FLAGS_checkpoint_dir": folder}
        given = {"OMP_NUM_THREADS": "1", "FLAGS_paddle_num_threads": "1"}
        env = {**os.environ, **given, **(durable if model == "journal" else {})}
        command = [sys.executable, __file__, "--model", model, "--endpoint", endpoint, "--play"]
        children = [
            subprocess.Popen(
                [*command, role],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env,
            )
            for role in ROLES
        ]
        printed = [child.communicate(timeout=120)[0].splitlines()[-1] for child in children]
    spans, called = zip(*map(json.loads, printed), strict=True)
    walks = [_within(called, *span) for span in spans[ROLES.index("trainer")]]
    return min(walks, key=lambda walk: sum(map(len, walk.calls.values())))


def _within(called: Sequence[Any], began: float, ended: float) -> Walk:
    calls = [[Call(*each) for each in calls if began <= each[0] <= ended] for calls in called]
    return Walk(dict(zip(ROLES, calls, strict=True)))


# -- what is printed ---------------------------------------------------------------------------
def lines_of(file: str, functions: set[str] | None = None) -> int:
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


def purpose(file: str) -> str:
    """The first sentence of a file's docstring."""
    doc = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
    first = " ".join(doc.split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) ", first)[0].rstrip(".:")


def measures(walks: Mapping[str, Walk]) -> Iterator[str]:
    yield "| model | files | lines of functions | changes of file, server | trainer |"
    yield "|---|--:|--:|--:|--:|"
    for model, walk in walks.items():
        server, trainer = map(walk.changes, ROLES)
        yield f"| {MODELS[model]} | {len(walk.files)} | {walk.lines:,} | {server} | {trainer} |"


def table(walk: Walk) -> Iterator[str]:
    yield "| file | lines that run | purpose |"
    yield "|---|--:|---|"
    first = {}
    for role in reversed(ROLES):
        for call in walk.calls[role]:
            first.setdefault(call.file, len(first))
    for file in sorted(first, key=first.__getitem__):
        yield f"| `{file}` | {lines_of(file, walk.files[file])} | {purpose(file)} |"


def rendered(walks: Mapping[str, Walk]) -> str:
    return "\n".join((*measures(walks), "", *table(walks["dense"])))


def write(text: str) -> None:
    """Put the tables into the page, between its two marks."""
    begin, end = "<!-- tools/walk.py -->", "<!-- end -->"
    head, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="dense")
    parser.add_argument("--order", choices=ROLES)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--play", choices=ROLES)
    parser.add_argument("--endpoint")
    given = parser.parse_args()
    if given.play:
        play(given.play, given.model, given.endpoint)
    elif given.order:
        for call in walked(given.model).calls[given.order]:
            print(call.file, call.function)
    else:
        text = rendered({model: walked(model) for model in MODELS})
        if given.write:
            write(text)
        else:
            print(text)


if __name__ == "__main__":
    main()

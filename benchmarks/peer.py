"""Measured scripts in processes of their own, and the optional peer: Fluid 1.8 under its Python.

A script answers each line of its input with a round of step times, as JSON, so that rounds of both
sides can alternate and meet the same machine. Name the peer's Python in FLUID_PYTHON.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PEER = os.environ.get("FLUID_PYTHON", "")
EXTRAS = {"numba": "numba", "onednn-cpu-gomp": "oneDNN"}


class Runner:
    """A process that runs a script on one implementation, a round whenever it is asked."""

    def __init__(
        self,
        python: str,
        script: str,
        module: str,
        *words: str,
        threads: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        command = [python, str(HERE / script), module, *words]
        limit = {"OMP_NUM_THREADS": str(threads)} if threads else {}
        tuned = {"FLAGS_keep_freed_memory": "1"}  # as `bireme run` does
        env = {**tuned, **os.environ, **limit, **(env or {})}
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True, env=env
        )
        self.facts: dict[str, float] = self._answer()
        self.times: list[float] = []
        self.rounds: list[list[float]] = []

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "[")):
                return json.loads(line)
        raise RuntimeError("the script ended before it answered")

    def round(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.rounds.append(self._answer())
        self.times += self.rounds[-1]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def peer_python() -> str | None:
    """The peer's interpreter, if one is named and Fluid can be imported there."""
    try:
        check = [PEER, "-c", "import paddle.fluid"]
        subprocess.run(check, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return None
    return PEER


@contextmanager
def runners(
    script: str,
    words: Sequence[str] = (),
    peers: Sequence[Sequence[str]] = ((),),
    threads: int = 0,
    ours: Mapping[str, Mapping[str, str]] = MappingProxyType({"bireme": {}}),
) -> Iterator[dict[str, Runner]]:
    """Ours, once per environment, and the peer once per list of extra words; closed at the end."""
    found = {
        label: Runner(sys.executable, script, "bireme", *words, threads=threads, env=env)
        for label, env in ours.items()
    }
    python = peer_python()
    if python is not None:
        for extra in peers:
            label = "  " + " ".join(extra) if extra else "Fluid 1.8"
            more = (*words, *extra)
            found[label] = Runner(python, script, "paddle.fluid", *more, threads=threads)
    try:
        yield found
    finally:
        for runner in found.values():
            runner.close()


def extras() -> list[str]:
    """Optional libraries that kernels use, as far as they are installed, with their versions."""
    found = []
    for package, name in EXTRAS.items():
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(package)}")
    return found


def machine() -> str:
    """What the figures were measured on, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{os.cpu_count()} cores, {model}; {', '.join([versions, *extras()])}"


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """The type of an argument that must be one of these words."""

    def check(word: str) -> str:
        if word not in known:
            raise argparse.ArgumentTypeError(f"{word!r} is not one of {', '.join(known)}")
        return word

    return check

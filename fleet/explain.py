"""Inspects programs without running them: how a script would be split, whether a saved program is
valid.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bireme.ops  # noqa: F401  verify compares with the rows of the op table
from bireme.errors import ConfigError, FormatError
from bireme.ir import Program, parse_program, verify
from bireme.transpiler import DistributeTranspiler

from .launcher.job import MODES, Job, seats
from .scripts.script import run_script

__all__ = ["program_at", "split_of", "summary"]

FIRST_PORT = 6170


class _Planned(BaseException):
    """Raised in the script after it has transpiled; `except Exception` does not catch it."""


def split_of(
    script: str, arguments: Sequence[str], servers: int, trainers: int, mode: str = MODES[0]
) -> Any:
    """The transpiler with which `script` splits its program as trainer 0 of such a cluster.

    Starts no processes; call `explain()` and `draw()` of the result.
    """
    job = Job(script, tuple(arguments), servers, trainers, mode).check()
    endpoints = [f"127.0.0.1:{FIRST_PORT + i}" for i in range(job.size)]
    first = next(seat for seat in seats(job, endpoints) if seat.role == "trainer")
    transpile = DistributeTranspiler.transpile
    planned: list[Any] = []

    def stop_after(self: Any, *positional: Any, **named: Any) -> None:
        transpile(self, *positional, **named)
        planned.append(self)
        raise _Planned

    os.environ.update(first.variables)
    DistributeTranspiler.transpile = stop_after  # type: ignore[method-assign]  # for this run only
    try:
        run_script(script, arguments)
    except _Planned:
        return planned[0]
    finally:
        DistributeTranspiler.transpile = transpile  # type: ignore[method-assign]  # and back
    raise ConfigError(
        f"{script} ended without calling transpile()",
        hint="the script must reach DistributeTranspiler when it plays a trainer",
    )


def program_at(path: Path) -> Program:
    """The program in a file, or in the `__model__` of a folder, in Fluid's file format or
    as text.
    """
    file = path / "__model__" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    try:
        text = data.decode() if data.startswith(b"program") else ""
    except UnicodeDecodeError:
        raise FormatError(f"{file} begins as text and goes on as something else") from None
    if text:
        return parse_program(text)
    return Program.parse_from_string(data)


def summary(program: Program) -> str:
    """One line about a program that has passed `verify`."""
    verify(program)
    operators = sum(len(block.ops) for block in program.blocks)
    variables = sum(len(block.vars) for block in program.blocks)
    return f"valid: {len(program.blocks)} blocks, {operators} operators, {variables} variables"

"""The recorded cases of `tests/oracle` as functions: what a case is, what Fluid 1.8.5 made of it,
what bireme makes.

`transpiled(case)` starts from the recorded main and startup programs, so it needs no layers.
"""

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import bireme.transpiler
from bireme.errors import BiremeError
from bireme.ir import Program, unique_name

from .golden import program_of

ORACLE = Path(__file__).parent.parent / "oracle"
GOLDEN = ORACLE.parent / "golden" / "oracle"
Recorded = dict[str, Any]


@cache
def tool(name: str) -> ModuleType:
    """One of the scripts in `tests/oracle`: zoo, dump or compare."""
    spec = importlib.util.spec_from_file_location(f"oracle_{name}", ORACLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = path
    return module


class Face:
    """What the cases take for `fluid`: as much of it as transpiling needs."""

    __name__ = "bireme"
    transpiler = bireme.transpiler

    def __getattr__(self, name: str) -> Any:
        return getattr(bireme.transpiler, name)


def names(*prefixes: str) -> list[str]:
    """All recorded cases whose names begin so."""
    found = {path.name.partition(".json")[0] for path in GOLDEN.glob("*.json*")}
    return sorted(name for name in found if name.startswith(prefixes))


@cache
def recorded(name: str) -> Recorded:
    """What 1.8.5 made of a case; shared, so nobody may edit it."""
    loaded: Recorded = tool("compare").load(name, str(GOLDEN))
    return loaded


def fresh(name: str) -> tuple[Program, Program]:
    """The main and startup program of a case, before any split."""
    programs = recorded(name)["programs"]
    return program_of(programs["main"]), program_of(programs["startup"])


def split(name: str, trainer: int = 0, **config: Any) -> tuple[Any, Program, Program]:
    """The transpiler after a case's own set-up, and the trainer's two programs."""
    zoo = tool("zoo")
    case = zoo.CASES[name]
    case.dist["cfg"].update(config)
    try:
        main, startup = fresh(name)
        transpiler, _ = zoo.transpile(Face(), case, main, startup, trainer)
    finally:
        for key in config:
            del case.dist["cfg"][key]
    return transpiler, main, startup


def endpoints(name: str) -> list[str]:
    zoo = tool("zoo")
    found: list[str] = zoo.endpoints(zoo.PS_BASE_PORT, zoo.CASES[name].dist.get("servers", 0))
    return found


def transpiled(name: str) -> Recorded:
    """All programs of a case, made by bireme, in the form of the recording."""
    result: Recorded = {"case": name, "programs": dict(_before(name)), "meta": {}}
    try:
        _run(name, result)
    except BiremeError as error:
        result["error"] = {"type": type(error).__name__, "message": str(error)}
    return result


def _before(name: str) -> Recorded:
    programs = recorded(name)["programs"]
    return {role: programs[role] for role in ("main", "startup")}


def _run(name: str, result: Recorded) -> None:
    dump, programs, meta = tool("dump"), result["programs"], result["meta"]
    served = bool(endpoints(name))
    for i in range(tool("zoo").CASES[name].dist["trainers"]):
        with unique_name.guard():
            transpiler, main, startup = split(name, i)
        main = transpiler.get_trainer_program(wait_port=False) if served else main
        programs[f"trainer{i}"] = dump.dump_program(main)
        programs[f"trainer{i}_startup"] = dump.dump_program(startup)
        if i == 0:
            meta.update(dump.transpiler_meta(transpiler))
        meta.setdefault("marks", {})[f"trainer{i}"] = dump.program_marks(main)
    for i, endpoint in enumerate(endpoints(name)):
        server, startup = split(name)[0].get_pserver_programs(endpoint)
        programs[f"pserver{i}"] = dump.dump_program(server)
        programs[f"pserver{i}_startup"] = dump.dump_program(startup)


def differences(name: str, found: Recorded | None = None) -> list[str]:
    """How bireme's programs differ from the recorded ones; marks included."""
    ours, theirs = found or transpiled(name), recorded(name)
    lines: list[str] = tool("compare").compare(theirs, ours)
    marks = theirs["meta"].get("marks")
    if marks and "error" not in theirs and marks != ours["meta"].get("marks"):
        lines.append("marks differ")
    return lines

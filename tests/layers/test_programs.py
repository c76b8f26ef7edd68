"""Every layer makes the program that Fluid 1.8.5 was recorded to make, its gradient and its
refusals included.
"""

import gzip
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import bireme
from bireme.ops import host
from tests import differences
from tests.support import oracle

from .record import record
from .uses import USES as LAYERS
from .uses_vision import USES as VISION

TABLES = {"layers": LAYERS, "vision": VISION}

DIFFERENT = sorted(n for n in differences.shown_by("program") if n.split("/")[0] in TABLES)


@cache
def _recorded(table: str) -> dict[str, Any]:
    path = oracle.GOLDEN.parent / f"{table}.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    if "error" in ours or "error" in theirs:
        same = "error" in ours and "error" in theirs
        return [] if same else [f"refused: {ours.get('error')} / {theirs.get('error')}"]
    found: list[str] = []
    for role in ("main", "startup"):
        for part in oracle.tool("compare").program_diff(role, theirs[role], ours[role], False):
            found += part
    for fact in ("result", "stopped", "gradients"):
        if ours[fact] != theirs[fact]:
            found.append(f"{fact}: {theirs[fact]} / {ours[fact]}")
    return found


def _made(key: str) -> dict[str, Any]:
    table, _, name = key.partition("/")
    known, host.CALLABLES[:] = host.CALLABLES[:], []  # functions are numbered from 0
    try:
        text = json.dumps(record(bireme, oracle.tool("dump"), TABLES[table][name]))
    finally:
        host.CALLABLES[:] = known
    made: dict[str, Any] = json.loads(text)
    return made


def _of_fluid(key: str) -> dict[str, Any]:
    table, _, name = key.partition("/")
    found: dict[str, Any] = _recorded(table)[name]
    return found


KEYS = [f"{table}/{name}" for table, uses in TABLES.items() for name in uses]


@pytest.mark.parametrize("key", [key for key in KEYS if key not in DIFFERENT])
def test_a_layer_makes_the_recorded_program(key: str) -> None:
    assert _differences(_made(key), _of_fluid(key)) == []


@pytest.mark.parametrize("key", DIFFERENT)
def test_a_difference_is_the_recorded_one(
    key: str, golden_record: Callable[[str, Any], Any]
) -> None:
    made = _made(key)
    assert _differences(made, _of_fluid(key)) != []
    recorded = golden_record(f"differences/program/{key}", made)
    assert recorded.get("error") == made.get("error")
    assert _differences(made, recorded) == []


def test_every_use_was_recorded() -> None:
    for table, uses in TABLES.items():
        assert _recorded(table).keys() == uses.keys()

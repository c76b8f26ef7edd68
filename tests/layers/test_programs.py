"""Every layer makes the program that Fluid 1.8.5 was recorded to make, its gradient and its
refusals included.
"""

import gzip
import json
from functools import cache
from typing import Any

import pytest

import bireme
from tests.support import oracle

from .record import record
from .uses import USES

# where bireme differs on purpose, and why
DIFFERENT = {
    "dropout_test": "the original cannot differentiate dropout when testing",
    "expand_as": "the original does not know the shape",
    "flatten_2": "the original multiplies -1 by 2",
    "getitem_neg": "the original fails on an ellipsis",
    "getitem_step": "the original refuses steps",
    "increment": "the original wants a single element",
    "meshgrid": "the original reads a gradient that nobody wrote",
    "py_func": "the original refuses builtin functions",
    "sampled_softmax": "the original leaves a temporary without a dtype",
    "split_sections": "the original fails where only one part is used",
    "swish": "the original ignores beta",
}


@cache
def _recorded() -> dict[str, Any]:
    path = oracle.GOLDEN.parent / "layers.json.gz"
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


def _ours(name: str) -> dict[str, Any]:
    text = json.dumps(record(bireme, oracle.tool("dump"), USES[name]))
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("name", [name for name in USES if name not in DIFFERENT])
def test_a_layer_makes_the_recorded_program(name: str) -> None:
    assert _differences(_ours(name), _recorded()[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_still_one(name: str) -> None:
    assert _differences(_ours(name), _recorded()[name]) != []


def test_every_use_was_recorded() -> None:
    assert _recorded().keys() == USES.keys()

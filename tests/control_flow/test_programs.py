"""Control flow, layers over sequences and small networks make the programs that 1.8.5 was recorded
to make, gradients included.

Where the original lists the variables of a block in no order, the lists are compared sorted.
"""

import gzip
import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import bireme
from tests import differences
from tests.layers.record import record
from tests.support import oracle

from .uses import USES

UNORDERED = {
    "conditional_block": ("Input", "Out"),
    "conditional_block_grad": ("Input", "Input@GRAD", "Out", "Out@GRAD"),
    "while": ("X", "Out"),
    "while_grad": ("X", "X@GRAD", "Out", "Out@GRAD"),
    "recurrent": ("parameters",),
    "recurrent_grad": ("parameters", "parameters@GRAD"),
}

_MARKED = sorted(n.partition("/") for n in differences.shown_by("program"))
DIFFERENT = [name for table, _, name in _MARKED if table == "flow"]


@cache
def _recorded() -> dict[str, Any]:
    path = oracle.GOLDEN.parent / "flow.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _is_seed(op: dict[str, Any]) -> bool:
    """Whether an operator makes the gradient that all others start from."""
    outs = [name for names in op["outputs"].values() for name in names]
    backward = op["attrs"].get("op_role", 0) & 1
    made = op["type"] in ("fill_constant", "fill_any_like") and bool(backward)
    return made or (op["type"] == "shape" and outs[0].endswith("_shape"))


def _comparable(program: dict[str, Any]) -> dict[str, Any]:
    for block in program["blocks"]:
        block["ops"] = [op for op in block["ops"] if not _is_seed(op)]
        block["vars"] = [v for v in block["vars"] if not v["name"].endswith("_shape")]
    for op in (op for block in program["blocks"] for op in block["ops"]):
        for slot in UNORDERED.get(op["type"], ()):
            for side in ("inputs", "outputs"):
                if slot in op[side]:
                    op[side][slot] = sorted(op[side][slot])
        if "original_output_grad" in op["attrs"]:
            op["attrs"]["original_output_grad"] = sorted(op["attrs"]["original_output_grad"])
    return program


def _made(name: str) -> dict[str, Any]:
    made = json.loads(json.dumps(record(bireme, oracle.tool("dump"), USES[name])))
    for role in ("main", "startup"):
        if role in made:
            made[role] = _comparable(made[role])
    return dict(made)


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    if "error" in ours or "error" in theirs:
        return [f"refused: {theirs.get('error')} / {ours.get('error')}"]
    found: list[str] = []
    for role in ("main", "startup"):
        pair = (_comparable(json.loads(json.dumps(theirs[role]))), ours[role])
        for part in oracle.tool("compare").program_diff(role, *pair, False):
            found += part
    for fact in ("result", "gradients"):
        if ours[fact] != theirs[fact]:
            found.append(f"{fact}: {theirs[fact]} / {ours[fact]}")
    return found


@pytest.mark.parametrize("name", [name for name in USES if name not in DIFFERENT])
def test_a_layer_makes_the_recorded_program(name: str) -> None:
    assert _differences(_made(name), _recorded()[name]) == []


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_the_recorded_one(
    name: str, golden_record: Callable[[str, Any], Any]
) -> None:
    made = _made(name)
    assert _differences(made, _recorded()[name]) != []
    assert _differences(made, golden_record(f"differences/program/flow/{name}", made)) == []


def test_every_use_was_recorded() -> None:
    assert _recorded().keys() == USES.keys()

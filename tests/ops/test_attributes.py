"""Attributes of operators have the defaults of Fluid 1.8.5, recorded by `record_attributes.py`."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bireme.ops.table import ROWS, signatures

GOLDEN = Path(__file__).parent.parent / "golden" / "attributes.json"


@cache
def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(GOLDEN.read_text())
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_defaults_are_those_of_fluid() -> None:
    compared = 0
    for type, signature in signatures().items():
        for name, (_, ours) in signature["attrs"].items():
            theirs = recorded()[type].get(name)
            if isinstance(theirs, float):
                theirs = pytest.approx(theirs, rel=1e-6, abs=0)
            assert ours == theirs, f"{type}.{name}"
            compared += 1
    assert compared > 1000


def test_rows_have_the_defaults_of_their_signatures() -> None:
    for type, row in ROWS.items():
        known = signatures().get(type)
        if known is None:
            continue
        wanted = {name: d for name, (_, d) in known["attrs"].items() if d is not None}
        ours = {name: _plain(d) for name, d in row.defaults.items()}
        for name in ours.keys() - wanted.keys():
            theirs = recorded()[type].get(name, ours[name])
            assert name.startswith("bireme.") or ours[name] == theirs, f"{type}.{name}"
        assert {name: ours.get(name) for name in wanted} == wanted, type


@pytest.mark.parametrize(
    ("type", "name", "default"),
    [
        ("randint", "dtype", 3),
        ("tdm_child", "dtype", 2),
        ("truncated_gaussian_random", "dtype", 5),
        ("yolo_box", "downsample_ratio", 32),
        ("yolov3_loss", "downsample_ratio", 32),
    ],
)
def test_attributes_beside_required_ones_have_defaults(type: str, name: str, default: int) -> None:
    assert ROWS[type].defaults[name] == default

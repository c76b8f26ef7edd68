"""Every layer computes what Fluid 1.8.5 was recorded to compute: results, where their sequences
end, and gradients by what was fed and by every parameter.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import bireme
from tests import differences
from tests.control_flow.uses import USES as FLOW
from tests.support import oracle

from .record_values import RANGES, record
from .uses import USES as LAYERS
from .uses_decoding import USES as DECODING
from .uses_vision import USES as VISION

TABLES = {"layers": LAYERS, "flow": FLOW, "vision": VISION, "decoding": DECODING}

DIFFERENT = sorted(differences.shown_by("value"))

# both draw their own numbers, so only programs can be compared
DRAWN = """layers/dropout layers/dropout_up layers/nce layers/nce_custom layers/nce_log
    layers/randint layers/randint_low layers/randperm layers/sampled_softmax layers/sampling_id
    layers/uniform_random_batch_size_like flow/attention_of_heads flow/conv_group""".split()


@cache
def _recorded(table: str) -> dict[str, Any]:
    path = oracle.GOLDEN.parent / f"values_{table}.json.gz"
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _difference(theirs: dict[str, Any], ours: dict[str, Any], lod: bool) -> str:
    for part in ("dtype", "shape", *(["lod"] if lod else [])):
        if theirs[part] != ours[part]:
            return f"{part} {theirs[part]} / {ours[part]}"
    pair = np.array(theirs["data"], float), np.array(ours["data"], float)
    largest = np.abs(pair[0][np.isfinite(pair[0])]).max(initial=0.0)
    allowed = max(2e-5, 2e-6 * largest)  # terms that cancel leave some 30 roundings of the largest
    close = np.isclose(*pair, rtol=2e-4, atol=allowed, equal_nan=True)
    if close.all():
        return ""
    at = int(np.argmin(close))
    return f"element {at} of {close.size}: {pair[0][at]} / {pair[1][at]}"


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[str]:
    if "error" in theirs or "error" in ours:
        if theirs.get("error") is None or ours.get("error") is None:
            yield f"refused: {theirs.get('error')} / {ours.get('error')}"
        return
    for index, pair in enumerate(zip(theirs["values"], ours["values"], strict=True)):
        if problem := _difference(*pair, lod=True):
            yield f"result {index}: {problem}"
    if theirs["gradients"] is None:  # rows, which cannot be fetched there
        return
    if theirs["gradients"].keys() != ours["gradients"].keys():
        yield f"gradients: {list(theirs['gradients'])} / {list(ours['gradients'])}"
        return
    for name, slope in theirs["gradients"].items():
        if problem := _difference(slope, ours["gradients"][name], lod=False):
            yield f"gradient of {name}: {problem}"


def _made(key: str) -> dict[str, Any]:
    table, _, name = key.partition("/")
    with np.errstate(all="ignore"):  # roots and logarithms of the whole line
        made = {k: record(bireme, oracle.tool("dump"), TABLES[table][name], k) for k in RANGES}
    return dict(json.loads(json.dumps(made)))


def _of_fluid(key: str) -> dict[str, Any]:
    table, _, name = key.partition("/")
    found: dict[str, Any] = _recorded(table)[name]
    return found


def _unlike(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    return [f"{k}: {p}" for k in RANGES for p in _differences(theirs[k], ours[k])]


KEYS = [f"{table}/{name}" for table, uses in TABLES.items() for name in uses]
COMPARED = [key for key in KEYS if key not in DIFFERENT and key not in DRAWN]


@pytest.mark.parametrize("key", COMPARED)
def test_a_layer_computes_the_recorded_values(key: str) -> None:
    assert _unlike(_of_fluid(key), _made(key)) == []


@pytest.mark.parametrize("key", DIFFERENT)
def test_a_difference_is_the_recorded_one(
    key: str, golden_record: Callable[[str, Any], Any]
) -> None:
    made = _made(key)
    assert _unlike(_of_fluid(key), made) != []
    recorded = golden_record(f"differences/value/{key}", made)
    assert [recorded[k].get("error") for k in RANGES] == [made[k].get("error") for k in RANGES]
    assert _unlike(recorded, made) == []


def test_every_use_was_recorded() -> None:
    assert {table: list(_recorded(table)) for table in TABLES} == {
        table: sorted(uses) for table, uses in TABLES.items()
    }

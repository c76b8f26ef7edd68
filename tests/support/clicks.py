"""Rows of the Criteo set in slot form; the sample is no part of the project.

It is looked for in $CRITEO_SAMPLE and beside the checkout.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "criteo" / "slots_sample.txt"
SAMPLE = Path(os.environ.get("CRITEO_SAMPLE", BESIDE))
FIELDS, IDS = 39, 1_086_460
NAMES = ("feat_idx", "feat_value", "label")


def clicks() -> dict[str, Any]:
    """All rows: ids and values of 39 fields, and whether there was a click."""
    columns: dict[str, list[list[str]]] = {name: [] for name in NAMES}
    for line in SAMPLE.read_text().splitlines():
        words = [word.split(":") for word in line.split()]
        for name in NAMES:
            columns[name].append([value for key, value in words if key == name])
    ids, values, label = (columns[name] for name in NAMES)
    return {"feat_idx": np.int64(ids), "feat_value": np.float32(values), "label": np.float32(label)}

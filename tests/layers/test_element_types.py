"""Every small use of a layer takes the element types that Fluid 1.8.5 was recorded to take, and is
refused with the others when the layer is called.
"""

from fnmatch import fnmatch
from functools import cache
from typing import Any

import pytest

import bireme
from bireme.errors import BiremeError
from tests.control_flow.uses import USES as FLOW
from tests.support import oracle

from .record_element_types import built
from .uses import USES as LAYERS
from .uses_decoding import USES as DECODING
from .uses_vision import USES as VISION

RECORD = oracle.GOLDEN.parent / "element_types_layers.json.gz"
ATTEMPTS = oracle.tool("attempts")
TYPES: list[str] = ATTEMPTS.TYPES
TABLES = {
    "layers/uses": LAYERS,
    "layers/uses_vision": VISION,
    "layers/uses_decoding": DECODING,
    "control_flow/uses": FLOW,
}

# uses of layers that take more here than in 1.8.5, beside floats of every width
TAKEN = {
    "a cast takes every type": "layers/uses/astype layers/uses/cast layers/uses/log_softmax_axis "
    "layers/uses/op_*",
    "the operators take them, the layer alone refused": "control_flow/uses/concat "
    "control_flow/uses/reverse layers/uses/Print layers/uses/full_like "
    "layers/uses/mse_loss layers/uses/npair_loss layers/uses/ones_like layers/uses/reshape* "
    "layers/uses/reverse* layers/uses/scatter_nd layers/uses/shard_index layers/uses/size "
    "layers/uses/square_error_cost layers/uses/uniform_random_batch_size_like "
    "layers/uses_decoding/along_given_words*",
}
PATTERNS = [pattern for patterns in TAKEN.values() for pattern in patterns.split()]


@cache
def recorded() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = ATTEMPTS.read(RECORD)
    return found


def _refusal(name: str, inputs: list[str], dtype: str) -> BiremeError | None:
    table, _, use = name.rpartition("/")
    try:
        built(bireme, TABLES[table][use], dict.fromkeys(inputs, dtype), {})
    except BiremeError as error:
        return error
    return None


def _faults(name: str) -> list[str]:
    found = []
    for inputs, letters in recorded()[name]["takes"].items():
        for dtype, letter in zip(TYPES, letters, strict=True):
            error = _refusal(name, inputs.split(), dtype)
            if error is not None and letter == ".":
                found.append(f"{inputs} of {dtype} is refused")
            if error is None and letter in "TCt" and "float" not in dtype:
                found.append(f"{inputs} of {dtype} is taken")
            if error is not None and letter == "T" and not isinstance(error, TypeError):
                found.append(f"{inputs} of {dtype} is no TypeError")
    return found


@cache
def _all_faults() -> dict[str, list[str]]:
    found = {name: _faults(name) for name in recorded()}
    return {name: faults for name, faults in found.items() if faults}


def test_layers_take_what_1_8_5_takes() -> None:
    excused = {n for n in _all_faults() if any(fnmatch(n, p) for p in PATTERNS)}
    assert {name: f for name, f in _all_faults().items() if name not in excused} == {}
    assert all(fault.endswith("taken") for name in excused for fault in _all_faults()[name])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_layer_that_takes_more_still_does(pattern: str) -> None:
    assert any(fnmatch(name, pattern) for name in _all_faults())


def test_a_whole_number_and_a_fraction_are_refused() -> None:
    x = bireme.data("x", [2], "int64")
    with pytest.raises(BiremeError, match=r"'x' is int64: 0\.5 is not a whole number"):
        x * 0.5

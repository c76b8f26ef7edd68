"""Updates whose rows declare `flat`: the bits of each parameter, computed end to end."""

import numpy as np
import pytest

from bireme.ops.table import ROWS, Role

SIZES = (5, 40000, 3, 70000)
FLAT = sorted(type_ for type_, row in ROWS.items() if row.flat is not None)
ATTRIBUTES = {"momentum": {"mu": 0.9}, "proximal_gd": {"l1": 0.01}}


def inputs(row, size, rng):
    """What one parameter's update reads; states are positive, as after some steps."""
    given = {}
    for _, role, source in row.parameters(row.kernel):
        if role is Role.INPUT and source not in ("LearningRate", "Beta1Tensor", "Beta2Tensor"):
            number = source in row.flat or source.startswith("Beta")
            value = np.full(1, 0.9) if number else np.abs(rng.normal(size=size)) + 0.1
            given[source] = value.astype("float32")
    return {**given, "LearningRate": np.array([0.05], "float32")}


def called(row, given):
    """The new values by the slots that they replace."""
    special = {Role.XP: np, Role.OUT: None}
    arguments = {}
    for name, role, source in row.parameters(row.kernel):
        chosen = ATTRIBUTES.get(row.type, {}).get(source)
        value = row.default_of(source) if role is Role.ATTR and chosen is None else chosen
        arguments[name] = special[role] if role in special else given.get(source, value)
    found = row.kernel(**arguments)
    results = found if isinstance(found, tuple) else (found,)
    return {row.inplace[s]: value for s, value in zip(row.returns, results, strict=True)}


def test_there_are_flat_rows() -> None:
    assert {"sgd", "momentum", "adagrad", "rmsprop", "ftrl", "adam"} <= set(FLAT)


@pytest.mark.parametrize("type_", FLAT)
def test_a_flat_update_of_parameters_end_to_end_gives_their_bits(type_) -> None:
    row, rng = ROWS[type_], np.random.default_rng(4)
    members = [inputs(row, size, rng) for size in SIZES]
    single = [called(row, given) for given in members]
    shared = {s for s, value in members[0].items() if value.size == 1}
    joined = {
        slot: members[0][slot] if slot in shared else np.concatenate([m[slot] for m in members])
        for slot in members[0]
    }
    together = called(row, joined)
    for slot, value in together.items():
        pieces = single[:1] if slot in (row.flat or ()) else single
        assert value.tobytes() == np.concatenate([one[slot] for one in pieces]).tobytes(), slot

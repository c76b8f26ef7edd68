"""Programs identical to Fluid 1.8.5's, and its losses, for every optimizer, schedule, clip and
decay.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import unique_name
from tests import differences
from tests.support import oracle

from . import recorded

CURVES = oracle.ORACLE / "curves"


def built(case: Any) -> dict[str, Any]:
    """The main and startup program that bireme makes of a case."""
    with unique_name.guard():
        main, startup, _ = recorded.zoo().build(fluid, case)
    dump = oracle.tool("dump").dump_program
    return {
        "case": case.name,
        "programs": {"main": dump(main), "startup": dump(startup)},
        "meta": {},
    }


def assert_same_programs(theirs: dict[str, Any], case: Any) -> None:
    found: list[str] = oracle.tool("compare").compare(theirs, built(case))
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("name", oracle.names("local_"))
def test_programs_are_those_of_fluid(name: str) -> None:
    assert_same_programs(oracle.recorded(name), recorded.zoo().CASES[name])


@pytest.mark.parametrize("name", recorded.cases())
def test_programs_of_more_cases_are_those_of_fluid(name: str) -> None:
    assert_same_programs(recorded.load(name), recorded.cases()[name][0])


def test_a_distributed_table_is_updated_like_any_other_where_fluid_descends_plainly() -> None:
    zoo = recorded.zoo()
    adam = zoo.opt("Adam", clip=("global", 1.0))

    def program(distributed: bool) -> Any:
        case = zoo.Case("table", zoo.word2vec(True, distributed), adam, zoo.LOCAL, "")
        return built(case)["programs"]["main"]

    theirs, ours = program(False), program(True)
    kinds = [[op["type"] for op in p["blocks"][0]["ops"]] for p in (theirs, ours)]
    assert sorted(kinds[0]) == sorted(kinds[1])
    last = ours["blocks"][0]["ops"][-1]
    assert (last["type"], last["inputs"]["Param"]) == ("adam", ["shared_w"])


def assert_same_curve(theirs: dict[str, Any], case: Any, data: str) -> None:
    """What a case learns, compared with a recording."""
    assert_alike(theirs, oracle.tool("curves").run_local(fluid, case, data))


def assert_alike(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Losses, learning rates and parameters within the tolerance of the recording's own checker."""
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-4)
    np.testing.assert_allclose(ours["lr"], theirs["lr"], rtol=1e-5)
    for name, sums in theirs["params"].items():
        for kind in ("sum", "l2"):
            size = max(1e-3, sums["l2"], abs(sums[kind]))
            assert ours["params"][name][kind] == pytest.approx(sums[kind], abs=1e-3 * size)


def _local_curves() -> dict[str, tuple[Any, str]]:
    return {case.name: (case, kind) for case, kind in oracle.tool("curves").LOCALS}


def _curve_of(name: str) -> tuple[dict[str, Any], Any, str]:
    """A recorded curve, the case, and the kind of data."""
    if name in _local_curves():
        return json.loads((CURVES / f"{name}.json").read_text()), *_local_curves()[name]
    return recorded.load(name)["curve"], *recorded.cases()[name]


SLOW = {"cnn_bn_momentum"}
DIFFERENT = differences.shown_by("curve")
NAMES = [*_local_curves(), *(n for n, (_, kind) in recorded.cases().items() if kind)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else [])
        for n in NAMES
        if n not in DIFFERENT
    ],
)
def test_losses_are_those_of_fluid(name: str) -> None:
    assert_same_curve(*_curve_of(name))


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_difference_is_the_recorded_one(
    name: str, golden_record: Callable[[str, Any], Any]
) -> None:
    theirs, case, kind = _curve_of(name)
    made = oracle.tool("curves").run_local(fluid, case, kind)
    with pytest.raises(AssertionError):
        assert_alike(theirs, made)
    assert_alike(golden_record(f"differences/curve/{name}", made), made)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_rows_learn_what_they_learn_from_fluids_whole_gradients(name: str) -> None:
    """Where the original loses rows: ours are compared with its update of a dense gradient."""
    _, case, kind = _curve_of(name)
    twin = "dense_" + name.rpartition("sparse_")[2]
    assert_same_curve(recorded.load(twin)["curve"], case, kind)

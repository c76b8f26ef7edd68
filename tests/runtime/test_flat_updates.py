"""Flat updates give the bits of single updates, and never touch an array that is held."""

import numpy as np
import pytest

import bireme as fluid
from bireme.runtime import coalescing as coalesce
from bireme.runtime.analysis import accesses
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope

from .programs import PLACE, Builder, put

SHAPES = [[3, 4], [4], [2, 2, 2], [1], [5, 1], [7]]
STATES = {
    "sgd": {},
    "momentum": {"Velocity": "VelocityOut"},
    "adagrad": {"Moment": "MomentOut"},
    "adam": {
        "Moment1": "Moment1Out",
        "Moment2": "Moment2Out",
        "Beta1Pow": "Beta1PowOut",
        "Beta2Pow": "Beta2PowOut",
    },
}
ATTRS = {"momentum": {"mu": 0.9}}


def model(kind):
    """Parameters p0.. updated with the squares of fed values plus the parameter itself."""
    b = Builder()
    b.lasting("rate", [1])
    updates = []
    for i, shape in enumerate(SHAPES):
        param = b.lasting(f"p{i}", shape)
        grad = b.op("elementwise_add", f"g{i}", X=b.data(f"x{i}", shape), Y=param)
        slots = {slot: b.lasting(f"p{i}_{slot}", _shape(slot, shape)) for slot in STATES[kind]}
        updates.append((param, grad, slots))
    for param, grad, slots in updates:
        b.block.append_op(
            type=kind,
            inputs={"Param": param, "Grad": grad, "LearningRate": "rate", **slots},
            outputs={"ParamOut": param, **{STATES[kind][s]: v for s, v in slots.items()}},
            attrs=ATTRS.get(kind, {}),
        )
    return b


def _shape(slot, shape):
    return [1] if slot.endswith("Pow") else shape


def filled(kind, scope, powers=None):
    rng = np.random.default_rng(1)
    put(scope, rate=[0.05])
    for i, shape in enumerate(SHAPES):
        put(scope, **{f"p{i}": rng.normal(size=shape)})
        for slot in STATES[kind]:
            start = (powers or {}).get(i, 0.9) if slot.endswith("Pow") else np.zeros(shape)
            put(scope, **{f"p{i}_{slot}": np.full([1], start) if slot.endswith("Pow") else start})


def feeds(step):
    rng = np.random.default_rng(step)
    return {f"x{i}": rng.normal(size=shape).astype("float32") for i, shape in enumerate(SHAPES)}


def run(kind, steps=5, powers=None, each=None):
    scope = Scope()
    filled(kind, scope, powers)
    with Executor(PLACE) as exe:
        b = model(kind)
        for step in range(steps):
            exe.run(b.program, feeds(step), scope=scope)
            if each is not None:
                each(scope, step)
        (version,) = exe._planner._versions.values()
        (entry,) = version.entries.values()
        sizes = [len(unit.ops) for unit in entry.plan.units]
    values = {name: np.array(scope.find_var(name).get_tensor()) for name in scope.local_var_names()}
    return values, sizes


def alone(monkeypatch):
    monkeypatch.setattr(coalesce, "_FEWEST", 1000)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("kind", STATES)
def test_a_flat_update_gives_the_bits_of_single_updates(kind, monkeypatch):
    together, sizes = run(kind)
    assert sizes[-1] == len(SHAPES)
    alone(monkeypatch)
    single, sizes = run(kind)
    assert set(sizes) == {1}
    assert_same_bits(together, single)


def test_powers_that_differ_are_updated_one_by_one(monkeypatch):
    together, _ = run("adam", powers={2: 0.5})
    alone(monkeypatch)
    assert_same_bits(together, run("adam", powers={2: 0.5})[0])


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_held_arrays_and_views_of_them_keep_their_values(kind):
    held = []

    def hold(scope, step):
        array = scope.find_var("p0").value
        for taken in (array, array[1:], scope.find_var("p2").value.reshape(-1)):
            held.append((taken, taken.copy()))

    run(kind, each=hold)
    assert len({copy.tobytes() for _, copy in held}) > 10
    for taken, copy in held:
        np.testing.assert_array_equal(taken, copy)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_held_slice_of_a_parameter_keeps_its_values(kind):
    """NumPy lets a slice refer to the flat memory, not to the parameter that was sliced."""
    held = []

    def hold(scope, step):
        held.append((taken := scope.find_var("p0").value[1:], taken.copy()))

    run(kind, each=hold)
    for taken, copy in held:
        np.testing.assert_array_equal(taken, copy)


def test_values_set_from_outside_are_used(monkeypatch):
    def set_one(scope, step):
        put(scope, p1=[step, 1, 2, 3])

    together, _ = run("momentum", each=set_one)
    alone(monkeypatch)
    assert_same_bits(together, run("momentum", each=set_one)[0])


def test_memory_stays_in_place_when_nobody_holds_it():
    addresses = []

    def note(scope, step):
        addresses.append(scope.find_var("p3").value.ctypes.data)

    run("momentum", each=note)
    assert len(set(addresses)) == 1


def test_two_plans_of_a_program_share_the_flat_memory():
    scope = Scope()
    filled("sgd", scope)
    b = model("sgd")
    with Executor(PLACE) as exe:
        for fetches in ([], ["g0"], [], ["g0"]):
            exe.run(b.program, feeds(0), fetches, scope=scope)
            address = scope.find_var("p0").value.base.ctypes.data
            assert next(iter(scope.groups.values()))[0].flat.ctypes.data == address
    assert len(scope.groups) == 1


def test_an_operator_between_updates_splits_the_group():
    b = model("sgd")
    at = len(b.block.ops) - 2
    b.block.create_var(name="seen", dtype="float32", shape=[3, 4])
    b.block._insert_op(at, type="scale", inputs={"X": "p0"}, outputs={"Out": "seen"})
    scope = Scope()
    filled("sgd", scope)
    before = np.array(scope.find_var("p0").get_tensor())
    with Executor(PLACE) as exe:
        x = feeds(0)
        (seen,) = exe.run(b.program, x, ["seen"], scope=scope)
    np.testing.assert_array_equal(seen, np.array(scope.find_var("p0").get_tensor()))
    np.testing.assert_allclose(seen, before - 0.05 * (x["x0"] + before), rtol=1e-5)


def test_plans_with_other_slots_update_the_same_memory():
    """Batch normalisation names statistics between what fetching moves, so slots shift unevenly."""

    def trained(fetching: list[bool]) -> list[np.ndarray]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 2
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            x = fluid.layers.data("x", [2, 4, 4])
            for _ in range(4):
                x = fluid.layers.batch_norm(fluid.layers.conv2d(x, 3, 1, bias_attr=False))
            loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, 2)))
            fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        scope = Scope()
        with Executor(PLACE) as exe:
            exe.run(startup, scope=scope)
            for step, fetch in enumerate(fetching):
                images = np.random.default_rng(step).standard_normal((3, 2, 4, 4))
                fetches = [loss, "fc_0.w_0", "learning_rate_0"] if fetch else []
                exe.run(main, {"x": images.astype(np.float32)}, fetches, scope=scope)
        persistable = [v.name for v in main.list_vars() if v.persistable]
        return [np.array(scope.find_var(name).get_tensor()) for name in persistable]

    for one, other in zip(
        trained([True] * 5), trained([True, False, True, False, False]), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_updates_stay_before_an_effect_that_may_look_at_them():
    b = model("sgd")
    ids = b.data("ids", [3])
    b.block.append_op(type="send", inputs={"X": [ids]}, outputs={}, attrs={})
    kinds = [access.op.type for access in coalesce.coalesced(accesses(b.block), b.block)]
    assert kinds[-2:] == ["sgd", "send"]
    assert kinds.count("sgd") == 1

"""Split programs compute what the whole program computes: sync clusters by hand against one process
on the union of the batches.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import UnsupportedError
from bireme.transpiler import DistributeTranspilerConfig
from tests.support import oracle
from tests.support.by_hand import Cluster, Feed, alone

ZOO = oracle.tool("zoo")
Model = Callable[[Any], Any]
ROOTS = ("adagrad", "adam", "adamax", "decayed_adagrad", "adadelta", "rmsprop", "ftrl", "lamb")
NORMS = ("lars_momentum", "dpsgd")  # of the parameter: only whole parameters agree with one process
STEPS = 4


def build(model: Model, optimize: Callable[..., None]) -> None:
    optimize(fluid, model(fluid))


def wide(seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 1000)).astype("float32")
    return {"x": x, "y": rng.normal(size=(4, 1)).astype("float32")}


def ids(count: int, high: int, label: int) -> Callable[[int], Feed]:
    def feed(seed: int) -> Feed:
        rng = np.random.default_rng(seed)
        feeds = {f"w{i}": rng.integers(0, high, (6, 1)) for i in range(count)}
        return {**feeds, "next": rng.integers(0, label, (6, 1))}

    return feed


def towers(seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    feeds = {n: rng.normal(size=(4, 100)).astype("float32") for n in ("a", "b")}
    return {**feeds, "y": rng.normal(size=(4, 1)).astype("float32")}


def classes(seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 100)).astype("float32")
    return {"x": x, "y": rng.integers(0, 10, (4, 1))}


def heads(seed: int) -> Feed:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 100)).astype("float32")
    return {"x": x, "y": rng.normal(size=(4, 1)).astype("float32")}


def agree(
    program: Callable[[], None],
    feed: Callable[[int], Feed] = wide,
    servers: int = 2,
    trainers: int = 2,
    config: DistributeTranspilerConfig | None = None,
    sync: bool = True,
    same: bool = False,
    tolerance: float = 1e-5,
) -> None:
    """Train both ways and compare; `same` gives all trainers the same batch."""
    cluster = Cluster(program, servers, trainers, config, sync)
    unions = []
    for step in range(STEPS):
        batches = [feed(step if same else step * trainers + i) for i in range(trainers)]
        cluster.step(batches)
        whole = {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}
        unions.append(batches[0] if same else whole)
    expected = alone(program, unions)
    found = cluster.parameters()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1e-3, float(np.abs(value).max()))
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * scale, err_msg=name)


def whole() -> DistributeTranspilerConfig:
    config = DistributeTranspilerConfig()
    config.slice_var_up = False
    return config


def placed(method: str) -> DistributeTranspilerConfig:
    config = DistributeTranspilerConfig()
    config.split_method = method  # type: ignore[assignment]  # names are taken, classes given
    return config


@pytest.mark.parametrize("name", ZOO.OPTS)
def test_every_optimizer_updates_as_in_one_process(name: str) -> None:
    config = whole() if name in NORMS else None
    loose = name.startswith(ROOTS)
    program = partial(build, ZOO.linreg_wide, ZOO.OPTS[name])
    agree(program, config=config, tolerance=1e-4 if loose else 1e-5)


@pytest.mark.parametrize("name", ZOO.SCHEDS)
def test_every_schedule_runs_on_the_servers(name: str) -> None:
    agree(partial(build, ZOO.linreg_wide, ZOO.opt("SGD", sched=ZOO.SCHEDS[name])))


@pytest.mark.parametrize("kind", ["l1", "l2"])
def test_decay_is_added_after_the_mean(kind: str) -> None:
    momentum = ZOO.opt("Momentum", momentum=0.9, reg=(kind, 0.01))
    agree(partial(build, ZOO.linreg_wide, momentum))
    agree(partial(build, ZOO.frozen_and_lr, ZOO.opt("Momentum", momentum=0.9)), classes, 3)


CLIPS = [("value", 0.05, -0.02), ("norm", 0.1), ("global", 0.1)]


@pytest.mark.parametrize("prefix", ["", "set_"])
@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: c[0])
def test_clips_act_on_each_trainers_gradient(clip: tuple[Any, ...], prefix: str) -> None:
    """With equal batches the clipped mean is the mean of the clipped."""
    given = (prefix + clip[0], *clip[1:])
    optimizer = ZOO.opt("Adam", clip=given, reg=("l2", 0.01))
    agree(partial(build, ZOO.linreg_wide, optimizer), same=True, tolerance=1e-4)


@pytest.mark.parametrize(("servers", "trainers"), [(1, 1), (3, 2), (2, 3), (1, 3), (6, 2), (2, 1)])
def test_any_number_of_servers_and_trainers_agrees(servers: int, trainers: int) -> None:
    program = partial(build, ZOO.linreg_wide, ZOO.OPTS["momentum"])
    agree(program, servers=servers, trainers=trainers)


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad"])
def test_sparse_embeddings_agree(name: str) -> None:
    model = ZOO.word2vec(True, vocab=1200, dim=16)
    program = partial(build, model, ZOO.OPTS[name])
    agree(program, ids(4, 1200, 1200), 3, 2, tolerance=1e-4)


def test_a_decayed_table_is_updated_densely() -> None:
    model = ZOO.word2vec(True, vocab=1200, dim=16)
    program = partial(build, model, ZOO.opt("SGD", reg=("l2", 0.01)))
    agree(program, ids(4, 1200, 1200))


def test_a_table_that_others_read_too_comes_whole() -> None:
    """The look-ups stay local: a matrix that is also multiplied must be there."""

    def program() -> None:
        word = fluid.layers.data("w0", [1], dtype="int64")
        label = fluid.layers.data("next", [1], dtype="int64")
        attr = fluid.ParamAttr(name="tied")
        rows = fluid.layers.embedding(word, [900, 16], is_sparse=True, param_attr=attr)
        table = fluid.default_main_program().global_block().var("tied")
        scores = fluid.layers.matmul(rows, table, transpose_y=True)
        loss = fluid.layers.softmax_with_cross_entropy(scores, label)
        fluid.optimizer.SGD(0.5).minimize(fluid.layers.mean(loss))

    agree(program, ids(1, 900, 900))
    cluster = Cluster(program, 2, 2)
    kinds = [op.type for op in cluster.trainers[0].main.global_block().ops]
    assert "distributed_lookup_table" not in kinds
    assert "lookup_table" in kinds


def test_shared_parameters_and_several_losses_agree() -> None:
    agree(partial(build, ZOO.shared_params, ZOO.OPTS["adam"]), towers, tolerance=1e-4)
    agree(partial(build, ZOO.two_losses, ZOO.opt_two), heads, 3, 2, tolerance=1e-4)


@pytest.mark.parametrize("method", ["HashName", "SizeBalanced", "RoundRobin"])
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_placement_does_not_change_the_result(method: str, name: str) -> None:
    """By hash one server owns several slices of one weight, each with accumulators of its own."""
    program = partial(build, ZOO.linreg_wide, ZOO.OPTS[name])
    agree(program, servers=3, config=placed(method), tolerance=1e-4)


def test_every_initialiser_gives_slices_of_the_whole() -> None:
    config = DistributeTranspilerConfig()
    program = partial(build, ZOO.init_mix, ZOO.OPTS["sgd"])
    cluster = Cluster(program, 2, 1, config)
    expected = alone(program, [])
    found = cluster.parameters()
    assert any(p.sliced for p in cluster.transpiler.plan.placements)
    for name, value in expected.items():
        assert np.array_equal(found[name], value), name


@pytest.mark.parametrize("kind", ["array", "chain"])
def test_other_initialisers_are_cut_too(kind: str) -> None:
    """Given values are cut; what several operators compute is computed whole, then cut."""
    values = np.arange(300 * 64, dtype="float32").reshape(300, 64) / 1e4

    def program() -> None:
        x = fluid.layers.data("x", [300])
        given = fluid.initializer.NumpyArrayInitializer(values)
        p = fluid.layers.fc(x, 64, param_attr=fluid.ParamAttr(name="w", initializer=given))
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(p))
        if kind == "chain":
            block = fluid.default_startup_program().global_block()
            inputs, outputs = {"X": ["w"]}, {"Out": ["w"]}
            block.append_op(type="scale", inputs=inputs, outputs=outputs, attrs={"scale": 2.0})

    found = Cluster(program, 2, 1).parameters()["w"]
    assert np.array_equal(found, values * 2 if kind == "chain" else values)


@pytest.mark.parametrize("split", [False, True])
def test_one_asynchronous_trainer_is_one_process(split: bool) -> None:
    config = DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = split
    program = partial(build, ZOO.linreg_wide, ZOO.OPTS["momentum"])
    agree(program, trainers=1, config=config, sync=False)


def chained(distributed: bool) -> None:
    """The second look-up's ids come from the first's row: they cannot be asked for together."""
    first = fluid.layers.data("w0", [1], dtype="int64")
    label = fluid.layers.data("next", [1], dtype="int64")

    def rows(ids: Any) -> Any:
        attr = fluid.ParamAttr(name="tok")
        kinds = {"is_sparse": True, "is_distributed": distributed}
        return fluid.layers.embedding(ids, [900, 16], param_attr=attr, **kinds)

    one = rows(first)
    near = fluid.layers.argmax(fluid.layers.softmax(one), axis=-1)
    two = rows(fluid.layers.reshape(near, [-1, 1]))
    scores = fluid.layers.fc(fluid.layers.concat([one, two], axis=-1), 900)
    loss = fluid.layers.softmax_with_cross_entropy(scores, label)
    fluid.optimizer.SGD(0.5).minimize(fluid.layers.mean(loss))


def test_look_ups_that_depend_on_each_other_stay_where_they_are() -> None:
    program = partial(chained, False)
    agree(program, ids(1, 900, 900))
    kinds = [op.type for op in Cluster(program, 2, 1).trainers[0].main.global_block().ops]
    assert kinds.count("distributed_lookup_table") == 2


def test_a_distributed_table_must_be_looked_up_at_once() -> None:
    with pytest.raises(UnsupportedError, match="is_sparse=True without is_distributed"):
        Cluster(partial(chained, True), 2, 1)

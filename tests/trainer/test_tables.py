"""Distributed tables in whole jobs: training, evaluation while it goes on, and what is refused."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import InvalidArgument, ProtocolError, UnsupportedError
from bireme.ir import DistributedMode
from bireme.trainer.communicator import Communicator
from bireme.trainer.instructions import LookUp, Part
from bireme.trainer.lookup import ask
from bireme.trainer.registry import trainers
from bireme.transpiler import GeoSgdTranspiler
from tests.support.faults import Faults
from tests.support.job import Build, Job, Trainer
from tests.support.thorough import seeds

STEPS, BATCH = 8, 16


def model(
    size: list[int],
    optimizer: Callable[[], Any] = lambda: fluid.optimizer.Adagrad(0.1),
    second: bool = False,
    distributed: bool = True,
    **attr: Any,
) -> Build:
    """A regression over rows of one table or two, one of them by each kind of embedding."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
            kind = {"is_sparse": True, "is_distributed": distributed}
            given = {"initializer": fluid.initializer.Uniform(-0.1, 0.1), **attr}
            table = fluid.ParamAttr(name="table", **given)
            rows = fluid.layers.embedding(ids, size, param_attr=table, padding_idx=0, **kind)
            if second:
                other = fluid.ParamAttr(name="other", initializer=fluid.initializer.Normal(0, 0.1))
                more = fluid.embedding(ids, [size[0], 3], param_attr=other, **kind)
                more = fluid.layers.reshape(more, [-1, 3])
                rows = fluid.layers.concat([rows, more], axis=1)
            loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(rows, 1), y))
            optimizer().minimize(loss)
        return main, startup, loss

    return build


def feed(step: int, trainer: int | None = None) -> dict[str, Any]:
    """A batch, or a trainer's half of it."""
    random = np.random.default_rng(step)
    ids = random.integers(0, 40, (BATCH, 1))
    whole = {"ids": ids, "y": random.normal(size=(BATCH, 1)).astype("float32")}
    if trainer is None:
        return whole
    part = slice(trainer * BATCH // 2, (trainer + 1) * BATCH // 2)
    return {name: value[part] for name, value in whole.items()}


def train(trainer: Trainer) -> list[float]:
    return [trainer.step(feed(i, trainer.number)) for i in range(STEPS)]


def train_alone(build: Build) -> list[float]:
    main, startup, loss = build()
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        return [float(executor.run(main, feed(i), [loss], scope=scope)[0][0]) for i in range(STEPS)]


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.05, 0.9),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.1),
    "adam": lambda: fluid.optimizer.Adam(fluid.layers.exponential_decay(0.1, 5, 0.5)),
    "lazy_adam": lambda: fluid.optimizer.Adam(0.1, lazy_mode=True),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.05),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1),
    "clipped": lambda: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(10.0)),
    "clipped_together": lambda: fluid.optimizer.Adagrad(
        0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(50.0)
    ),
    "clipped_by_value": lambda: fluid.optimizer.SGD(
        0.1, grad_clip=fluid.clip.GradientClipByValue(9.0)
    ),
}


# -- training ----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_growing_table_gives_the_losses_of_one_declared_in_full(name: str) -> None:
    optimizer = OPTIMIZERS[name]
    alone = train_alone(model([40, 4], optimizer))
    found, _ = Job(model([-1, 4], optimizer)).run(train)
    np.testing.assert_allclose(np.mean(found, axis=0), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("rows", [-1, 40])
def test_any_number_of_servers_gives_the_same_rows(servers: int, rows: int) -> None:
    found, cluster = Job(model([rows, 4]), servers=servers).run(train)
    two, pair = Job(model([rows, 4])).run(train)
    assert found == two
    saved = [
        [table.read() for server in up for table in server.updates.tables] for up in (cluster, pair)
    ]
    for part in ("table", "table_moment_0"):
        rows_of = [
            {i: row.tobytes() for s in side for i, row in zip(s.ids, s.arrays[part], strict=True)}
            for side in saved
        ]
        assert rows_of[0] == rows_of[1]
    ids = np.concatenate([rows.ids for rows in saved[0]])
    trained = {i for step in range(STEPS) for i in feed(step)["ids"].reshape(-1)}
    assert sorted(ids) == sorted(trained - {0})


def test_a_table_that_grows_goes_by_id_without_being_told_so() -> None:
    found, _ = Job(model([-1, 4], distributed=False)).run(train)
    told, _ = Job(model([-1, 4])).run(train)
    assert found == told


def test_values_given_by_hand_are_dealt_out_by_id() -> None:
    values = fluid.initializer.NumpyArrayInitializer(
        np.arange(160, dtype="float32").reshape(40, 4) / 100
    )
    build = model([40, 4], initializer=values)
    found, _ = Job(build, servers=3).run(train)
    np.testing.assert_allclose(np.mean(found, axis=0), train_alone(build), rtol=1e-5)


def test_two_tables_take_one_look_up_per_server_and_step() -> None:
    asked: list[int] = []

    def body(trainer: Trainer) -> list[float]:

        pool = trainers.of(trainer.number).servers
        ask = pool.look_up

        def counted(wanted: Any) -> Any:
            asked.append(len(wanted))
            return ask(wanted)

        pool.look_up = counted  # type: ignore[method-assign]
        return train(trainer)

    build = model([-1, 4], second=True)
    found, _ = Job(build).run(body)
    assert len(asked) == 2 * STEPS  # some batch may have no id for one of the servers
    assert set(asked) <= {1, 2}
    alone = train_alone(model([40, 4], second=True))
    np.testing.assert_allclose(np.mean(found, axis=0), alone, rtol=1e-5)


def test_one_synchronous_trainer_needs_no_suffix() -> None:
    job = Job(model([-1, 4]), trainers=1)
    (found,), _ = job.run(lambda t: [t.step(feed(i)) for i in range(STEPS)])
    np.testing.assert_allclose(found, train_alone(model([40, 4])), rtol=1e-5)


@pytest.mark.parametrize("config", [{}, {"enable_dc_asgd": True}], ids=["plain", "compensated"])
def test_one_asynchronous_trainer_learns_as_alone(config: dict[str, Any]) -> None:
    """With a single trainer nothing is late."""
    job = Job(model([-1, 4]), trainers=1, sync=False, config=config)
    (found,), _ = job.run(lambda t: [t.step(feed(i)) for i in range(STEPS)])
    np.testing.assert_allclose(found, train_alone(model([40, 4])), rtol=1e-5)


def test_asynchronous_trainers_share_their_rows() -> None:
    _, servers = Job(model([-1, 4]), sync=False).run(train)
    ids = np.concatenate([t.read().ids for s in servers for t in s.updates.tables])
    trained = {i for step in range(STEPS) for i in feed(step)["ids"].reshape(-1)}
    assert sorted(ids) == sorted(trained - {0})


# -- beside a communicator ---------------------------------------------------------------------
SPLIT = {"runtime_split_send_recv": True}
HALF = {**SPLIT, "half_async": True}
STARTING = threading.Lock()


def started(communicator: Communicator, trainer: Trainer) -> None:
    """Start in the trainer's scope; the global scope belongs to one thread at a time."""
    with STARTING, fluid.scope_guard(trainer.scope):
        communicator.start()


def beside(mode: int, **given: Any) -> Callable[[Trainer], list[float]]:
    """Train while a communicator sends and receives."""

    def body(trainer: Trainer) -> list[float]:
        communicator = Communicator(trainer.main, mode, **given)
        started(communicator, trainer)
        mine = None if mode == DistributedMode.HALF_ASYNC else trainer.number
        losses = [trainer.step(feed(i, mine)) for i in range(STEPS)]
        communicator.stop()
        return losses

    return body


def test_sync_by_communicator_is_sync() -> None:
    config = {**HALF, "completely_not_async": True}
    found, _ = Job(model([-1, 4]), sync=False, config=config).run(beside(DistributedMode.SYNC))
    plain, _ = Job(model([-1, 4])).run(train)
    assert found == plain


def test_half_async_with_one_trainer_learns_as_alone() -> None:
    job = Job(model([-1, 4], second=True), trainers=1, sync=False, config=HALF)
    (found,), _ = job.run(beside(DistributedMode.HALF_ASYNC))
    np.testing.assert_allclose(found, train_alone(model([40, 4], second=True)), rtol=1e-5)


def test_async_queues_gradients_of_tables() -> None:
    settings = {"communicator_max_merge_var_num": 2, "communicator_send_queue_size": 4}
    job = Job(model([-1, 4]), sync=False, config=SPLIT)
    _, servers = job.run(beside(DistributedMode.ASYNC, envs=settings))
    ids = np.concatenate([t.read().ids for s in servers for t in s.updates.tables])
    trained = {i for step in range(STEPS) for i in feed(step)["ids"].reshape(-1)}
    assert sorted(ids) == sorted(trained - {0})


# -- geo-SGD -----------------------------------------------------------------------------------
def geo(job: Job, every: int, part: Callable[[int], int | None]) -> Callable[[Trainer], Any]:
    """Train on one's own and tell the servers every so many steps; the losses and the table.
    `part` says which half of the data a trainer has.
    """
    transpiler, *_ = job.transpiled()
    words = {"push_vars": transpiler.vars_info, "trainers": job.trainers, "push_nums": every}
    begun = threading.Barrier(job.trainers, timeout=20)

    def body(trainer: Trainer) -> Any:
        communicator = Communicator(trainer.main, DistributedMode.GEO, words)
        started(communicator, trainer)
        begun.wait()
        losses = [trainer.step(feed(i, part(trainer.number))) for i in range(STEPS)]
        communicator.stop()
        return losses, trainer.scope.var("table").value.selected()

    return body


@pytest.mark.parametrize("every", [1, 3, 100])
def test_geo_with_one_trainer_is_local_training(every: int) -> None:
    job = Job(model([-1, 4]), trainers=1, sync=False, door=GeoSgdTranspiler)
    ((losses, rows),), servers = job.run(geo(job, every, lambda number: None))
    np.testing.assert_allclose(losses, train_alone(model([40, 4])), rtol=1e-4)
    for server in servers:
        held = server.updates.tables["table"].read()
        at = np.searchsorted(rows.rows, held.ids)
        np.testing.assert_allclose(held.arrays["table"], rows.value[at], rtol=1e-4, atol=1e-6)


def test_geo_trainers_move_the_rows_of_the_servers_by_their_mean() -> None:
    two = Job(model([-1, 4]), sync=False, door=GeoSgdTranspiler)
    one = Job(model([-1, 4]), trainers=1, sync=False, door=GeoSgdTranspiler)
    _, servers = two.run(geo(two, 100, lambda number: number))  # told once, at the end
    first = beginning()
    wanted = first.copy()
    for half in (lambda _: 0, lambda _: 1):
        ((_, rows),), _ = one.run(geo(one, 100, half))
        wanted[rows.rows] += (rows.value - first[rows.rows]) / 2
    for server in servers:
        held = server.updates.tables["table"].read()
        np.testing.assert_allclose(held.arrays["table"], wanted[held.ids], rtol=1e-4, atol=1e-5)


def beginning() -> Any:
    """The rows with which the table begins."""
    _, startup, _ = model([40, 4])()
    scope = fluid.Scope()
    fluid.Executor(fluid.CPUPlace()).run(startup, scope=scope)
    return np.array(scope.var("table").value)


def test_geo_needs_a_seed_for_a_table_that_grows() -> None:
    def build() -> tuple[Any, Any, Any]:
        main, startup, loss = model([-1, 4])()
        startup.random_seed = 0
        for position, op in enumerate(startup.global_block().ops):
            startup.global_block().put(position, op.with_attrs(seed=0))
        return main, startup, loss

    with pytest.raises(UnsupportedError, match="initialize the rows of table 'table' alike"):
        Job(build, sync=False, door=GeoSgdTranspiler).transpiled()


# -- evaluation while training goes on ---------------------------------------------------------
@pytest.mark.parametrize("distributed", [True, False], ids=["by_id", "ranges"])
def test_a_clone_made_before_the_split_is_evaluated_between_steps(distributed: bool) -> None:
    build = model([-1 if distributed else 40, 4], distributed=distributed)
    main, startup, loss = model([40, 4])()
    test = main.clone(for_test=True)
    scope, wanted = fluid.Scope(), []
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        for i in range(4):
            executor.run(main, feed(i), [], scope=scope)
            wanted += executor.run(test, feed(50 + i), [loss], scope=scope)

    def body(trainer: Trainer) -> list[float]:
        found = []
        for i in range(4):
            trainer.step(feed(i, trainer.number))
            run = trainer.executor.run
            found += run(trainer.before, feed(50 + i), [trainer.loss], scope=trainer.scope)
        return found

    (found, same), servers = Job(build).run(body)
    np.testing.assert_allclose(np.ravel(found), np.ravel(wanted), rtol=1e-5)
    assert np.array_equal(found, same)
    if distributed:  # rows that were only looked at did not come into being
        seen = {i for step in range(4) for i in feed(step)["ids"].reshape(-1)} - {0}
        assert sum(len(t) for s in servers for t in s.updates.tables) == len(seen)


# -- what is refused ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (np.array([[-3]]), "id -3 is outside the table 'table' of 40 rows"),
        (np.array([[40]]), "id 40 is outside the table 'table' of 40 rows"),
    ],
)
def test_bad_ids_are_refused_before_anything_is_sent(ids: Any, problem: str) -> None:
    bad = {"ids": ids, "y": np.zeros((1, 1), np.float32)}
    job = Job(model([40, 4]), trainers=1)
    (found,), _ = job.run(lambda t: t.step(bad))
    assert isinstance(found, InvalidArgument)
    assert problem in str(found)


def test_rows_of_another_width_are_refused_when_they_arrive() -> None:
    route = LookUp(("i",), ("o",), (Part("t", "s", "t", 0, None, 1),), -1, False, -1, 5)
    question = ask(route, {"i": np.array([3])}.__getitem__)
    with pytest.raises(ProtocolError, match=r"table 't' arrive as \[4\]"):
        question.answers({"s": {"t": np.zeros((1, 4), np.float32)}})


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_trouble_on_the_way_changes_nothing(seed: int) -> None:
    faults = Faults(seed)
    job = Job(model([-1, 4], second=True))
    plain, _ = job.run(train)
    troubled, _ = job.run(train, faults.dial)
    assert faults.count
    assert troubled == plain


def test_decay_of_a_distributed_table_is_refused() -> None:
    def build() -> tuple[Any, Any, Any]:
        return model([40, 4], regularizer=fluid.regularizer.L2Decay(0.1))()

    with pytest.raises(UnsupportedError, match="the distributed table 'table'"):
        Job(build).serve(None)  # it does not come to that


@pytest.mark.parametrize("mode", ["nccl2", "collective"])
def test_all_reduce_refuses_tables_that_grow(mode: str) -> None:
    main, startup, _ = model([-1, 4])()
    config = fluid.DistributeTranspilerConfig()
    config.mode, config.collective_mode = mode, "grad_allreduce"
    ends = "127.0.0.1:1,127.0.0.1:2"
    transpiler = fluid.DistributeTranspiler(config)
    with pytest.raises(UnsupportedError, match="table 'table' grows"):
        transpiler.transpile(
            0, main, trainers=ends, startup_program=startup, current_endpoint="127.0.0.1:1"
        )


def test_look_ups_of_one_table_must_be_alike() -> None:
    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids = fluid.layers.data("ids", [1], dtype="int64")
            rows = [
                fluid.layers.embedding(ids, [9, 2], True, True, padding, "table")
                for padding in (None, 3)
            ]
            loss = fluid.layers.mean(rows[0] + rows[1])
            fluid.optimizer.SGD(0.1).minimize(loss)
        return main, startup, loss

    with pytest.raises(UnsupportedError, match="'table' differ"):
        Job(build).transpiled()

"""Communicators in whole jobs: who sends when, what it adds up to, and what is refused."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import ConfigError, InvalidArgument
from bireme.ir import DistributedMode
from bireme.trainer.communicator import Communicator
from bireme.trainer.registry import trainers
from bireme.transpiler import GeoSgdTranspiler
from tests.support.job import Build, Job, Trainer

STEPS, BATCH = 8, 16
ROWS, INPUTS, OUTPUTS = 4096, 512, 32  # large enough to be cut into slices
SPLIT = {"runtime_split_send_recv": True}
SYNCHRONOUS = {**SPLIT, "half_async": True, "completely_not_async": True}


def model(
    sparse: bool = True, optimizer: Callable[[], Any] = lambda: fluid.optimizer.SGD(0.1)
) -> Build:
    """A regression over rows of a table and a sliced dense layer."""

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 3
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
            rows = fluid.layers.embedding(ids, [ROWS, 4], is_sparse=sparse, param_attr="table")
            hidden = fluid.layers.fc(rows, 6, act="tanh")
            guess = fluid.layers.fc(hidden, 1)
            loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
            optimizer().minimize(loss)
        return main, startup, loss

    return build


def feed(step: int, trainer: int | None = None) -> dict[str, Any]:
    """A batch, or a trainer's half of it."""
    random = np.random.default_rng(step)
    ids = random.integers(0, 40, (BATCH, 1)) * 100
    whole = {"ids": ids, "y": (ids % 3).astype("float32")}
    if trainer is None:
        return whole
    part = slice(trainer * BATCH // 2, (trainer + 1) * BATCH // 2)
    return {name: value[part] for name, value in whole.items()}


def alone(build: Build, steps: int = STEPS) -> tuple[list[float], dict[str, Any]]:
    """The losses and parameters of one process on whole batches."""
    main, startup, loss = build()
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        run = executor.run
        losses = [float(run(main, feed(i), [loss], scope=scope)[0][0]) for i in range(steps)]
        return losses, {p.name: np.array(scope.var(p.name).value) for p in main.all_parameters()}


@contextmanager
def communicating(trainer: Trainer, mode: int | None = None, **given: Any) -> Iterator[Any]:
    communicator = Communicator(trainer.main, mode, **given)
    communicator.start()  # where the trainer's startup program has run
    assert communicator.is_running()
    yield communicator
    communicator.stop()
    assert not communicator.is_running()


def whole(name: str, servers: list[Any]) -> np.ndarray:
    """A parameter, put together from its slices at the servers."""
    held = [(n, s) for s in servers for n in s.updates._program.global_block().vars]
    parts = sorted((n, s) for n, s in held if n == name or n.startswith(f"{name}.block"))
    own = [(n, s) for n, s in parts if n.rpartition(".block")[2].isdigit() or n == name]
    return np.concatenate([np.asarray(s.updates.value(n)) for n, s in own])


# -- training ----------------------------------------------------------------------------------
def trained(mode: int | None = None, **given: Any) -> Callable[[Trainer], list[float]]:
    """What a trainer does: all steps beside a communicator; its losses."""

    def body(trainer: Trainer) -> list[float]:
        with communicating(trainer, mode, **given):
            return [trainer.step(feed(i, trainer.number)) for i in range(STEPS)]

    return body


def test_sync_by_communicator_is_sync() -> None:
    build = model()
    found, servers = Job(build, sync=False, config=SYNCHRONOUS).run(trained(DistributedMode.SYNC))
    plain, same = Job(build).run(lambda t: [t.step(feed(i, t.number)) for i in range(STEPS)])
    assert found == plain
    losses, params = alone(build)
    np.testing.assert_allclose(np.mean(found, axis=0), losses, rtol=1e-5)
    for name, value in params.items():
        assert np.array_equal(whole(name, servers), whole(name, same))
        np.testing.assert_allclose(whole(name, servers), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wanted", [DistributedMode.HALF_ASYNC, None], ids=["told", "found"])
def test_half_async_with_one_trainer_learns_as_alone(wanted: int | None) -> None:
    build = model()
    job = Job(build, trainers=1, sync=False, config={**SPLIT, "half_async": True})
    (found,), servers = job.run(lambda t: half(t, wanted))
    np.testing.assert_allclose(found, alone(build)[0], rtol=1e-5)
    for name, value in alone(build)[1].items():
        np.testing.assert_allclose(whole(name, servers), value, rtol=1e-4, atol=1e-6)


def half(trainer: Trainer, mode: int | None) -> list[float]:
    with communicating(trainer, mode):
        return [trainer.step(feed(i)) for i in range(STEPS)]


# -- nothing is lost: gradients that do not depend on parameters add up ------------------------
def linear(schedule: bool = False) -> Build:
    """Sums of inputs times parameters: gradients are whole numbers, and every order adds up to
    the same.
    """

    def build() -> tuple[Any, Any, Any]:
        main, startup = fluid.Program(), fluid.Program()
        zero = fluid.initializer.Constant(0.0)
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            ids, x = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("x", [INPUTS])
            attrs = [fluid.ParamAttr(name, zero) for name in ("table", "w", "b")]
            rows = fluid.layers.embedding(ids, [ROWS, 4], is_sparse=True, param_attr=attrs[0])
            guess = fluid.layers.fc(x, OUTPUTS, param_attr=attrs[1], bias_attr=attrs[2])
            loss = fluid.layers.reduce_sum(rows) + fluid.layers.reduce_sum(guess)
            rate = fluid.layers.exponential_decay(0.5, 1000, 1.0) if schedule else 0.5
            fluid.optimizer.SGD(rate).minimize(loss)
        return main, startup, loss

    return build


def numbers(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng(100 * trainer + step)
    x = random.integers(-4, 4, (BATCH, INPUTS)).astype("float32")
    return {"ids": random.integers(0, ROWS, (BATCH, 1)), "x": x}


def total(trainers: int, steps: int = STEPS) -> dict[str, Any]:
    """Where the parameters must end."""
    table, w = np.zeros((ROWS, 4), np.float32), np.zeros((INPUTS, OUTPUTS), np.float32)
    for step, trainer in np.ndindex(steps, trainers):
        given = numbers(step, trainer)
        np.subtract.at(table, given["ids"].reshape(-1), np.float32(0.5))
        w -= 0.5 * given["x"].sum(axis=0)[:, None]
    return {"table": table, "w": w, "b": np.full(OUTPUTS, -0.5 * BATCH * steps * trainers)}


def push_all(mode: int, stop: bool = True, **given: Any) -> Callable[[Trainer], None]:
    def body(trainer: Trainer) -> None:
        with communicating(trainer, mode, **given) as communicator:
            for step in range(STEPS):
                trainer.step(numbers(step, trainer.number))
            if not stop:
                trainer.executor.close()
                assert not communicator.is_running()

    return body


SETTINGS = [
    {},
    {"max_merge_var_num": 4, "send_queue_size": 8},
    {"max_merge_var_num": 20, "send_queue_size": 2, "send_wait_times": 0},
    {"independent_recv_thread": 0, "min_send_grad_num_before_recv": 3},
    {"merge_sparse_grad": 0, "max_merge_var_num": 3, "send_queue_size": 3, "thread_pool_size": 1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["one", "four", "queue", "no-thread", "sparse"])
@pytest.mark.parametrize("stop", [True, False], ids=["stopped", "closed"])
def test_async_sends_every_gradient_once(settings: dict[str, int], stop: bool) -> None:
    envs = {f"communicator_{name}": str(value) for name, value in settings.items()}
    _, servers = Job(linear(), sync=False, config=SPLIT).run(
        push_all(DistributedMode.ASYNC, stop, envs=envs)
    )
    for name, value in total(2).items():
        assert np.array_equal(whole(name, servers), value), name


def test_half_async_sends_every_gradient_once() -> None:
    job = Job(linear(), sync=False, config={**SPLIT, "half_async": True})
    _, servers = job.run(push_all(DistributedMode.HALF_ASYNC))
    for name, value in total(2).items():
        assert np.array_equal(whole(name, servers), value), name


def test_the_step_counter_of_a_schedule_is_queued_too_and_adds_up() -> None:
    job = Job(linear(schedule=True), sync=False, config=SPLIT)
    _, servers = job.run(
        push_all(DistributedMode.ASYNC, envs={"communicator_max_merge_var_num": 4})
    )
    for server in servers:  # it begins at -1 for each trainer, whose own begin at 1
        counts = [int(server.updates.value(f"@LR_DECAY_COUNTER@.trainer_{t}")[0]) for t in (0, 1)]
        assert counts == [STEPS + 1, STEPS + 1]
    for name, value in total(2).items():
        np.testing.assert_allclose(whole(name, servers), value, rtol=1e-6)


def watched(trainer: Trainer) -> list[tuple[str, Any]]:
    """What this trainer pushes from now on."""
    pool = trainers.of(trainer.number).servers
    pushed: list[tuple[str, Any]] = []
    push = pool.push

    def noted(endpoint: str, values: Mapping[str, Any]) -> None:
        pushed.extend(values.items())
        push(endpoint, values)

    pool.push = noted  # type: ignore[method-assign]
    return pushed


def test_gradients_that_wait_are_merged() -> None:
    def body(trainer: Trainer) -> list[str]:
        pushed = watched(trainer)
        envs = {"communicator_max_merge_var_num": 4, "communicator_send_queue_size": 8}
        held = trainers.of(trainer.number)
        with communicating(trainer, DistributedMode.ASYNC, envs=envs), held.strategy.lock:
            for step in range(STEPS):  # nothing can be sent meanwhile
                trainer.step(numbers(step, 0))
        return [name for name, _ in pushed if name.startswith("b@")]

    job = Job(linear(), servers=1, trainers=1, sync=False, config=SPLIT)
    (names,), servers = job.run(body)
    assert 2 <= len(names) <= 4  # of eight; what was taken first may have been a single one
    for name, value in total(1).items():
        assert np.array_equal(whole(name, servers), value), name


# -- geo-SGD -----------------------------------------------------------------------------------
def geo(build: Build, **how: Any) -> Job:
    return Job(build, sync=False, door=GeoSgdTranspiler, **how)


def given(job: Job, every: int) -> dict[str, Any]:
    transpiler, *_ = job.transpiled()
    words = {"push_vars": transpiler.vars_info, "trainers": job.trainers, "push_nums": every}
    return {"kwargs": words}


def test_geo_takes_the_number_of_trainers_that_the_program_was_split_for() -> None:
    job = geo(model(), trainers=2)
    _, main, *_ = job.transpiled()
    words = given(job, 3)["kwargs"] | {"trainers": 3}
    with pytest.raises(InvalidArgument, match="3 trainers, and the program was split for 2"):
        Communicator(main, DistributedMode.GEO, words)


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("sparse", [True, False])
def test_geo_with_one_trainer_is_local_training(every: int, sparse: bool) -> None:
    build = model(sparse, lambda: fluid.optimizer.Momentum(0.1, 0.9))
    job = geo(build, trainers=1)

    def body(trainer: Trainer) -> list[float]:
        with communicating(trainer, DistributedMode.GEO, **given(job, every)):
            return [trainer.step(feed(i)) for i in range(STEPS)]

    (found,), servers = job.run(body)
    losses, params = alone(build)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for name, value in params.items():
        np.testing.assert_allclose(whole(name, servers), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("every", [1, 3, 100])
def test_geo_adds_the_mean_of_what_its_trainers_did(every: int) -> None:
    job = geo(linear())
    told = given(job, every)  # programs are built by one thread at a time
    held: dict[int, dict[str, Any]] = {}

    def body(trainer: Trainer) -> None:
        push_all(DistributedMode.GEO, **told)(trainer)
        names = ("table", "w", "b")
        held[trainer.number] = {n: np.array(trainer.scope.var(n).value) for n in names}

    results, servers = job.run(body)
    assert results == [None, None]
    for name, value in total(2).items():
        assert np.array_equal(whole(name, servers), value / 2), name
    ends = [np.array_equal(each["w"], total(2)["w"] / 2) for each in held.values()]
    assert any(ends)  # whoever stopped last has seen all


def test_geo_may_start_before_the_startup_program_runs() -> None:
    job = geo(linear(), trainers=1)
    with job.servers_up() as servers:
        trainer, startup = job.trainer(0)
        with communicating(trainer, DistributedMode.GEO, **given(job, 2)):
            trainer.executor.run(startup, scope=trainer.scope)
            for step in range(STEPS):
                trainer.step(numbers(step, 0))
        trainer.executor.close()
        for name, value in total(1).items():
            assert np.array_equal(whole(name, servers), value), name


def test_geo_sends_of_a_table_only_the_rows_that_were_touched() -> None:
    job = geo(linear(), trainers=1)

    def body(trainer: Trainer) -> int:
        pushed = watched(trainer)
        push_all(DistributedMode.GEO, **given(job, STEPS))(trainer)
        return sum(len(value.rows) for name, value in pushed if name.startswith("table"))

    (rows,), _ = job.run(body)
    assert rows == len({int(i) for s in range(STEPS) for i in numbers(s, 0)["ids"].reshape(-1)})


# -- what is refused ---------------------------------------------------------------------------
def test_a_program_whose_communicator_does_not_run_says_so() -> None:
    def body(trainer: Trainer) -> None:
        Communicator(trainer.main, DistributedMode.ASYNC)
        trainer.step(numbers(0, 0))

    (found,), _ = Job(linear(), trainers=1, sync=False, config=SPLIT).run(body)
    assert isinstance(found, ConfigError)
    assert "none is running for trainer 0" in str(found)


def test_without_any_communicator_a_split_program_exchanges_by_itself() -> None:
    build = model()
    job = Job(build, trainers=1, sync=False, config=SPLIT)
    (found,), _ = job.run(lambda t: [t.step(feed(i)) for i in range(STEPS)])
    np.testing.assert_allclose(found, alone(build)[0], rtol=1e-5)


def test_a_geo_program_without_communicator_says_how_to_start_one() -> None:
    (found,), _ = geo(linear(), trainers=1).run(lambda t: t.step(numbers(0, 0)))
    assert isinstance(found, ConfigError)
    assert "vars_info" in str(found)


def test_a_second_communicator_of_one_trainer_is_refused() -> None:
    def body(trainer: Trainer) -> None:
        with communicating(trainer, DistributedMode.ASYNC) as first:
            first.start()  # it runs already
            with pytest.raises(ConfigError, match="another Communicator"):
                Communicator(trainer.main, DistributedMode.ASYNC).start()
        first.stop()  # it has stopped already

    (found,), _ = Job(linear(), trainers=1, sync=False, config=SPLIT).run(body)
    assert found is None


@pytest.mark.parametrize(
    ("program", "mode", "kwargs", "problem"),
    [
        ("main", 0, None, "not str"),
        (fluid.Program(), 7, None, "no communicator mode 7"),
        (fluid.Program(), DistributedMode.GEO, {"trainers": 2}, "push_vars"),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    program: Any, mode: int, kwargs: Any, problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Communicator(program, mode, kwargs)


def test_a_half_async_program_with_an_asynchronous_communicator_is_refused() -> None:
    job = Job(linear(), trainers=1, sync=False, config={**SPLIT, "half_async": True})
    (found,), _ = job.run(push_all(DistributedMode.ASYNC))
    assert isinstance(found, ConfigError)
    assert "Communicator(program, 2)" in str(found)


def test_a_server_that_is_gone_is_heard_of_by_whoever_pushes() -> None:
    """The sending thread fails; the program must not train on as if nothing were wrong."""

    def body(trainer: Trainer) -> None:
        with communicating(trainer, DistributedMode.ASYNC):
            trainer.step(numbers(0, 0))
            trainers.of(trainer.number).abort("the network is gone")
            for step in range(50):
                trainer.step(numbers(step, 0))
                time.sleep(0.01)  # the sending thread fails within these steps

    job = Job(linear(), trainers=1, sync=False, config=SPLIT)
    (found,), _ = job.run(body)
    assert isinstance(found, Exception)
    (found,), _ = job.run(push_all(DistributedMode.ASYNC))  # the next job has a trainer of its own
    assert found is None

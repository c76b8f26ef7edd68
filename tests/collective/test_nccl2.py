"""nccl2 programs on CPU engines: all trainers together equal one on the union of their batches."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.collective.flat_buffers import FlatBuffer
from bireme.collective.local import LocalGroup
from bireme.collective.shared_buffer import SharedBuffer
from bireme.errors import ConfigError
from bireme.ir import Program
from bireme.passes.data_parallel import data_parallel
from bireme.runtime import sends

ROWS, STEPS = 12, 4


def build(
    ranks: int = 1, rank: int = 0, endpoints: Sequence[str] = (), *, seed: int = 5, **config: int
) -> tuple[Program, Program]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = seed
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [6])
        y = fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(x, 7, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    if ranks > 1:
        settings = fluid.DistributeTranspilerConfig()
        settings.mode = "nccl2"
        for name, value in config.items():
            setattr(settings, name, value)
        transpiler = fluid.DistributeTranspiler(settings)
        transpiler.transpile(
            rank,
            program=main,
            startup_program=startup,
            trainers=",".join(endpoints),
            current_endpoint=endpoints[rank],
        )
    return main, startup


def batches(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.standard_normal((ROWS, 6)).astype(np.float32)
    return x, x.sum(1, keepdims=True).astype(np.float32)


def train(main: Program, startup: Program, ranks: int = 1, rank: int = 0) -> dict[str, np.ndarray]:
    scope, cut = fluid.Scope(), slice(rank, None, ranks)
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        for step in range(STEPS):
            x, y = batches(step)
            executor.run(main, feed={"x": x[cut], "y": y[cut]}, scope=scope)
        params = main.global_block().all_parameters()
        return {p.name: np.array(scope.find_var(p.name).get_tensor()) for p in params}


def together(built: Sequence[tuple[Program, Program]]) -> list[dict[str, np.ndarray]]:
    ranks = len(built)
    with ThreadPoolExecutor(ranks) as pool:
        runs = [pool.submit(train, *built[rank], ranks, rank) for rank in range(ranks)]
        return [run.result(timeout=60) for run in runs]


def assert_equal_runs(runs: Sequence[dict[str, np.ndarray]]) -> None:
    for run in runs[1:]:
        for param, value in runs[0].items():
            np.testing.assert_array_equal(run[param], value, err_msg=param)


def assert_near(run: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for param, value in wanted.items():
        np.testing.assert_allclose(run[param], value, rtol=1e-5, atol=1e-6, err_msg=param)


@pytest.fixture
def endpoints(free_port: Callable[[], int]) -> Callable[[int], list[str]]:
    def choose(count: int) -> list[str]:
        ports: set[int] = set()
        while len(ports) < count:
            ports.add(free_port())
        return [f"127.0.0.1:{port}" for port in ports]

    return choose


@pytest.mark.parametrize("engine", ["local", pytest.param("grpc", marks=pytest.mark.wire)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_trainers_equal_one_on_the_union_of_batches(endpoints, ranks, engine):
    flags.set_flags({"collective_engine": engine})
    alone = train(*build())
    where = endpoints(ranks)
    runs = together([build(ranks, rank, where) for rank in range(ranks)])
    assert_equal_runs(runs)
    assert_near(runs[0], alone)
    again = together([build(ranks, rank, where) for rank in range(ranks)])
    assert_equal_runs([runs[0], again[0]])


def build_gradients(rank: int, where: Sequence[str]) -> tuple[Program, Program, str]:
    """A model without an optimizer, for a rank or for one process, and the name of a gradient."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [6])
        loss = fluid.layers.mean(fluid.layers.fc(x, 7, act="tanh"))
        (_, grad), *_ = fluid.backward.append_backward(loss)
    if where:
        settings = fluid.DistributeTranspilerConfig()
        settings.mode = "nccl2"
        transpiler = fluid.DistributeTranspiler(settings)
        transpiler.transpile(
            rank,
            program=main,
            startup_program=startup,
            trainers=",".join(where),
            current_endpoint=where[rank],
        )
    return main, startup, grad.name


def fetched(built: tuple[Program, Program, str], cut: slice) -> list[np.ndarray]:
    """The gradient of each of three steps."""
    main, startup, grad = built
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as executor:
        executor.run(startup, scope=scope)
        feeds = [{"x": batches(step)[0][cut]} for step in range(3)]
        return [executor.run(main, feed, [grad], scope=scope)[0] for feed in feeds]


@pytest.mark.parametrize("engine", ["local", pytest.param("grpc", marks=pytest.mark.wire)])
def test_gradients_that_are_only_fetched_are_those_of_all_ranks(endpoints, engine):
    flags.set_flags({"collective_engine": engine})
    where = endpoints(2)
    programs = [build_gradients(rank, where) for rank in range(2)]
    alone = fetched(build_gradients(0, ()), slice(None))
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(fetched, programs, [slice(rank, None, 2) for rank in range(2)]))
    for wanted, *found in zip(alone, *runs, strict=True):
        for mine in found:
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-7)


@pytest.fixture
def four(endpoints):
    """The parameters that four trainers end with, under a setting."""
    flags.set_flags({"collective_engine": "local"})

    def run(**config: int) -> dict[str, np.ndarray]:
        where = endpoints(4)
        runs = together([build(4, rank, where, **config) for rank in range(4)])
        assert_equal_runs(runs)
        return runs[0]

    return run


def test_three_communicators_change_nothing(four):
    assert_equal_runs([four(), four(nccl_comm_num=3)])


def test_buckets_of_any_size_change_nothing(four):
    plain = four()
    flags.set_flags({"fuse_parameter_memory_size": 16.0})
    flags.set_flags({"fuse_parameter_groups_size": 50})
    assert_equal_runs([plain, four()])


@pytest.fixture
def messages(monkeypatch) -> list[int]:
    """The sizes of the all-reduces that rank 0 carries out."""
    sizes: list[int] = []
    carry = LocalGroup._all_reduce

    def counted(self: LocalGroup, flat: np.ndarray, op: str) -> None:
        if self.rank == 0:
            sizes.append(flat.size)
        carry(self, flat, op)

    monkeypatch.setattr(LocalGroup, "_all_reduce", counted)
    return sizes


def test_small_all_reduces_share_a_message_per_communicator(four, messages, monkeypatch):
    whole = 7 * 6 + 7 + 7 + 1
    shared = four()
    assert messages == [whole] * STEPS
    messages.clear()
    assert_equal_runs([shared, four(nccl_comm_num=2)])
    assert sorted(messages) == [7 + 1] * STEPS + [7 * 6 + 7] * STEPS
    messages.clear()
    monkeypatch.setattr(sends, "SMALL", 0)
    assert_equal_runs([shared, four()])
    assert messages == [7 + 1, 7 * 6 + 7] * STEPS


def test_the_hierarchy_gives_the_same_up_to_rounding(four):
    config = {"use_hierarchical_allreduce": 1, "hierarchical_allreduce_inter_nranks": 2}
    assert_near(four(**config), four())
    assert_near(four(nccl_comm_num=2, **config), four())


def test_rank_0_gives_everybody_its_parameters(endpoints):
    flags.set_flags({"collective_engine": "local"})
    where = endpoints(2)
    same = together([build(2, rank, where) for rank in range(2)])
    differing = together([build(2, rank, where, seed=5 + rank) for rank in range(2)])
    assert_equal_runs([*same, *differing])


def test_groups_that_do_not_divide_the_trainers_are_refused(endpoints):
    flags.set_flags({"collective_engine": "local"})
    _, startup = build(4, 0, endpoints(4))
    op = startup.global_block().ops[-1]
    attrs = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 3}
    startup.global_block().put(len(startup.global_block().ops) - 1, op.with_attrs(attrs))
    with fluid.Executor() as executor, pytest.raises(ConfigError, match="groups of 3"):
        executor.run(startup, scope=fluid.Scope())


def test_a_trainer_alone_needs_nobody(endpoints):
    main, startup = build()
    main._trainers_endpoints = endpoints(1)
    assert data_parallel(main) is main
    assert_equal_runs([train(*build()), train(main, startup)])


def test_evaluation_is_left_alone(endpoints):
    main, _ = build(2, 0, endpoints(2))
    test = main.clone(for_test=True)
    assert data_parallel(test) is test


def embedding(rank: int, where: Sequence[str], *, sparse: bool) -> tuple[Program, Program]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = fluid.layers.data("x", [1], dtype="int64")
        y = fluid.layers.data("y", [1])
        table = fluid.layers.embedding(ids, [20, 1], is_sparse=sparse)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(table, y))
        fluid.optimizer.SGD(0.5).minimize(loss)
    main._trainers_endpoints, main._trainer_id = list(where), rank
    return main, startup


def test_sparse_gradients_are_gathered(endpoints, monkeypatch):
    def ids_and_values(step: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(step)
        return rng.integers(0, 20, (ROWS, 1)), rng.standard_normal((ROWS, 1)).astype(np.float32)

    monkeypatch.setitem(globals(), "batches", ids_and_values)
    flags.set_flags({"collective_engine": "local"})
    where = endpoints(3)
    dense = together([embedding(rank, where, sparse=False) for rank in range(3)])
    sparse = together([embedding(rank, where, sparse=True) for rank in range(3)])
    assert_equal_runs(sparse)
    assert_near(sparse[0], dense[0])


@pytest.mark.parametrize("mode", ["grad_allreduce", "local_sgd"])
def test_programs_with_collective_operators_run(endpoints, mode):
    flags.set_flags({"collective_engine": "local"})
    where = endpoints(2)
    built = []
    for rank in range(2):
        main, startup = build()
        settings = fluid.DistributeTranspilerConfig()
        settings.mode, settings.collective_mode, settings.nccl_comm_num = "collective", mode, 2
        fluid.DistributeTranspiler(settings).transpile(
            rank,
            program=main,
            startup_program=startup,
            trainers=",".join(where),
            current_endpoint=where[rank],
        )
        built.append((main, startup))
    runs = together(built)
    assert_equal_runs(runs)
    if mode == "grad_allreduce":
        assert_near(runs[0], train(*build()))


def wide(rank: int, where: Sequence[str]) -> tuple[Program, Program]:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x, y = fluid.layers.data("x", [6]), fluid.layers.data("y", [1])
        hidden = fluid.layers.fc(fluid.layers.fc(x, 200, act="tanh"), 200, act="tanh")
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, 1), y))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    main._trainers_endpoints, main._trainer_id = list(where), rank
    return main, startup


@pytest.mark.wire
def test_large_gradients_are_computed_where_the_other_ranks_add_them_up(endpoints, monkeypatch):
    in_place: list[bool] = []
    holds = FlatBuffer._holds

    def noted(self: FlatBuffer, value: np.ndarray, view: np.ndarray) -> bool:
        found = holds(self, value, view)
        if value.size == 200 * 200:
            in_place.append(found)
        return found

    ways: list[bool] = []
    announce = SharedBuffer.announce

    def announced(self: SharedBuffer, call: str) -> None:
        ways.append(self.own.nbytes >= 4 * 200 * 200)
        announce(self, call)

    monkeypatch.setattr(FlatBuffer, "_holds", noted)
    monkeypatch.setattr(SharedBuffer, "announce", announced)
    runs = []
    for engine in ("local", "grpc"):
        flags.set_flags({"collective_engine": engine})
        in_place.clear()
        where = endpoints(3)
        runs += together([wide(rank, where) for rank in range(3)])
        assert in_place.count(False) == 3  # the first step finds no buffer yet
        assert in_place.count(True) == 3 * (STEPS - 1)
    assert_equal_runs(runs)
    assert ways.count(True) == 3 * STEPS

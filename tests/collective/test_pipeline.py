"""PipelineOptimizer: stages on threads or ranks give the numbers of the program as it was."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.errors import BiremeError, FeedError, InvalidArgument, ProgramError
from bireme.ir import Program
from bireme.passes.pipeline_stages import pipeline_stages

layers = fluid.layers
ROWS, STEPS = 12, 4
Net = Callable[[], tuple[Any, list[list[Any]]]]


def chain() -> tuple[Any, list[list[Any]]]:
    """Three stages, one after the other."""
    x, y = layers.data("x", [6]), layers.data("y", [1])
    first = layers.fc(x, 7, act="tanh")
    second = layers.fc(first, 5, act="relu")
    loss = layers.mean(layers.square_error_cost(layers.fc(second, 1), y))
    return loss, [[first], [second], [loss]]


def skipping() -> tuple[Any, list[list[Any]]]:
    """Values that pass a stage over, and one weight in two stages."""
    x, y = layers.data("x", [6]), layers.data("y", [1])
    weight = fluid.ParamAttr(name="shared")
    first = layers.fc(x, 6, act="tanh", param_attr=weight)
    second = layers.fc(first, 6, act="tanh", param_attr=weight)
    third = layers.elementwise_add(layers.fc(second, 6), first)
    loss = layers.mean(layers.square_error_cost(layers.fc(third, 1), y))
    return loss, [[first], [second], [loss]]


NETS: dict[str, Net] = {"chain": chain, "skipping": skipping}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(
        0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.01)
    ),
    "adam": lambda: fluid.optimizer.Adam(
        layers.exponential_decay(0.1, 2, 0.5), grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)
    ),
}
Built = tuple[Program, Program, Any]


def build(net: str, optimizer: str, *, staged: bool = True, micro_batches: int = 4) -> Built:
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = 5
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss, cuts = NETS[net]()
        chosen = OPTIMIZERS[optimizer]()
        if staged:
            chosen = fluid.optimizer.PipelineOptimizer(
                chosen, cut_list=cuts, num_microbatches=micro_batches
            )
        chosen.minimize(loss)
    return main, startup, loss


def batch(step: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    x = rng.standard_normal((rows, 6)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


def train(built: Built, path: Path | None = None) -> dict[str, Any]:
    main, startup, loss = built
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        losses = [exe.run(main, batch(i), [loss], scope=scope)[0].item() for i in range(STEPS)]
        states = {v.name for v in main.list_vars() if v.persistable}
        kept = {n for n in states if isinstance(scope.find_var(n).get(), np.ndarray)}
        if path is not None:
            with fluid.scope_guard(scope):
                fluid.io.save_persistables(exe, str(path), main)
        values = {n: np.array(scope.find_var(n).get_tensor()) for n in sorted(states)}
    return {"losses": losses, "values": values, "kept": kept}


@pytest.fixture
def ranks(free_port: Callable[[], int]) -> Callable[..., list[dict[str, Any]]]:
    def run(
        net: str, optimizer: str, engine: str = "local", count: int = 3, path: Path | None = None
    ) -> list[dict[str, Any]]:
        flags.set_flags({"collective_engine": engine})
        endpoints = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        built = [build(net, optimizer) for _ in range(count)]
        for rank, (main, *_) in enumerate(built):
            main._trainers_endpoints, main._trainer_id = endpoints, rank
        with ThreadPoolExecutor(count) as pool:
            paths = [path if rank == 1 else None for rank in range(count)]
            runs = [pool.submit(train, built[r], paths[r]) for r in range(count)]
            return [run.result(timeout=60) for run in runs]

    return run


def assert_near(run: dict[str, Any], wanted: dict[str, Any]) -> None:
    np.testing.assert_allclose(run["losses"], wanted["losses"], rtol=1e-6)
    for name, value in wanted["values"].items():
        np.testing.assert_allclose(run["values"][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_stages_on_threads_give_the_numbers_of_the_whole_batch(net, optimizer):
    assert_near(train(build(net, optimizer)), train(build(net, optimizer, staged=False)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_stages_on_ranks_give_them_too(ranks, net, optimizer):
    wanted = train(build(net, optimizer, staged=False))
    for run in ranks(net, optimizer):
        assert_near(run, wanted)


@pytest.mark.wire
def test_stages_pass_values_over_sockets(ranks, tmp_path):
    wanted = train(build("skipping", "momentum", staged=False), tmp_path / "whole")
    runs = ranks("skipping", "momentum", "grpc", path=tmp_path / "staged")
    for run in runs:
        assert_near(run, wanted)
    names = sorted(p.name for p in (tmp_path / "whole").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "staged").iterdir())
    velocity = [{n for n in run["kept"] if "velocity" in n} for run in runs]
    assert all(a.isdisjoint(b) for a, b in pairwise(velocity))


def test_a_batch_that_cannot_be_cut_is_refused():
    main, startup, loss = build("chain", "sgd")
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=(scope := fluid.Scope()))
        with pytest.raises((FeedError, ProgramError), match="10 rows has no 4 equal micro-batches"):
            exe.run(main, batch(0, 10), [loss], scope=scope)


def test_a_rank_for_every_stage():
    main, *_ = build("chain", "sgd")
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    with (
        fluid.Executor(fluid.CPUPlace()) as exe,
        pytest.raises(InvalidArgument, match="2 trainers for a pipeline of 3 stages"),
    ):
        exe.run(main, batch(0), scope=fluid.Scope())


def test_evaluation_runs_as_it_is():
    main, startup, loss = build("chain", "sgd")
    test = main.clone(for_test=True)
    scope = fluid.Scope()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup, scope=scope)
        (before,) = exe.run(test, batch(0, 7), [loss], scope=scope)
        assert np.isfinite(before).all()


def test_values_of_the_forward_pass_can_be_fetched():
    main, startup, loss = build("chain", "sgd")
    plain, plain_startup, _ = build("chain", "sgd", staged=False)
    found = []
    for program, start in ((main, startup), (plain, plain_startup)):
        scope = fluid.Scope()
        with fluid.Executor(fluid.CPUPlace()) as exe:
            exe.run(start, scope=scope)
            found.append(exe.run(program, batch(0), [loss, "fc_0.tmp_2"], scope=scope))
    for ours, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_the_stages_as_text():
    main, *_ = build("chain", "sgd", staged=False)
    plan = pipeline_stages(main, [["fc_0.tmp_2"], ["fc_1.tmp_2"], ["mean_0.tmp_0"]])
    told = []
    for stage in plan.stages:
        for part in (stage.forward, stage.backward):
            kinds = [op.type for op in part.program.global_block().ops]
            told.append((kinds, part.receives, part.sends))
    hidden, second = "fc_0.tmp_2", "fc_1.tmp_2"
    layer, back = ["mul", "elementwise_add"], ["elementwise_add_grad", "mul_grad"]
    assert told[0] == ([*layer, "tanh"], {}, {1: (hidden,)})
    assert told[1] == (["tanh_grad", *back], {1: (f"{hidden}@GRAD",)}, {})
    assert told[2] == ([*layer, "relu"], {0: (hidden,)}, {2: (second,)})
    assert told[3] == (
        ["relu_grad", *back], {2: (f"{second}@GRAD",)}, {0: (f"{hidden}@GRAD",)}
    )  # fmt: skip
    assert [[op.type for op in s.update.global_block().ops] for s in plan.stages] == [
        ["sgd"] * 2
    ] * 3


@pytest.mark.parametrize("cuts", [None, [], [[]], [["nobody"]]])
def test_cuts_that_say_nothing_are_refused(cuts: Sequence[Any]):
    with fluid.program_guard(Program(), Program()):
        loss, _ = chain()
        sgd = fluid.optimizer.SGD(0.1)
        with pytest.raises(BiremeError, match="cut_list"):
            fluid.optimizer.PipelineOptimizer(sgd, cut_list=cuts).minimize(loss)

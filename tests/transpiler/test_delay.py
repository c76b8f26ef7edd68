"""Delay compensation: the operators compute the paper's formula, in every form."""

from functools import partial

import numpy as np
import pytest

import bireme as fluid
from bireme.transpiler import DistributeTranspilerConfig
from tests.support import oracle
from tests.support.by_hand import Cluster, built

ZOO = oracle.tool("zoo")
RATE = 0.01


def asynchronous(strength: float = 1.0, adaptive: bool = False) -> DistributeTranspilerConfig:
    config = DistributeTranspilerConfig()
    config.sync_mode = False
    config.enable_dc_asgd = True
    config.dc_asgd_lambda = strength
    config.dc_asgd_adaptive = adaptive
    return config


def model(optimizer: str = "sgd") -> None:
    ZOO.OPTS[optimizer](fluid, ZOO.linreg_wide(fluid))


def applied(config: DistributeTranspilerConfig, moved: float, steps: int = 1) -> np.ndarray:
    """What a server subtracts, over the rate, when trainer 1 pushes from an older value."""
    cluster = Cluster(model, 1, 2, config, sync=False)
    server = cluster.servers["s0:1"]
    cells = server.scope
    update = server.executor.prepare(server.program, 1, cells)
    before = np.array(cells.var("fc_0.b_0").value)
    for _ in range(steps):
        before = np.array(cells.var("fc_0.b_0").value)
        cells.var("fc_0.b_0.trainer_1_bak").put(before - np.float32(moved))
        cells.var("@TRAINER_ID@").put(np.array([1]))
        cells.var("fc_0.b_0@GRAD").put(gradient())
        update()
    found: np.ndarray = (before - np.array(cells.var("fc_0.b_0").value)) / RATE
    return found


def gradient() -> np.ndarray:
    return np.linspace(-1, 1, 32, dtype="float32")


@pytest.mark.parametrize("strength", [1.0, 0.5, 0.0])
def test_a_late_gradient_is_corrected_by_how_far_the_parameter_moved(strength: float) -> None:
    g = gradient()
    wanted = g + strength * g * g * 0.2
    np.testing.assert_allclose(applied(asynchronous(strength), 0.2), wanted, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_the_adaptive_form_divides_by_the_root_of_the_mean_square(steps: int) -> None:
    g = gradient()
    mean = (1 - 0.95**steps) * g * g
    wanted = g + 2.0 * g * g * 0.2 / np.sqrt(mean + 1e-7)
    np.testing.assert_allclose(applied(asynchronous(2.0, True), 0.2, steps), wanted, atol=1e-4)


def test_a_gradient_that_is_not_late_stays_as_it_is() -> None:
    np.testing.assert_allclose(applied(asynchronous(3.0), 0.0), gradient(), atol=1e-6)


def test_the_defaults_give_the_originals_program() -> None:
    assert oracle.differences("ps_dc_asgd") == []


def test_sparse_gradients_are_compensated_as_whole_arrays() -> None:
    """The original fails here."""
    program = partial(ZOO.OPTS["sgd"], fluid)
    build = ZOO.word2vec(True, vocab=600, dim=16)
    main, startup = built(lambda: program(build(fluid)))
    transpiler = fluid.DistributeTranspiler(asynchronous())
    transpiler.transpile(0, main, "a:1", 2, sync_mode=False, startup_program=startup)
    server = transpiler.get_pserver_program("a:1")
    block = next(b for b in server.blocks if b.ops[-1].input("Param") == ["shared_w"])
    kinds = [op.type for op in block.ops]
    assert kinds[1:3] == ["fill_zeros_like", "sum"]
    assert block.ops[2].input("X")[1] == "shared_w@GRAD"


def test_compensation_where_servers_wait_is_refused() -> None:
    config = DistributeTranspilerConfig()
    config.enable_dc_asgd = True
    main, startup = built(model)
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(0, main, "a:1", 2, startup_program=startup)
    with pytest.raises(AssertionError, match=r"transpile\(sync_mode=False\)"):
        transpiler.get_pserver_program("a:1")

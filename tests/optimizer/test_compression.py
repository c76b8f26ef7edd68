"""Deep gradient compression: momentum before the ramp, and nothing of a gradient is ever lost
after it.
"""

from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.clip import GradientClipByNorm, GradientClipByValue
from bireme.errors import InvalidArgument
from bireme.optimizer import DGCMomentumOptimizer, Momentum
from bireme.regularizer import L2Decay

from .training import Trained, batches

STEPS = batches(6)


def wide() -> Any:
    """One weight of 4 x 5000, which is compressed, and small ones, which are not."""
    x, y = fluid.layers.data("x", [4]), fluid.layers.data("y", [1])
    hidden = fluid.layers.fc(x, 5000, act="tanh", param_attr="w1", bias_attr="b1")
    guess = fluid.layers.fc(hidden, 1, param_attr="w2", bias_attr="b2")
    return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))


def _dgc(**options: Any) -> Any:
    given = {"rampup_begin_step": 0, "sparsity": [0.9], **options}
    return lambda loss: DGCMomentumOptimizer(0.001, 0.9, **given).minimize(loss)


def test_before_the_ramp_it_is_momentum() -> None:
    model = Trained(_dgc(rampup_begin_step=100), wide)
    plain = Trained(lambda loss: Momentum(0.001, 0.9).minimize(loss), wide)
    assert model.train(STEPS) == plain.train(STEPS)


def test_only_large_parameters_are_compressed() -> None:
    model = Trained(_dgc(), wide)
    ops = model.main.global_block().ops
    compressed = [op.input("Param") for op in ops if op.type == "dgc"]
    assert compressed == [["w1"]]
    updates = {op.input("Param")[0]: op.type for op in ops if "Param" in op.inputs and op.role == 2}
    assert updates == {"w1": "dgc_momentum", "w2": "momentum", "b1": "momentum", "b2": "momentum"}
    pairs = [op.type for op in ops if "w1@GRAD" in op.role_var and op.role == 1]
    assert pairs == ["dgc"]


def test_a_tenth_is_sent_and_the_rest_waits() -> None:
    model, whole = Trained(_dgc(), wide), Trained(_dgc(sparsity=[0.0]), wide)
    _, sent, count = model.step(STEPS[0], ["w1@GRAD", "w1__dgc_k__"])
    _, grad = whole.step(STEPS[0], ["w1@GRAD"])
    assert int(count[0]) == np.count_nonzero(sent) == 2000
    waiting = model.value("w1__dgc_v__0")
    np.testing.assert_array_equal(sent + waiting, grad)
    assert not waiting[sent != 0].any()
    assert np.abs(waiting).max() <= np.abs(sent[sent != 0]).min()


def test_what_waits_gathers_momentum() -> None:
    model, whole = Trained(_dgc(), wide), Trained(_dgc(sparsity=[0.0]), wide)
    _, first = whole.step(STEPS[0], ["w1@GRAD"])
    model.step(STEPS[0])
    waited = model.value("w1__dgc_v__0") != 0
    for name, value in model.parameters().items():
        whole.scope.find_var(name).get_tensor().set(value, fluid.CPUPlace())
    _, sent = model.step(STEPS[1], ["w1@GRAD"])
    _, second = whole.step(STEPS[1], ["w1@GRAD"])
    total = sent + model.value("w1__dgc_v__0")
    expected = np.where(waited, first + (0.9 * first + second), second)
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-7)


def test_with_nothing_waiting_it_is_momentum_again() -> None:
    """Sparsity 0 sends everything, and forgets the momentum with it: descent on the raw
    gradient.
    """
    model = Trained(_dgc(sparsity=[0.0]), wide)
    before = model.value("w1")
    _, grad = model.step(STEPS[0], ["w1@GRAD"])
    np.testing.assert_allclose(model.value("w1"), before - 0.001 * grad, rtol=1e-5, atol=1e-7)


def test_sparsity_climbs_during_the_ramp() -> None:
    model = Trained(_dgc(rampup_begin_step=1, rampup_step=4, sparsity=[0.5, 0.75]), wide)
    counts = [int(model.step(feed, ["w1__dgc_k__"])[1][0]) for feed in STEPS]
    assert counts == [0, 10000, 10000, 5000, 5000, 5000]


def test_decay_and_clipping_happen_before_compression() -> None:
    clipped = _dgc(grad_clip=GradientClipByNorm(0.001), num_trainers=4, regularization=L2Decay(0.5))
    model = Trained(clipped, wide)
    types = [op.type for op in model.main.global_block().ops]
    assert types.index("dgc_clip_by_norm") == types.index("dgc") - 1
    start = model.value("w1")
    _, out = model.step(STEPS[0], ["w1@GRAD"])
    decayed = np.abs(0.5 * start)
    chosen = out != 0
    assert np.abs(out[chosen] - 0.5 * start[chosen]).max() <= 0.0005 + 1e-6
    assert decayed[chosen].min() >= np.quantile(decayed, 0.89)


@pytest.mark.parametrize(
    "options",
    [
        {"sparsity": [1.0]},
        {"sparsity": []},
        {"rampup_begin_step": -1},
        {"rampup_step": 0},
        {"grad_clip": GradientClipByValue(1.0), "num_trainers": 2},
        {"grad_clip": GradientClipByNorm(1.0)},
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        _dgc(**options)(None)

"""Cases of update rules, against the formulas of the papers."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .case import Array, Case, numbers, rows

_P, _G = numbers(5, 3), numbers(5, 3, seed=1)
_RATE = np.array([0.1], dtype=np.float32)
_M, _V = numbers(5, 3, seed=2), numbers(5, 3, low=0.1, seed=3)
_POWERS = {
    "Beta1Pow": np.array([0.81], dtype=np.float32),
    "Beta2Pow": np.array([0.98], dtype=np.float32),
}
_BASE = {"Param": _P, "LearningRate": _RATE}

# Selected rows: one repeats, so rules must add before they square. Row 0 and 2 are not selected.
_IDS, _VALUE = [1, 3, 4, 3], numbers(4, 3, seed=4)
_ROWS = rows(_IDS, _VALUE, 5)
_DENSE = _ROWS.to_dense()
_HIT = np.array([False, True, False, True, True])[:, None]


def _sgd(Param: Array, Grad: Array) -> Array:
    return Param - 0.1 * Grad


def _momentum(Param: Array, Grad: Array, Velocity: Array, use_nesterov: bool) -> dict[str, Array]:
    v = 0.9 * Velocity + Grad
    step = Grad + 0.9 * v if use_nesterov else v
    return {"ParamOut": Param - 0.1 * step, "VelocityOut": v}


def _lars(Param: Array, Grad: Array, Velocity: Array) -> dict[str, Array]:
    size, slope = np.linalg.norm(Param), np.linalg.norm(Grad)
    ratio = 0.01 * size / (slope + 0.05 * size) if size and slope else 1.0
    v = 0.9 * Velocity + 0.1 * ratio * (Grad + 0.05 * Param)
    return {"ParamOut": Param - v, "VelocityOut": v}


def _adam(Param: Array, Grad: Array, Moment1: Array, Moment2: Array, ahead: bool = False) -> Any:
    m, v = 0.9 * Moment1 + 0.1 * Grad, 0.99 * Moment2 + 0.01 * Grad**2
    p1, p2 = 0.81 * 0.9, 0.98 * 0.99
    first, second = (p1, p2) if ahead else (0.81, 0.98)
    rate = 0.1 * np.sqrt(1 - second) / (1 - first)
    return {
        "ParamOut": Param - rate * m / (np.sqrt(v) + 0.05),
        "Moment1Out": m,
        "Moment2Out": v,
        "Beta1PowOut": np.array([p1], dtype=np.float32),
        "Beta2PowOut": np.array([p2], dtype=np.float32),
    }


def _adamax(Param: Array, Grad: Array, Moment: Array, InfNorm: Array) -> dict[str, Array]:
    m, u = 0.9 * Moment + 0.1 * Grad, np.maximum(np.abs(Grad), 0.99 * InfNorm + 0.05)
    return {"ParamOut": Param - 0.1 / (1 - 0.81) * m / u, "MomentOut": m, "InfNormOut": u}


def _lamb(Param: Array, Grad: Array, Moment1: Array, Moment2: Array) -> dict[str, Array]:
    m, v = 0.9 * Moment1 + 0.1 * Grad, 0.99 * Moment2 + 0.01 * Grad**2
    step = m / (np.sqrt(v) + 0.05) + 0.1 * Param
    ratio = np.linalg.norm(Param) / np.linalg.norm(step)
    return {"ParamOut": Param - 0.1 * ratio * step, "Moment1Out": m, "Moment2Out": v}


def _adagrad(Param: Array, Grad: Array, Moment: Array) -> dict[str, Array]:
    m = Moment + Grad**2
    return {"ParamOut": Param - 0.1 * Grad / (np.sqrt(m) + 0.01), "MomentOut": m}


def _decayed(Param: Array, Grad: Array, Moment: Array) -> dict[str, Array]:
    m = 0.8 * Moment + 0.2 * Grad**2
    return {"ParamOut": Param - 0.1 * Grad / (np.sqrt(m) + 0.01), "MomentOut": m}


def _adadelta(Param: Array, Grad: Array, AvgSquaredGrad: Array, AvgSquaredUpdate: Array) -> Any:
    a = 0.8 * AvgSquaredGrad + 0.2 * Grad**2
    b = 0.8 * AvgSquaredUpdate + 0.2 * (AvgSquaredUpdate + 0.01) / (a + 0.01) * Grad**2
    step = np.sqrt((b + 0.01) / (a + 0.01)) * Grad
    return {"ParamOut": Param - step, "AvgSquaredGradOut": a, "AvgSquaredUpdateOut": b}


def _rmsprop(
    Param: Array, Grad: Array, Moment: Array, MeanSquare: Array, MeanGrad: Array, centered: bool
) -> dict[str, Array]:
    s = 0.9 * MeanSquare + 0.1 * Grad**2
    c = 0.9 * MeanGrad + 0.1 * Grad if centered else MeanGrad
    spread = s - c**2 if centered else s
    n = 0.5 * Moment + 0.1 * Grad / np.sqrt(spread + 0.05)
    return {"ParamOut": Param - n, "MomentOut": n, "MeanSquareOut": s, "MeanGradOut": c}


def _ftrl(
    Param: Array,
    Grad: Array,
    SquaredAccumulator: Array,
    LinearAccumulator: Array,
    l1: float,
    l2: float,
    lr_power: float,
) -> dict[str, Array]:
    n = SquaredAccumulator + Grad**2
    sigma = (n**-lr_power - SquaredAccumulator**-lr_power) / 0.1
    z = LinearAccumulator + Grad - sigma * Param
    shrunk = np.sign(z) * l1 - z
    p = np.where(np.abs(z) > l1, shrunk / (n**-lr_power / 0.1 + 2 * l2), 0)
    return {"ParamOut": p, "SquaredAccumOut": n, "LinearAccumOut": z}


def _proximal(p: Array, l1: float, l2: float) -> Array:
    return np.sign(p) * np.maximum(np.abs(p) - 0.1 * l1, 0) / (1 + 0.1 * l2)


def _proximal_adagrad(Param: Array, Grad: Array, Moment: Array, l1: float, l2: float) -> Any:
    m = Moment + Grad**2
    return {"ParamOut": _proximal(Param - 0.1 * Grad / np.sqrt(m), l1, l2), "MomentOut": m}


def _dpsgd(Param: Array, Grad: Array, clip: float) -> Array:
    return Param - 0.1 * Grad / max(1.0, np.linalg.norm(Grad) / clip)


def _float32(found: Any) -> Any:
    if isinstance(found, dict):
        return {slot: np.asarray(value, dtype=np.float32) for slot, value in found.items()}
    return np.asarray(found, dtype=np.float32)


def _case(op: str, rule: Any, label: str = "", **inputs: Any) -> Case:
    """A case of a dense gradient; attributes are the lower-case arguments."""
    attrs = {k: v for k, v in inputs.items() if k[0].islower()}
    slots = {"Grad": _G, **_BASE, **{k: v for k, v in inputs.items() if k[0].isupper()}}
    if op == "adadelta":
        del slots["LearningRate"]
    wanted = rule.__code__.co_varnames[: rule.__code__.co_argcount]
    known = {**slots, **attrs}
    expect = _float32(rule(**{n: known[n] for n in wanted if n in known}))
    return Case(
        op,
        slots,
        expect if isinstance(expect, dict) else {"ParamOut": expect},
        attrs,
        label=label,
        batch=False,
    )


def _sparse(op: str, rule: Any, lazy: bool, label: str = "", **inputs: Any) -> Case:
    """The same for selected rows; a lazy rule leaves the other rows as they are."""
    dense = _case(op, rule, Grad=_DENSE, **inputs)
    expect = dict(dense.expect)
    if lazy:
        for out, value in expect.items():
            old = dense.inputs.get(_SOURCES.get(out, out[:-3]))
            if value.shape == _P.shape:
                expect[out] = np.where(_HIT, value, old)
    return Case(
        op, {**dense.inputs, "Grad": _ROWS}, expect, dense.attrs, label=label or "rows", batch=False
    )


_SOURCES = {"SquaredAccumOut": "SquaredAccumulator", "LinearAccumOut": "LinearAccumulator"}
_MOMENTUM = {"Velocity": _M, "mu": 0.9}
_LARS = {"Velocity": _M, "mu": 0.9, "lars_coeff": 0.01, "lars_weight_decay": 0.05}
_BETAS = {"beta1": 0.9, "beta2": 0.99, "epsilon": 0.05}
_ADAM = {"Moment1": _M, "Moment2": _V, **_POWERS, **_BETAS}
_RMS = {
    "Moment": _M,
    "MeanSquare": _V + 2,
    "MeanGrad": 0.1 * _M,
    "epsilon": 0.05,
    "decay": 0.9,
    "momentum": 0.5,
}
_FTRL = {"SquaredAccumulator": _V, "LinearAccumulator": _M}


def _ahead(Param: Array, Grad: Array, Moment1: Array, Moment2: Array) -> Any:
    return _adam(Param, Grad, Moment1, Moment2, ahead=True)


def _windows() -> Iterator[Case]:
    """A short window, one that is full, and one whose short sum spills."""
    a, b, c = numbers(5, 3, seed=5), numbers(5, 3, seed=6), numbers(5, 3, seed=7)
    zero = np.zeros_like(a)

    def count(n: int) -> Array:
        return np.array([n], dtype=np.int64)

    for label, before, after in (
        ("open", (3, 1, 0), (a + _P, b, c, 2, 0, 4)),
        ("full", (9, 4, 2), (zero, zero, a + _P + b, 0, 5, 10)),
        ("spill", (16383, 2, 2), (zero, b + a + _P, c, 3, 2, 16384)),
    ):
        updates, number, old = before
        sums, counts = after[:3], after[3:]
        names = ("num_accumulates", "old_num_accumulates", "num_updates")
        yield Case(
            "average_accumulates",
            {
                "param": _P,
                "in_sum_1": a,
                "in_sum_2": b,
                "in_sum_3": c,
                "in_num_updates": count(updates),
                "in_num_accumulates": count(number),
                "in_old_num_accumulates": count(old),
            },
            {
                **{f"out_sum_{i + 1}": s for i, s in enumerate(sums)},
                **{f"out_{n}": count(v) for n, v in zip(names, counts, strict=True)},
            },
            {"average_window": 0.5, "max_average_window": 10, "min_average_window": 5},
            label=label,
            batch=False,
        )


CASES = [
    _case("sgd", _sgd),
    _case("sgd", _sgd, "tall", Param=numbers(300, 150), Grad=numbers(300, 150, seed=1)),
    _sparse("sgd", _sgd, lazy=True),
    _case("momentum", _momentum, use_nesterov=False, **_MOMENTUM),
    _case("momentum", _momentum, "nesterov", use_nesterov=True, **_MOMENTUM),
    _sparse("momentum", _momentum, lazy=False, use_nesterov=False, **_MOMENTUM),
    _case("lars_momentum", _lars, **_LARS),
    _case("lars_momentum", _lars, "zero", Param=np.zeros_like(_P), **_LARS),
    _case("adagrad", _adagrad, Moment=_V, epsilon=0.01),
    _sparse("adagrad", _adagrad, lazy=True, Moment=_V, epsilon=0.01),
    _case("decayed_adagrad", _decayed, Moment=_V, epsilon=0.01, decay=0.8),
    _case(
        "adadelta",
        _adadelta,
        AvgSquaredGrad=_V,
        AvgSquaredUpdate=_V[::-1].copy(),
        epsilon=0.01,
        rho=0.8,
    ),
    _case("adam", _adam, **_ADAM),
    _sparse("adam", _ahead, lazy=False, **_ADAM),
    _sparse("adam", _ahead, lazy=True, label="lazy", lazy_mode=True, **_ADAM),
    _case("adamax", _adamax, Moment=_M, InfNorm=_V, Beta1Pow=_POWERS["Beta1Pow"], **_BETAS),
    _case("lamb", _lamb, weight_decay=0.1, **_ADAM),
    _sparse("lamb", _lamb, lazy=False, weight_decay=0.1, **_ADAM),
    _case("rmsprop", _rmsprop, centered=False, **_RMS),
    _case("rmsprop", _rmsprop, "centered", centered=True, **_RMS),
    _sparse("rmsprop", _rmsprop, lazy=False, centered=False, **_RMS),
    _case("ftrl", _ftrl, l1=0.3, l2=0.2, lr_power=-0.5, **_FTRL),
    _case("ftrl", _ftrl, "power", l1=0.0, l2=0.0, lr_power=-0.3, **_FTRL),
    _sparse("ftrl", _ftrl, lazy=True, l1=0.3, l2=0.2, lr_power=-0.5, **_FTRL),
    _case("dpsgd", _dpsgd, clip=0.5, batch_size=4.0, sigma=0.0),
    _case(
        "proximal_gd",
        lambda Param, Grad, l1, l2: _proximal(Param - 0.1 * Grad, l1, l2),
        l1=0.3,
        l2=0.2,
    ),
    _case("proximal_adagrad", _proximal_adagrad, Moment=_V, l1=0.3, l2=0.2),
    *_windows(),
]

"""Optimizers, kinds of parameters and learning rates, and the model that has one of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import bireme as fluid
from tests.support.job import Build

__all__ = ["OPTIMIZERS", "RATES", "TABLES", "Combination", "feed"]

ROWS, WIDTH, HIDDEN, BATCH = 160, 128, 130, 4  # servers share what has 8,192 elements each
BEGIN = 0.05

Rate = Any  # a number, or the variable of a schedule


def _averaged(rate: Rate, loss: Any) -> None:
    fluid.optimizer.SGD(rate).minimize(loss)
    fluid.optimizer.ModelAverage(0.5, min_average_window=2, max_average_window=4)


def _followed(rate: Rate, loss: Any) -> None:
    fluid.optimizer.SGD(rate).minimize(loss)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()


def _recomputed(rate: Rate, loss: Any) -> None:
    made = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.Adam(rate))
    made._set_checkpoints([loss.block.var("hidden")])
    made.minimize(loss)


def _plain(make: Callable[[Rate], Any]) -> Callable[[Rate, Any], None]:
    def minimize(rate: Rate, loss: Any) -> None:
        make(rate).minimize(loss)

    return minimize


_o = fluid.optimizer
OPTIMIZERS: dict[str, Callable[[Rate, Any], None]] = {
    "SGD": _plain(_o.SGD),
    "Momentum": _plain(lambda rate: _o.Momentum(rate, 0.9)),
    "Momentum, Nesterov": _plain(lambda rate: _o.Momentum(rate, 0.9, use_nesterov=True)),
    "LarsMomentum": _plain(lambda rate: _o.LarsMomentum(rate, 0.9)),
    "Adagrad": _plain(_o.Adagrad),
    "DecayedAdagrad": _plain(_o.DecayedAdagrad),
    "Adadelta": _plain(_o.Adadelta),
    "RMSProp": _plain(lambda rate: _o.RMSProp(rate, momentum=0.9)),
    "RMSProp, centered": _plain(lambda rate: _o.RMSProp(rate, momentum=0.9, centered=True)),
    "Ftrl": _plain(lambda rate: _o.Ftrl(rate, l1=0.01)),
    "Adam": _plain(_o.Adam),
    "Adam, lazy": _plain(lambda rate: _o.Adam(rate, lazy_mode=True)),
    "Adamax": _plain(_o.Adamax),
    "Lamb": _plain(_o.Lamb),
    "Dpsgd": _plain(lambda rate: _o.Dpsgd(rate, sigma=0.1)),
    "DGCMomentum": _plain(lambda rate: _o.DGCMomentumOptimizer(rate, 0.9, 0)),
    "Lookahead over SGD": _plain(lambda rate: _o.LookaheadOptimizer(_o.SGD(rate), k=2)),
    "GradientMerge over SGD": _plain(lambda rate: _o.GradientMergeOptimizer(_o.SGD(rate), 2)),
    "Recompute over Adam": _recomputed,
    "SGD with ModelAverage": _averaged,
    "SGD with ExponentialMovingAverage": _followed,
}

_l = fluid.layers
RATES: dict[str, Callable[[], Rate]] = {
    "constant": lambda: BEGIN,
    "noam_decay": lambda: _l.noam_decay(64, 3, BEGIN),
    "exponential_decay": lambda: _l.exponential_decay(BEGIN, 3, 0.5),
    "natural_exp_decay": lambda: _l.natural_exp_decay(BEGIN, 3, 0.5),
    "inverse_time_decay": lambda: _l.inverse_time_decay(BEGIN, 3, 0.5),
    "polynomial_decay": lambda: _l.polynomial_decay(BEGIN, 3, 0.01, cycle=True),
    "piecewise_decay": lambda: _l.piecewise_decay([2, 4], [BEGIN, BEGIN / 2, BEGIN / 4]),
    "cosine_decay": lambda: _l.cosine_decay(BEGIN, 2, 3),
    "linear_lr_warmup": lambda: _l.linear_lr_warmup(BEGIN, 4, 0.01, BEGIN),
    "warm-up, then exponential_decay": lambda: _l.linear_lr_warmup(
        _l.exponential_decay(BEGIN, 3, 0.5), 4, 0.01, BEGIN
    ),
}

TABLES: dict[str, dict[str, Any]] = {
    "dense": {"size": [ROWS, WIDTH]},
    "`is_sparse`": {"size": [ROWS, WIDTH], "is_sparse": True},
    "distributed": {"size": [ROWS, WIDTH], "is_sparse": True, "is_distributed": True},
    "growing": {"size": [-1, WIDTH], "is_sparse": True},
}


@dataclass(frozen=True)
class Combination:
    """One row of each of the three."""

    optimizer: str
    table: str
    rate: str
    seed: int = 3

    def __str__(self) -> str:
        return f"{self.optimizer}, {self.table}, {self.rate}"

    @property
    def build(self) -> Build:
        """An embedding, a layer that both servers hold a part of, and one that lies on one."""

        def build() -> tuple[Any, Any, Any]:
            main, startup = fluid.Program(), fluid.Program()
            main.random_seed = startup.random_seed = self.seed
            with fluid.unique_name.guard(), fluid.program_guard(main, startup):
                ids, y = fluid.layers.data("ids", [1], dtype="int64"), fluid.layers.data("y", [1])
                rows = fluid.layers.embedding(ids, **TABLES[self.table], param_attr="table")
                hidden = fluid.layers.fc(rows, HIDDEN, act="tanh", name="first")
                again = main.current_block().create_var(name="hidden", dtype="float32")
                fluid.layers.assign(hidden, again)
                error = fluid.layers.square_error_cost(fluid.layers.fc(again, 1), y)
                loss = fluid.layers.mean(error)
                OPTIMIZERS[self.optimizer](RATES[self.rate](), loss)
            return main, startup, loss

        return build


def feed(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng((step, trainer))
    ids = np.sort(
        random.integers(trainer * ROWS // 2, (trainer + 1) * ROWS // 2, (BATCH, 1)), axis=0
    )
    return {"ids": ids, "y": random.normal(size=(BATCH, 1)).astype("float32")}

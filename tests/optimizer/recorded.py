"""More cases like those of `tests/oracle/zoo.py`, with what Fluid 1.8.5 made of them.

`tests/golden/optimizer/NAME.json.gz` holds the programs in the form of `dump.py` and, where the
case was run, the curve in the form of `curves.py`.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support import oracle

HOME = Path(__file__).parent.parent / "golden" / "optimizer"
Case = Any
Kind = str

_CLIPS: dict[str, tuple[Any, ...]] = {
    "value": ("value", 0.5, -0.2),
    "norm": ("norm", 1.0),
    "global": ("global", 1.0),
}


@cache
def zoo() -> ModuleType:
    return oracle.tool("zoo")


@cache
def cases() -> dict[str, tuple[Case, Kind]]:
    """All cases by name, each with the kind of data it is fed ("" if it was not run)."""
    return {name: (zoo().Case(name, model, opt, zoo().LOCAL, ""), kind)
            for name, model, opt, kind in _listed()}  # fmt: skip


def _listed() -> Iterator[tuple[str, Any, Callable[..., Any], Kind]]:
    z = zoo()
    small, words = z.mlp_tanh_small, z.word2vec(True)
    for name in ("rmsprop_centered", "adamax", "ftrl", "lars_momentum"):
        yield name, small, z.OPTS[name], "mlp_tanh_small"
    for name in ("natural_exp", "polynomial_cycle", "noam", "cosine"):
        yield f"lr_{name}", small, z.opt("SGD", sched=z.SCHEDS[name]), "mlp_tanh_small"
    for name in ("nesterov", "adam", "rmsprop", "rmsprop_centered", "lamb"):
        yield f"sparse_{name}", words, z.OPTS[name], "word2vec"
    yield from _dense()
    for key, clip in _CLIPS.items():
        for door in ("", "set_"):
            how = (door + clip[0], *clip[1:])
            dense = z.opt("Momentum", momentum=0.9, clip=how, reg=("l2", 0.01))
            yield f"clip_{door}{key}", small, dense, "mlp_tanh_small"
            yield f"sparse_clip_{door}{key}", words, z.opt("SGD", clip=how), "word2vec"
    lazy = z.opt("Adam", clip=_CLIPS["global"], reg=("l1", 0.01), lazy_mode=True)
    yield "sparse_clip_l1", words, lazy, ""
    frozen = z.opt("Adam", reg=("l1", 0.01), sched=z.SCHEDS["noam"])
    yield "frozen", z.frozen_and_lr, frozen, "frozen_and_lr"
    yield "frozen_ftrl", z.frozen_and_lr, z.OPTS["ftrl"], "frozen_and_lr"
    steep = z.opt("Momentum", lr=0.1, momentum=0.9, clip=("norm", 0.05))
    yield "sparse_clip_momentum", words, steep, "word2vec"
    yield "initializers", z.init_mix, z.OPTS["adam"], ""
    yield "two_optimizers", z.two_losses, z.opt_two, ""
    yield "two_losses", z.two_losses, z.OPTS["adam"], ""
    yield "multi_adamax", z.multi_loss, z.OPTS["adamax"], ""


def _dense() -> Iterator[tuple[str, Any, Callable[..., Any], Kind]]:
    """Dense twins of the cases in which the original loses rows: `dense_X` of `sparse_X`."""
    z = zoo()
    steep = z.opt("Momentum", lr=0.1, momentum=0.9, clip=("norm", 0.05))
    plain = z.opt("Momentum", lr=0.1, momentum=0.9)
    yield "dense_momentum", z.word2vec(False), plain, "word2vec"
    yield "dense_clip_momentum", z.word2vec(False), steep, "word2vec"
    for name in ("nesterov", "rmsprop", "rmsprop_centered"):
        yield f"dense_{name}", z.word2vec(False), z.OPTS[name], "word2vec"


def load(name: str) -> dict[str, Any]:
    """What 1.8.5 made of a case."""
    with gzip.open(HOME / f"{name}.json.gz", "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found

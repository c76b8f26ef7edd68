"""Let `import paddle.fluid` mean bireme, so that Fluid 1.x scripts run as they are.

Knows where each of Fluid's module names lives here. A name without a home raises ImportError, as
a missing module should.
"""

import sys
import types
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

import numpy as np

import bireme
from bireme.errors import UnsupportedError
from bireme.framework import SPOKEN_VERSION

__all__ = ["SPOKEN_VERSION", "install"]

FLUID, DATASET = "paddle.fluid", "paddle.dataset"
RENAMED = {
    FLUID: "bireme",
    DATASET: "bireme.dataset",
    "paddle.fluid.unique_name": "bireme.ir.unique_name",
    "paddle.reader": "bireme.reader",
}


def home_of(name: str) -> str | None:
    """The module of ours that `name` means, if it is there."""
    if name in RENAMED:
        return RENAMED[name]
    if name.startswith(f"{DATASET}."):
        return _existing("bireme.dataset" + name.removeprefix(DATASET))
    if not name.startswith(f"{FLUID}."):
        return None
    rest = name.removeprefix(f"{FLUID}.")
    return bireme.MODULES_ELSEWHERE.get(rest) or _existing(f"bireme.{rest}")


def _existing(module: str) -> str | None:
    try:
        return module if find_spec(module) else None
    except ModuleNotFoundError:
        return None


class _Alias(Loader):
    """Puts our module under Fluid's name; the import system picks it up from `sys.modules`."""

    def __init__(self, target: str | None) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        if self._target:
            sys.modules[module.__name__] = import_module(self._target)
            return
        module.__version__ = SPOKEN_VERSION  # type: ignore[attr-defined]  # the name `paddle`
        module.__getattr__ = _from_paddle  # type: ignore[method-assign]  # PEP 562


def _from_paddle(name: str) -> object:
    """What `paddle` itself offers beside its modules."""
    if name == "batch":
        return import_module("bireme.reader").batch
    if name in ("fluid", "reader", "dataset"):
        return import_module(f"paddle.{name}")
    raise AttributeError(f"module 'paddle' has no attribute '{name}'")


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "paddle":
            return ModuleSpec(name, _Alias(None), is_package=True)
        home = home_of(name)
        return ModuleSpec(name, _Alias(home), is_package=True) if home else None


def install() -> None:
    """From now on, in this process, `paddle` is bireme; calling it again changes nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "paddle" in sys.modules:
        raise UnsupportedError(
            "paddle is already imported in this process",
            hint="run the script with `bireme run`, which comes first",
        )
    sys.meta_path.insert(0, _Finder())
    for plain in (bool, int, float, complex, object, str):
        if plain.__name__ not in vars(np):  # names that NumPy had while Fluid lived
            setattr(np, plain.__name__, plain)

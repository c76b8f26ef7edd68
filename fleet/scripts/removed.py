"""Modules that Python had while Fluid lived, as far as training scripts use them: `distutils` and
`imp` left in 3.12.
"""

import importlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
import types
from functools import total_ordering
from typing import Any

__all__ = ["MODULES"]

_TRUE, _FALSE = "y yes t true on 1".split(), "n no f false off 0".split()


def strtobool(value: str) -> int:
    """1 for yes, true, on and the like, 0 for their opposites.

    Raises:
        ValueError: the word is neither.
    """
    word = value.lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"invalid truth value {value!r}")
    return int(word in _TRUE)


@total_ordering
class LooseVersion:
    """A version as its numbers and words, compared part by part."""

    def __init__(self, vstring: str = "") -> None:
        self.vstring = str(vstring)
        parts = re.findall(r"\d+|[a-z]+", self.vstring.lower())
        self.version = [int(part) if part.isdecimal() else part for part in parts]

    def __str__(self) -> str:
        return self.vstring

    def __repr__(self) -> str:
        return f"LooseVersion('{self.vstring}')"

    def _parts(self) -> list[tuple[int, Any]]:
        """Numbers after words, so that 1.0rc comes before 1.0.1."""
        return [(int(isinstance(part, int)), part) for part in self.version]

    def __eq__(self, other: object) -> bool:
        return self._parts() == LooseVersion(str(other))._parts()

    def __lt__(self, other: object) -> bool:
        return self._parts() < LooseVersion(str(other))._parts()

    def __hash__(self) -> int:
        return hash(self.vstring)


def copy_tree(src: str, dst: str, *_: Any, **__: Any) -> list[str]:
    """Copy a folder's content into another one, which may exist."""
    shutil.copytree(src, dst, dirs_exist_ok=True)
    return [os.path.join(at, file) for at, _folders, files in os.walk(dst) for file in files]


def mkpath(name: str, mode: int = 0o777, *_: Any, **__: Any) -> None:
    """Make a folder and those above it."""
    os.makedirs(name, mode, exist_ok=True)


def copy_file(src: str, dst: str, *_: Any, **__: Any) -> tuple[str, int]:
    """Copy one file with its times."""
    return str(shutil.copy2(src, dst)), 1


def load_source(name: str, pathname: str) -> types.ModuleType:
    """Run a file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, pathname)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {pathname}", name=name, path=pathname)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MODULES: dict[str, dict[str, Any]] = {
    "distutils": {},
    "distutils.util": {"strtobool": strtobool},
    "distutils.version": {"LooseVersion": LooseVersion, "StrictVersion": LooseVersion},
    "distutils.spawn": {"find_executable": shutil.which},
    "distutils.dir_util": {"copy_tree": copy_tree, "mkpath": mkpath, "remove_tree": shutil.rmtree},
    "distutils.file_util": {"copy_file": copy_file},
    "distutils.sysconfig": {
        "get_python_inc": lambda *_: sysconfig.get_path("include"),
        "get_python_lib": lambda *_: sysconfig.get_path("purelib"),
    },
    "imp": {
        "reload": importlib.reload,
        "load_source": load_source,
        "new_module": types.ModuleType,
    },
}

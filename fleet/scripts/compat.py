"""Let `import paddle.fluid` mean bireme, so that Fluid 1.x scripts run as they are.

Knows how the import system is told; where each name lives is `names`' business. A module without
a home raises ImportError, as a missing module should.
"""

import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from bireme.errors import UnsupportedError

from . import names, removed, surroundings
from .names import home_of

__all__ = ["become_paddle", "for_children", "home_of", "install"]

CHILDREN = Path(__file__).parent / "children"  # a folder whose `paddle` is bireme


class _Alias(Loader):
    """Puts our module under Fluid's name; the import system picks it up from `sys.modules`."""

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return None

    def get_code(self, name: str) -> types.CodeType | None:
        """What `python -m NAME` executes."""
        home = names.PROGRAMS.get(name)
        return compile(f"from {home} import main\nmain()", name, "exec") if home else None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if home := home_of(name):
            sys.modules[name] = ours = import_module(home)
            vars(ours).setdefault("__path__", [])  # Fluid's module may be a package
            if "__all__" in vars(ours) and "." in home and name in names.modules():
                vars(ours)["__all__"] = _Exported(ours, name)
            return
        _forward(module, name)


def _forward(module: types.ModuleType, fluid: str) -> None:
    """Make a module of our own answer for Fluid's module `fluid`."""
    module.__getattr__ = _Names(module, fluid)  # type: ignore[method-assign]  # PEP 562
    module.__all__ = _Exported(module, fluid)  # type: ignore[attr-defined]


class _Names:
    """The `__getattr__` of a module: its own, then the names that Fluid's namesakes have."""

    def __init__(self, module: types.ModuleType, *fluid: str) -> None:
        self._module, self._fluid = module, fluid
        self.own: Callable[[str], Any] | None = vars(module).get("__getattr__")

    def __call__(self, name: str) -> Any:
        if self.own is not None:
            try:
                return self.own(name)
            except AttributeError:
                pass
        if not name.startswith("__") or name == "__version__":
            for module in self._fluid:
                try:
                    return names.find(module, name)
                except AttributeError:
                    continue
        where = self._fluid[0]
        raise AttributeError(
            f"module {where!r} has no attribute {name!r}", name=name, obj=self._module
        )


class _Exported(Sequence[str]):
    """What `from module import *` brings: the public names of Fluid's module that are here."""

    def __init__(self, module: types.ModuleType, fluid: str) -> None:
        self._module, self._fluid = module, fluid
        self._own = list(vars(module).get("__all__", ()))

    def _names(self) -> list[str]:
        wanted = [n for n in names.known(self._fluid) if not n.startswith("_")]
        return list(dict.fromkeys(self._own + [n for n in wanted if hasattr(self._module, n)]))

    def __getitem__(self, index: Any) -> Any:
        return self._names()[index]

    def __len__(self) -> int:
        return len(self._names())


class _Completed(Loader):
    """Loads a module as its own loader does, then gives it what old scripts look for in it."""

    def __init__(self, loader: Any, complete: Callable[[types.ModuleType], None]) -> None:
        self._loader = loader
        self._complete = complete

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._complete(module)


class _Dropped(MetaPathFinder, Loader):
    """Modules that the standard library had; asked last, so that an installed one comes first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in removed.MODULES else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module).update(removed.MODULES[module.__name__])


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] == "paddle":
            here = name == "paddle" or (names.is_module(name) and names.is_here(name))
            package = name not in names.PROGRAMS
            found = here or home_of(name)
            return ModuleSpec(name, _Alias(), is_package=package) if found else None
        complete = _completion(name)
        spec = self._elsewhere(name, path, target) if complete else None
        if spec is not None and complete is not None and spec.loader is not None:
            spec.loader = _Completed(spec.loader, complete)
        return spec

    def _elsewhere(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        return next((spec for spec in found if spec is not None), None)


def _completion(name: str) -> Callable[[types.ModuleType], None] | None:
    if name in names.namesakes():
        return _complete
    return surroundings.COMPLETIONS.get(name)


def _complete(module: types.ModuleType) -> None:
    """Let a module of ours answer for the modules of Fluid that it stands for."""
    own = _Names(module, *names.namesakes()[module.__name__])
    module.__getattr__ = own  # type: ignore[method-assign]  # PEP 562


def become_paddle(module: types.ModuleType) -> None:
    """Make a module what `import paddle` gives."""
    module.__getattr__ = _Names(module, "paddle")  # type: ignore[method-assign]  # PEP 562


def install() -> None:
    """From now on, in this process, `paddle` is bireme; calling it again changes nothing.

    Raises:
        UnsupportedError: another `paddle` is already imported.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "paddle" in sys.modules and not _is_ours(sys.modules["paddle"]):
        raise UnsupportedError(
            "paddle is already imported in this process",
            hint="run the script with `bireme run`, which comes first",
        )
    for name in names.shadowed():  # an import of such a module would replace the function
        sys.modules[name] = types.ModuleType(name)
        _forward(sys.modules[name], name)
    completed = {*names.namesakes(), *surroundings.COMPLETIONS}
    sys.meta_path.insert(0, _Finder())
    sys.meta_path.append(_Dropped())
    for name in completed.intersection(sys.modules):
        if complete := _completion(name):
            complete(sys.modules[name])
    surroundings.install()


def _is_ours(module: types.ModuleType) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(CHILDREN)


def for_children() -> None:
    """Let Python processes that this one starts find `paddle`, and `python` mean this Python."""
    _prepend("PYTHONPATH", str(CHILDREN))
    if os.path.exists(os.path.join(os.path.dirname(sys.executable), "python")):
        _prepend("PATH", os.path.dirname(sys.executable))


def _prepend(variable: str, folder: str) -> None:
    parts = [part for part in os.environ.get(variable, "").split(os.pathsep) if part]
    if folder not in parts[:1]:
        os.environ[variable] = os.pathsep.join([folder, *parts])

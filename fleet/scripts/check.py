"""`bireme check`: read scripts without running them, and list what will stop or surprise them."""

import ast
import builtins
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from bireme.errors import ConfigError

from . import advice, compat
from .python2 import old_syntax

__all__ = ["Finding", "findings", "report", "scripts"]

STOPS = ("missing", "python 2", "module", "syntax")  # kinds that end a run
_CUDA = ("CUDAPlace", "cuda_places", "CUDAPinnedPlace", "cuda_pinned_places")


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One thing in one line; `kind` is missing, python 2, module, syntax, cuda or deprecated."""

    line: int
    kind: str
    name: str
    advice: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.kind}: {self.name}: {self.advice}"


def scripts(paths: list[str]) -> list[Path]:
    """The files to read: each path, or every .py file below a folder.

    Raises:
        ConfigError: a path does not exist.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ConfigError(f"there is no script {path}", where=f"looked from {Path.cwd()}")
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def report(path: Path) -> tuple[list[str], bool]:
    """The lines to print for one script, and whether something in it ends a run."""
    rows = findings(path.read_text(errors="replace"), path.parent)
    lines = [f"{path}: {row}" for row in rows]
    return lines, any(row.kind in STOPS for row in rows)


def findings(source: str, folder: Path = Path()) -> list[Finding]:
    """What a script will meet, in the order of its lines; each name once."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        rows = [Finding(n, "python 2", line, what) for n, line, what in old_syntax(source)]
        at = error.lineno or 0
        if not rows:
            rows = [Finding(at, "syntax", (error.text or "").strip(), error.msg)]
        return sorted({*rows, *_unparsed_names(source)})
    compat.install()
    script = _Script(folder)
    script.visit(tree)
    return sorted(script.found.values())


def _unparsed_names(source: str) -> Iterator[Finding]:
    """Missing names of `fluid.` in a script that cannot be parsed."""
    compat.install()
    seen: set[str] = set()
    for number, line in enumerate(source.splitlines(), 1):
        for match in re.finditer(r"\b(?:paddle\.)?fluid((?:\.\w+)+)", line.partition("#")[0]):
            path = f"paddle.fluid{match[1]}"
            missing = _missing(path)
            if missing and missing not in seen:
                seen.add(missing)
                yield Finding(number, "missing", missing, advice.on_name(missing, path))


class _Script(ast.NodeVisitor):
    """Follows the names that stand for modules of `paddle`."""

    def __init__(self, folder: Path) -> None:
        self.found: dict[tuple[str, str], Finding] = {}
        self._folder = folder
        self._searches = False  # whether it changes where Python looks for modules
        self._paths: dict[str, str] = {}  # a name of the script -> a dotted name of paddle
        self._own: set[str] = set()
        self._guards = 0

    def _add(self, node: ast.AST, kind: str, name: str, text: str) -> None:
        line = getattr(node, "lineno", 0)
        self.found.setdefault((kind, name), Finding(line, kind, name, text))

    # -- imports ------------------------------------------------------------------------------
    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "paddle":
                bound = alias.asname or "paddle"
                self._paths[bound] = alias.name if alias.asname else "paddle"
                self._check(node, alias.name)
            else:
                self._module(node, alias.name)
                self._own.add(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            return
        if module.partition(".")[0] != "paddle":
            self._module(node, module)
            self._own.update(alias.asname or alias.name for alias in node.names)
            return
        for alias in node.names:
            path = module if alias.name == "*" else f"{module}.{alias.name}"
            self._paths[alias.asname or alias.name] = path
            self._check(node, path)

    def _module(self, node: ast.AST, name: str) -> None:
        top = name.partition(".")[0]
        if top in advice.MODULES and not self._guards:
            self._add(node, "python 2", name, f"write {advice.MODULES[top]}")
        elif not self._guards and not self._is_installed(top):
            package = advice.BROUGHT.get(top)
            text = f"pip install {package}" if package else "not installed, nor beside the script"
            self._add(node, "module", top, text)

    def _is_installed(self, top: str) -> bool:
        """Whether a script of this folder can import a package, as far as can be seen."""
        beside = any((self._folder / name).exists() for name in (top, f"{top}.py"))
        return beside or self._searches or find_spec(top) is not None

    # -- uses ---------------------------------------------------------------------------------
    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self._searches |= ast.unparse(node) == "sys.path"
            self.generic_visit(node)
            if node.attr in advice.METHODS and node.attr not in ("letters",):
                self._add(node, "python 2", f".{node.attr}", f"write {advice.METHODS[node.attr]}")
            return
        self._check(node, path)
        if path.rpartition(".")[2] in _CUDA and not self._guards:
            self._add(node, "cuda", path, "needs a CUDA device: on a CPU write fluid.CPUPlace()")

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if isinstance(node.ctx, ast.Store):
            self._own.add(name)
        elif name in self._paths:
            self._check(node, self._paths[name])
        elif name in advice.BUILTINS and not self._guards and not self._defined(name):
            self._add(node, "python 2", name, f"write {advice.BUILTINS[name]}")

    def _defined(self, name: str) -> bool:
        return name in self._own or hasattr(builtins, name)

    def visit_Assign(self, node: ast.Assign) -> None:
        """`layers = fluid.layers` gives a module another name."""
        path = self._path(node.value)
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._paths.pop(target.id, None)
                if path is not None:
                    self._paths[target.id] = path

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._own.add(node.name)
        self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        """What stands in `try` may fail."""
        self._guards += 1
        self.generic_visit(node)
        self._guards -= 1

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._guards += 1
        for child in [*node.body, *node.orelse]:
            self.visit(child)
        self._guards -= 1

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._guards += 1
        self.generic_visit(node)
        self._guards -= 1

    def _path(self, node: ast.AST) -> str | None:
        """The dotted name of paddle that an expression stands for."""
        if isinstance(node, ast.Name):
            return self._paths.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self._path(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None

    def _check(self, node: ast.AST, path: str) -> None:
        missing = _missing(path)
        if missing:
            self._add(node, "missing", missing, advice.on_name(missing, path))
        for name, text in advice.DEPRECATED.items():
            if path == name or path.startswith(f"{name}."):
                self._add(node, "deprecated", name, text)


def _missing(path: str) -> str:
    """The shortest part of a dotted name that is not here; "" if all of it is."""
    parts = path.split(".")
    value: Any = import_module("paddle")
    for n in range(1, len(parts)):
        reached = ".".join(parts[: n + 1])
        if not isinstance(value, ModuleType | type):
            return ""
        try:
            value = getattr(value, parts[n])
        except AttributeError:
            if not isinstance(value, ModuleType):
                return reached if _has_no_instances_of_its_own(value) else ""
            try:
                value = import_module(reached)
            except ImportError:
                return reached
    return ""


def _has_no_instances_of_its_own(kind: Any) -> bool:
    """Whether all that a class has stands in it: an Enum, or a namespace of names."""
    return isinstance(kind, type) and "__init__" not in vars(kind)

"""Reads the tree of one script: the names of paddle that it uses, what only Python 2 knows, and the
modules that it imports.
"""

import ast
import builtins
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from bireme.errors import BiremeError

from . import advice
from .conditions import truth
from .lazy_values import lazy_kind, needing_lists
from .own_modules import Import, Project

__all__ = ["Finding", "ScriptReader", "missing_part"]

LONGEST = 120  # letters of a line that are shown
_CUDA = ("CUDAPlace", "cuda_places", "CUDAPinnedPlace", "cuda_pinned_places")
_OF_IMPORTS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_OF_PYTHON_2 = ("os", "string", "sys")  # modules that had names of `advice.METHODS`
_LAYERS = ("paddle.fluid.layers.", "paddle.fluid.nets.")
_ENDS = ("exit", "quit", "_exit")
_REFUSED = "UnsupportedError: always."  # in the docstring of a function that only refuses


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """One thing in one line; `kind` is one of those that `bireme check --help` lists."""

    line: int
    kind: str
    name: str
    advice: str

    def __str__(self) -> str:
        name = self.name if len(self.name) <= LONGEST else f"{self.name[:LONGEST]}..."
        return f"line {self.line}: {self.kind}: {name}: {self.advice}"


class ScriptReader(ast.NodeVisitor):
    """Follows the names that stand for modules of `paddle`, through what can be reached.

    `found` are the findings, each name once; `imports` what is imported of other packages.
    """

    def __init__(self, tree: ast.AST, project: Project, *, is_main: bool = True) -> None:
        self.found: dict[tuple[str, str], Finding] = {}
        self.imports: list[Import] = []
        self._project = project
        self._paths: dict[str, str] = {}  # a name of the script -> a dotted name of paddle
        self._modules: set[str] = set()  # names of other modules
        self._own = Counter(_bound(tree))
        self._known: dict[str, Any] = {"__name__": "__main__" if is_main else "module"}
        self._lazy: dict[str, str] = {}
        self._optional = 0  # how many branches enclose this that may not be taken
        self._tried = 0  # how many of them may fail
        self._muted = False
        self.visit(tree)

    def _add(self, node: ast.AST, kind: str, name: str, text: str) -> None:
        line = getattr(node, "lineno", 0)
        if not self._muted:
            self.found.setdefault((kind, name), Finding(line, kind, name, text))

    def visit(self, node: ast.AST) -> None:
        is_layer = isinstance(node, ast.Call) and (self._path(node.func) or "").startswith(_LAYERS)
        for kind in needing_lists(node, self._lazy, is_layer):
            text = f"write list({kind}(...)): in Python 3 it is an iterator"
            self._add(node, "python 2", f"{kind}(...)", text)
        super().visit(node)

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # -- imports ------------------------------------------------------------------------------
    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "paddle":
                bound = alias.asname or "paddle"
                self._paths[bound] = alias.name if alias.asname else "paddle"
                self._check(node, alias.name)
            else:
                self._module(node, alias.name)
                self._import(Import(alias.name))
                self._modules.add(alias.asname or alias.name.partition(".")[0])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        names = tuple(alias.name for alias in node.names)
        if node.level or module.partition(".")[0] != "paddle":
            self._import(Import(module, names, node.level))
            if not node.level:
                self._module(node, module)
            return
        for alias in node.names:
            path = module if alias.name == "*" else f"{module}.{alias.name}"
            self._paths[alias.asname or alias.name] = path
            self._check(node, path)

    def _import(self, wanted: Import) -> None:
        if not self._muted:
            self.imports.append(wanted)

    def _module(self, node: ast.AST, name: str) -> None:
        top = name.partition(".")[0]
        if self._optional or self._is_installed(top):
            return
        if top in advice.MODULES:
            self._add(node, "python 2", name, f"write {advice.MODULES[top]}")
        else:
            package = advice.BROUGHT.get(top)
            text = f"pip install {package}" if package else "not installed, nor beside the script"
            self._add(node, "module", top, text)

    def _is_installed(self, top: str) -> bool:
        """Whether the script can import a package, as far as can be seen."""
        if self._project.has(top) or _has_spec(top):
            return True
        return self._project.changes_path and top not in advice.MODULES

    def _is_here(self, node: ast.Import | ast.ImportFrom) -> bool:
        """Whether an import succeeds."""
        if isinstance(node, ast.ImportFrom):
            if node.level:
                return True
            module = node.module or ""
            paths = [f"{module}.{a.name}" if a.name != "*" else module for a in node.names]
        else:
            paths = [alias.name for alias in node.names]
        of_paddle = [path for path in paths if path.partition(".")[0] == "paddle"]
        tops = {path.partition(".")[0] for path in paths}
        if of_paddle:
            return not any(map(missing_part, of_paddle))
        return all(self._is_installed(top) for top in tops)

    # -- uses ---------------------------------------------------------------------------------
    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
            if node.attr in advice.METHODS and not self._has_own(node):
                self._add(node, "python 2", f".{node.attr}", f"write {advice.METHODS[node.attr]}")
            return
        self._check(node, path)
        if path.rpartition(".")[2] in _CUDA and not self._optional:
            self._add(node, "cuda", path, "needs a CUDA device: on a CPU write fluid.CPUPlace()")

    def _has_own(self, node: ast.Attribute) -> bool:
        """Whether a name of Python 2's methods is another here: of the script's own class, or of a
        module, such as `six.iteritems`.
        """
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr in ("letters", "maxint", "getcwdu"):
            return base not in _OF_PYTHON_2
        return node.attr in self._own or base in self._modules

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(
                value=ast.Call(func=ast.Attribute(attr="find_var")), attr="get_tensor"
            ):
                self._add(node, "scope", "find_var(...).get_tensor()", advice.FIND_VAR)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if isinstance(node.ctx, ast.Store):
            self._lazy.pop(name, None)
        elif name in self._paths:
            self._check(node, self._paths[name])
        elif name in advice.BUILTINS and not self._tried and not self._defined(name):
            self._add(node, "python 2", name, f"write {advice.BUILTINS[name]}")

    def _defined(self, name: str) -> bool:
        return name in self._own or hasattr(builtins, name)

    def visit_Assign(self, node: ast.Assign) -> None:
        """`layers = fluid.layers` gives a module another name."""
        path, lazy = self._path(node.value), lazy_kind(node.value, self._lazy)
        kinds = ast.Compare | ast.BoolOp | ast.UnaryOp
        known = truth(node.value, self._known) if isinstance(node.value, kinds) else None
        self.generic_visit(node)
        for target in node.targets:
            if not isinstance(target, ast.Name):
                continue
            self._paths.pop(target.id, None)
            if path is not None:
                self._paths[target.id] = path
            if lazy:
                self._lazy[target.id] = lazy
            if known is not None and self._own[target.id] == 1:
                self._known[target.id] = known

    def _visit_scope(self, node: ast.AST) -> None:
        outer, self._lazy = self._lazy, {}
        self.generic_visit(node)
        self._lazy = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_scope

    # -- branches -----------------------------------------------------------------------------
    def visit_If(self, node: ast.If) -> None:
        self._choose(node.test, node.body, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._choose(node.test, [node.body], [node.orelse])

    def _choose(self, test: ast.expr, yes: Iterable[ast.AST], no: Iterable[ast.AST]) -> None:
        """Visit the branch that is taken, or both if that is not known."""
        known = truth(test, self._known)
        if known is not None:
            self._visit_all(yes if known else no)
            return
        self.visit(test)
        self._optional += 1
        self._visit_all([*yes, *no])
        self._optional -= 1

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """What follows `six.PY2 and` is not reached."""
        for value in node.values:
            if truth(value, self._known) is isinstance(node.op, ast.Or):
                return
            self.visit(value)

    def visit_Try(self, node: ast.Try) -> None:
        """What is in `try` may fail. Of imports it is known whether they do, hence whether the
        handlers are reached.
        """
        caught = set().union(*map(_caught, node.handlers))
        imports = [each for each in node.body if isinstance(each, ast.Import | ast.ImportFrom)]
        if imports and any(_falls_back(handler) for handler in node.handlers):
            if all(self._is_here(each) for each in imports):
                self._visit_all([*node.body, *node.orelse, *node.finalbody])
                return
            with self._mute():
                self._visit_all(node.body)
            self._visit_all([*node.handlers, *node.finalbody])
            return
        self._optional += 1
        self._tried += 1
        with self._mute("AttributeError" in caught):
            self._visit_all([*node.body, *node.orelse])
        self._visit_all([*node.handlers, *node.finalbody])
        self._optional -= 1
        self._tried -= 1

    @contextmanager
    def _mute(self, muted: bool = True) -> Iterator[None]:
        """Add no findings in the block, nor names."""
        before, paths = self._muted, dict(self._paths)
        self._muted = before or muted
        yield
        self._muted = before
        if muted:
            self._paths = paths

    # -- names of paddle ----------------------------------------------------------------------
    def _path(self, node: ast.AST) -> str | None:
        """The dotted name of paddle that an expression stands for."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        base = self._paths.get(node.id) if isinstance(node, ast.Name) else None
        return None if base is None else ".".join([base, *reversed(parts)])

    def _check(self, node: ast.AST, path: str) -> None:
        missing, value = _resolved(path)
        if missing:
            self._add(node, "missing", missing, advice.on_name(missing, path))
        elif _REFUSED in (getattr(value, "__doc__", None) or ""):
            self._add(node, "missing", path, f"refused: {value.__doc__.strip().splitlines()[0]}")
        for name, text in advice.DEPRECATED.items():
            if path == name or path.startswith(f"{name}."):
                self._add(node, "deprecated", name, text)


def _bound(tree: ast.AST) -> Iterator[str]:
    """The names that a script gives to something of its own, once for each time."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)


def _caught(handler: ast.ExceptHandler) -> set[str]:
    """The names of the exceptions that a handler catches."""
    if handler.type is None:
        return {"BaseException"}
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind).rpartition(".")[2] for kind in kinds}


def _falls_back(handler: ast.ExceptHandler) -> bool:
    """Whether a script continues by this handler when an import has failed."""
    ends = any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _ENDS)
        for node in ast.walk(handler)
    )
    return not ends and not _OF_IMPORTS.isdisjoint(_caught(handler))


def _has_spec(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):  # of a module without a spec, or no name of one
        return top in sys.modules


def missing_part(path: str) -> str:
    """The shortest part of a dotted name that is not here; "" if all of it is."""
    return _resolved(path)[0]


def _resolved(path: str) -> tuple[str, Any]:
    """The missing part, and what the name stands for as far as is known."""
    parts = path.split(".")
    value: Any = import_module("paddle")
    for n in range(1, len(parts)):
        reached = ".".join(parts[: n + 1])
        if not isinstance(value, ModuleType | type):
            return "", None
        try:
            value = getattr(value, parts[n])
        except BiremeError:  # it is there, and has no value in this process, such as a role
            return "", None
        except AttributeError:
            if not isinstance(value, ModuleType):
                return reached if _has_no_instances_of_its_own(value) else "", None
            try:
                value = import_module(reached)
            except ImportError:
                return reached, None
    return "", value


def _has_no_instances_of_its_own(kind: Any) -> bool:
    """Whether all that a class has stands in it: an Enum, or a namespace of names."""
    return isinstance(kind, type) and "__init__" not in vars(kind)

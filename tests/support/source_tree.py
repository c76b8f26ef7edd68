"""The source files of bireme, and what each of them imports, read without running them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "HOMES",
    "MODULES",
    "ROOT",
    "Import",
    "imports",
    "label",
    "module_of",
    "package_of",
    "reached",
    "sources",
    "tree",
]

ROOT = Path(__file__).resolve().parents[2]
HOMES = ("bireme", "transpiler", "pserver", "trainer", "fleet", "protos")


class Import(NamedTuple):
    """One imported name: `target` is absolute; `hidden` if it runs with a function."""

    level: int
    name: str
    target: str
    hidden: bool


def sources(*homes: str) -> list[Path]:
    files = (path for home in homes or HOMES for path in (ROOT / home).rglob("*.py"))
    return sorted(p for p in files if not re.search(r"_pb2(_grpc)?\.py$", p.name))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(path: Path) -> str:
    """The name under which a file is imported: `trainer/x.py` is `bireme.trainer.x`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    named = parts if parts[0] == "bireme" else ("bireme", *parts)
    return ".".join(named[:-1] if named[-1] == "__init__" else named)


MODULES = {module_of(path): path for path in sources()}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def in_functions(path: Path) -> frozenset[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    functions = (node for node in ast.walk(tree(path)) if isinstance(node, kinds))
    return frozenset(inner for function in functions for inner in ast.walk(function))


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Everything the file imports, wherever it does so."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[Import]:
    for node in ast.walk(tree(path)):
        hidden = node in in_functions(path)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(0, alias.name, alias.name, hidden)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            for alias in node.names:
                target = _absolute(path, node, alias.name)
                yield Import(node.level, base + alias.name, target, hidden)


def _absolute(path: Path, node: ast.ImportFrom, name: str) -> str:
    """The module that `from ... import name` reaches: `name` itself, or where it stands."""
    base = node.module or ""
    if node.level:
        package = module_of(path).split(".")
        up = node.level - (path.name == "__init__.py")
        parts = package[: len(package) - up] + ([node.module] if node.module else [])
        base = ".".join(parts)
    full = f"{base}.{name}"
    return full if full in MODULES or not base.startswith("bireme") else base


def package_of(module: str) -> str:
    """`bireme.layers.nn` belongs to `layers`, `bireme` itself to `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def reached(path: Path) -> set[str]:
    """The packages of ours that a file imports, its own excepted."""
    ours = {i.target for i in imports(path) if re.match(r"bireme(\.|$)", i.target)}
    return {package_of(target) for target in ours} - {package_of(module_of(path))}

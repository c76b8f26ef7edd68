"""The floors of the house: who may import whom. To change a rule, change its table here, openly."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOMES = ("bireme", "transpiler", "pserver", "trainer", "fleet", "protos")

MAY_IMPORT = {
    "bireme": {"bireme", "protos"},
    "protos": {"protos"},
    "transpiler": {"bireme", "transpiler"},
    "pserver": {"bireme", "pserver", "protos"},
    "trainer": {"bireme", "trainer", "protos"},
    "fleet": {"bireme", "transpiler", "pserver", "trainer", "fleet", "protos"},
}
FACES = {"bireme/__init__.py", "bireme/__main__.py"}  # they name the top floor, lazily
SCRIPTS = {"fleet/demo_script.py"}  # run by their path, as a user's are

MAY_USE = {  # a library that only these files import
    "grpc": ("bireme/rpc/", "protos/"),
    "grpc_health": ("bireme/rpc/",),
    "cupy": ("bireme/runtime/arrays.py", "bireme/collective/nccl.py"),
    "cupyx": ("bireme/runtime/arrays.py", "bireme/collective/nccl.py"),
    "mpi4py": ("bireme/collective/mpi.py",),
    "click": ("fleet/cli.py",),
    "numba": ("bireme/ops/compiled/loops.py",),
    "cudnn": ("bireme/ops/cudnn.py",),
}
PROTOS_USERS = ("bireme/rpc/", "bireme/io", "bireme/ir/proto", "pserver/", "trainer/", "protos/")
PROVIDERS = {"bireme.trainer:link", "bireme.pserver:serve", "bireme.collective:provider"}


def sources(*homes: str) -> list[Path]:
    files = (path for home in homes or HOMES for path in (ROOT / home).rglob("*.py"))
    return sorted(p for p in files if not re.search(r"_pb2(_grpc)?\.py$", p.name))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(level, full name) of everything the file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            yield from ((node.level, base + alias.name) for alias in node.names)


def home_of(name: str) -> str:
    """The directory that an absolute import reaches: `bireme.trainer.x` is trainer's."""
    parts = name.split(".")
    mapped = parts[0] == "bireme" and len(parts) > 1 and parts[1] in HOMES
    return parts[1] if mapped else parts[0]


ALL = [pytest.param(path, id=label(path)) for path in sources()]


@pytest.mark.parametrize("path", ALL)
def test_imports_only_go_down(path: Path) -> None:
    if label(path) in FACES:
        return
    home = label(path).partition("/")[0]
    reached = {home_of(name) for level, name in imports(path) if level == 0}
    assert reached & set(HOMES) <= MAY_IMPORT[home]


@pytest.mark.parametrize("path", ALL)
def test_nobody_imports_a_bare_directory_name(path: Path) -> None:
    heads = {name.partition(".")[0] for level, name in imports(path) if level == 0}
    assert not heads & (set(HOMES) - {"bireme"})


@pytest.mark.parametrize("path", ALL)
def test_a_mapped_directory_imports_itself_relatively(path: Path) -> None:
    home = label(path).partition("/")[0]
    if home == "bireme" or label(path) in FACES | SCRIPTS:
        return
    own = [name for level, name in imports(path) if level == 0 and home_of(name) == home]
    assert own == []


@pytest.mark.parametrize("path", ALL)
def test_relative_imports_stay_inside_their_directory(path: Path) -> None:
    depth = len(path.relative_to(ROOT).parts) - 1
    home = label(path).partition("/")[0]
    allowed = depth if home != "bireme" else 1  # inside bireme/x, go across by full name
    assert all(level <= max(1, allowed) for level, _ in imports(path))


@pytest.mark.parametrize("path", ALL)
def test_scarce_libraries_are_imported_in_named_files(path: Path) -> None:
    for library in {name.partition(".")[0] for level, name in imports(path) if level == 0}:
        allowed = MAY_USE.get(library, ("",))
        assert label(path).startswith(allowed), f"{library} belongs to {allowed}"


@pytest.mark.parametrize("path", ALL)
def test_schemas_are_known_to_few(path: Path) -> None:
    users = label(path).startswith(PROTOS_USERS)
    assert users or "protos" not in {home_of(name) for level, name in imports(path) if level == 0}


@pytest.mark.parametrize("path", [pytest.param(p, id=label(p)) for p in sources("bireme/ir")])
def test_the_ir_knows_only_errors(path: Path) -> None:
    for level, name in imports(path):
        if level == 0 and name.startswith("bireme"):
            assert name.startswith(("bireme.errors", "bireme.ir", "bireme.protos"))


def is_numpy(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] == "numpy" for alias in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "numpy"


def test_the_transpiler_sees_numpy_in_one_function_only() -> None:
    everywhere, inside = [], []
    for path in sources("transpiler"):
        tree = ast.parse(path.read_text())
        everywhere += [label(path) for node in ast.walk(tree) if is_numpy(node)]
        functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
        inside += [f.name for f in functions for node in ast.walk(f) if is_numpy(node)]
    assert len(everywhere) <= 1
    assert len(inside) == len(everywhere)


def test_late_bindings_are_the_listed_ones() -> None:
    """The ground names a provider above it as text, and only these."""
    pattern = re.compile(r"\bbireme\.(?:trainer|pserver|collective)[\w.]*:\w+")
    found = {
        match
        for path in sources("bireme")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value
        for match in pattern.findall(node.value)
    }
    assert found == PROVIDERS


def test_no_module_reaches_for_another_modules_underscore() -> None:
    found = [
        f"{label(path)}: {name}"
        for path in sources()
        for level, name in imports(path)
        if (level or name.startswith("bireme")) and re.search(r"(^|\.)_(?!_)\w", name)
    ]
    assert found == []

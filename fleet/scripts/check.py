"""`bireme check`: read scripts without running them, and list what will stop or surprise them."""

import ast
import re
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from bireme.ending import describe
from bireme.errors import ConfigError

from . import advice, compat
from .own_modules import Import, Project
from .python2 import old_syntax
from .script_reader import Finding, ScriptReader, missing_part

__all__ = ["Checker", "Finding", "findings", "scripts"]

STOPS = ("missing", "python 2", "module", "syntax")  # kinds that end a run
LARGEST = 16 << 20  # bytes of a script
_PATH = b"sys.path"  # in a script that changes where Python looks for modules
_DEPTH = 4000  # of a tree: a long sum is deep
_FRAMES = 4  # of them for a level of a tree, at most


class _UnreadableError(Exception):
    """Why a file cannot be checked."""


def scripts(paths: list[str]) -> list[Path]:
    """The files to read: each path, or every .py file below a folder.

    Raises:
        ConfigError: a path does not exist.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not (path.exists() or path.is_symlink()):
            raise ConfigError(f"there is no script {path}", where=f"looked from {Path.cwd()}")
        below = sorted(file for file in path.rglob("*.py") if not file.is_dir())
        found += below if path.is_dir() else [path]
    return found


class Checker:
    """Checks scripts and the modules of their projects that they import, each file once."""

    def __init__(self, listed: Sequence[Path]) -> None:
        self._seen = {_identity(path) for path in listed}

    def report(self, script: Path) -> tuple[list[str], bool]:
        """The lines to print for a script and its modules, and whether something ends a run."""
        project = _project(script)
        lines, stops, followed = self._file(script, project, is_main=True)
        count = 0
        while followed:
            importer, wanted = followed.pop(0)
            for file in project.files(wanted, importer):
                if _identity(file) in self._seen:
                    continue
                self._seen.add(_identity(file))
                count += 1
                more, stopped, imports = self._file(file, project)
                lines, stops, followed = [*lines, *more], stops or stopped, [*followed, *imports]
        also = f", nor in the {count} modules that it imports" if count else ""
        return lines or [f"{script}: nothing found{also}"], stops

    def _file(
        self, file: Path, project: Project, *, is_main: bool = False
    ) -> tuple[list[str], bool, list[tuple[Path, Import]]]:
        """What to print for one file, whether it ends a run, and what it imports."""
        shown = file if is_main else _shown(file)
        try:
            rows, imports = _read(_source(file), project, is_main=is_main)
        except _UnreadableError as reason:
            return [f"{shown}: not checked: {reason}"], True, []
        except Exception as error:  # the other files are checked all the same
            return [f"{shown}: not checked: {describe(error)}"], True, []
        stops = any(row.kind in STOPS for row in rows)
        return [f"{shown}: {row}" for row in rows], stops, [(file, each) for each in imports]


def findings(source: str | bytes, folder: Path = Path()) -> list[Finding]:
    """What a script in this folder will meet, in the order of its lines; each name once."""
    text = source.encode("utf-8", "replace") if isinstance(source, str) else source
    return _read(source, Project(folder / "script.py", _PATH in text), is_main=True)[0]


def _read(
    source: str | bytes, project: Project, *, is_main: bool
) -> tuple[list[Finding], list[Import]]:
    """The findings of a file, and what it imports."""
    compat.install()
    try:
        with _deep():
            reader = ScriptReader(_tree(source), project, is_main=is_main)
        return sorted(reader.found.values()), reader.imports
    except SyntaxError as error:
        return _unparsed(_text(source), error), []
    except (RecursionError, MemoryError):
        raise _UnreadableError("its expressions are nested too deeply") from None


def _tree(source: str | bytes) -> ast.AST:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except ValueError as error:  # null bytes, before Python 3.12
            raise SyntaxError(str(error)) from None
    if _levels(tree) > _DEPTH // _FRAMES:
        raise RecursionError
    return tree


def _levels(tree: ast.AST) -> int:
    """How deep a tree is."""
    count, level = 0, [tree]
    while level:
        count += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return count


@contextmanager
def _deep() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _unparsed(source: str, error: SyntaxError) -> list[Finding]:
    """The findings of a script that Python 3 cannot parse."""
    rows = [Finding(n, "python 2", line, what) for n, line, what in old_syntax(source)]
    if not rows:
        rows = [Finding(error.lineno or 0, "syntax", (error.text or "").strip(), error.msg)]
    return sorted({*rows, *_unparsed_names(source)})


def _unparsed_names(source: str) -> Iterator[Finding]:
    """Missing names of `fluid.` in a script that cannot be parsed."""
    seen: set[str] = set()
    for number, line in enumerate(source.splitlines(), 1):
        for match in re.finditer(r"\b(?:paddle\.)?fluid((?:\.\w+)+)", line.partition("#")[0]):
            path = f"paddle.fluid{match[1]}"
            missing = missing_part(path)
            if missing and missing not in seen:
                seen.add(missing)
                yield Finding(number, "missing", missing, advice.on_name(missing, path))


def _source(path: Path) -> bytes:
    """
    Raises:
        _UnreadableError: it is no file that can be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise _UnreadableError("not a regular file")
        if status.st_size > LARGEST:
            raise _UnreadableError(f"larger than {LARGEST >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise _UnreadableError(error.strerror or type(error).__name__) from None


def _text(source: str | bytes) -> str:
    """A script as text, as far as it is text."""
    if isinstance(source, str):
        return source
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(source).readline)
        return source.decode(encoding, "replace")
    except (SyntaxError, LookupError):  # it names an encoding that is none
        return source.decode("utf-8", "replace")


def _project(script: Path) -> Project:
    try:
        return Project(script, _PATH in _source(script))
    except _UnreadableError:
        return Project(script)


def _identity(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return path
    return status.st_dev, status.st_ino


def _shown(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path

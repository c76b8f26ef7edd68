"""Where the modules of a script's own project lie, as far as its files show."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Import", "Project"]

_ABOVE = 3  # folders above a script that changes sys.path, which is how they come into it


class Import(NamedTuple):
    """`import module`, or `from module import names`; `level` counts the leading dots."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


class Project:
    """The folders in which a script finds modules of its own."""

    def __init__(self, script: Path, changes_path: bool = False) -> None:
        """`changes_path`: the script edits `sys.path`, so that there may be more folders."""
        home = script.absolute().parent
        above = list(home.parents)[:_ABOVE] if changes_path else []
        self.changes_path = changes_path
        self._roots = list(dict.fromkeys([home, _root(home), Path.cwd(), *above]))

    def has(self, top: str) -> bool:
        """Whether a module of this name, which has no dots, is one of the project."""
        return any(_exists(root / top) or _exists(root / f"{top}.py") for root in self._roots)

    def files(self, wanted: Import, importer: Path) -> list[Path]:
        """The files of the project that an import in the file `importer` executes."""
        if wanted.level:
            roots = [
                importer.absolute().parents[min(wanted.level, len(importer.absolute().parents)) - 1]
            ]
        else:
            roots = [*self._roots, _root(importer.absolute().parent)]
        parts = wanted.module.split(".") if wanted.module else []
        for root in roots:
            if found := list(_executed(root, parts, wanted.names)):
                return found
        return []


def _executed(root: Path, parts: list[str], names: Iterable[str]) -> Iterator[Path]:
    """The files below a folder that are executed by an import of a dotted name, if all of its parts
    are there.
    """
    found: list[Path] = []
    here = root
    for i, part in enumerate(parts):
        here = here / part
        module = here.with_name(f"{part}.py")
        if not here.is_dir():
            if i == len(parts) - 1 and _exists(module):
                yield from [*found, module]
            return
        if _exists(here / "__init__.py"):
            found.append(here / "__init__.py")
    yield from found
    for name in names:
        if _exists(here / f"{name}.py"):
            yield here / f"{name}.py"
        elif _exists(here / name / "__init__.py"):
            yield here / name / "__init__.py"


def _root(folder: Path) -> Path:
    """The folder that holds the package to which this folder belongs, or the folder itself."""
    while _exists(folder / "__init__.py") and folder.parent != folder:
        folder = folder.parent
    return folder


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False

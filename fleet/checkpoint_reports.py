"""What `bireme checkpoint` prints and does. `bireme.io` knows the format."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bireme.arrays.values import SelectedRows
from bireme.errors import ConfigError, FormatError, InvalidArgument
from bireme.io.catalog import (
    Listed,
    checkpoint_at,
    differences,
    is_checkpoint,
    listed,
    look_at,
)
from bireme.io.checkpoint import Checkpoint, outdated, prune
from bireme.io.directory_lock import owning
from bireme.io.files import written
from bireme.io.streams import write_value
from bireme.paths import file_of
from bireme.text_tables import plain_text

__all__ = ["convert", "diff", "list_all", "remove_old", "show", "verify"]


def _bytes(size: int) -> str:
    """A size for people.

    >>> _bytes(512), _bytes(3 << 20)
    ('512 B', '3.0 MiB')
    """
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024 or unit == "GiB":
            break
    return f"{amount:.1f} {unit}"


def _rows(found: list[Listed]) -> Iterator[tuple[str, ...]]:
    for each in found:
        date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.saved))
        saved = date if each.saved else "-"
        missing = f"{', '.join(each.missing)} missing" if each.missing else ""
        parts = f"{len(each.parts)}" if not each.problem else "-"
        size = _bytes(each.size)
        yield (str(each.step), f"{each.run:016x}", each.state, parts, size, saved,
               each.problem or missing)  # fmt: skip


def list_all(root: Path) -> str:
    """The checkpoints below a directory, newest first."""
    found = listed(root)
    if not found:
        return f"there are no checkpoints in {root}"
    head = ("step", "run", "state", "parts", "size", "saved", "")
    return plain_text(head, _rows(found), right=("step", "parts", "size"))


def show(path: Path) -> str:
    """What a checkpoint holds: its parts and its variables."""
    found = checkpoint_at(path)
    parts = [
        (
            name,
            str(len(part.entries)),
            _bytes(part.head["size"]),
            "; ".join(json.dumps(place) for place in part.head.get("readers", ())),
        )
        for name, part in sorted(found.parts.items())
    ]
    return "\n".join(
        (
            f"{found.folder}: step {found.step}",
            "",
            plain_text(("part", "variables", "size", "readers"), parts, ("variables", "size")),
            "",
            plain_text(
                ("variable", "dtype", "shape", "size", "held by"), _variables(found), ("size",)
            ),
        )
    )


def _variables(found: Checkpoint) -> Iterator[tuple[str, ...]]:
    for name in found.names:
        pieces = [
            (part.folder.name, entry)
            for part in found.parts.values()
            for entry in part.entries
            if entry.name == name
        ]
        first = pieces[0][1]
        shape = list(first.shape)
        if first.height is not None:
            shape[0] = first.height
        elif first.ids is not None:
            shape[0] = sum(entry.shape[0] for _, entry in pieces)
        size = sum(entry.nbytes for _, entry in pieces)
        shown = f"{shape}{' by id' if first.ids is not None else ''}"
        holders = ", ".join(dict.fromkeys(owner for owner, _ in pieces))
        yield name, first.dtype, shown, _bytes(size), holders


def verify(path: Path) -> tuple[str, bool]:
    """Read every byte of a checkpoint, or of all below a directory; whether all is well."""
    one = is_checkpoint(path)
    if one and not path.is_dir():
        raise ConfigError(f"there is no checkpoint {path}")
    found = [look_at(path)] if one else listed(path)
    rows, well = [], bool(found)
    for each in found:
        problem = each.problem
        if not problem and each.parts and not each.missing:
            try:
                Checkpoint(each.folder, each.parts)
            except FormatError as error:
                problem = f"{error.message} ({error.where})"
        state = "damaged" if problem else each.state
        well = well and state == "complete"
        missing = f"{', '.join(each.missing)} missing" if each.missing else ""
        rows.append((each.folder.name, state, _bytes(each.size), problem or missing))
    if not rows:
        return f"there are no checkpoints in {path}", False
    return plain_text(("checkpoint", "state", "size", ""), rows, ("size",)), well


def remove_old(root: Path, keep: int, only_say: bool) -> str:
    """Remove all but the newest complete checkpoints, as a job does after it has saved."""
    listed(root)
    old = outdated(root, keep)
    if not only_say:
        with owning(root, "local", "bireme checkpoint prune"):
            prune(root, keep)
    said = "would remove" if only_say else "removed"
    return "\n".join(f"{said} {folder}" for folder in old) or "nothing to remove"


def diff(one: Path, other: Path) -> tuple[str, bool]:
    """How the variables of two checkpoints differ; whether they are equal bit for bit."""
    first, second = checkpoint_at(one), checkpoint_at(other)
    rows = [
        (found.name, found.what, f"{found.largest:.3g}" if found.what == "values" else "-",
         str(found.places) if found.places else "-")
        for found in differences(first, second)
    ]  # fmt: skip
    said = f"step {first.step} and step {second.step}"
    if not rows:
        return f"{said}: {len(first.names)} variables are equal bit for bit", True
    table = plain_text(
        ("variable", "differs in", "largest", "places"), rows, right=("largest", "places")
    )
    return f"{said}: {len(rows)} variables differ\n\n{table}", False


# -- other formats -----------------------------------------------------------------------------
def convert(path: Path, to: Path, format: str) -> str:
    """Write the variables of a checkpoint: in Fluid's files, or as one .npz.

    Raises:
        InvalidArgument: something is there already.
    """
    found = checkpoint_at(path)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InvalidArgument(f"{to} is there already", hint="name a new file or folder")
    if format == "npz":
        with written(to) as file:
            np.savez(file, **dict(_arrays(found)))  # type: ignore[arg-type]
    else:
        paths = {name: file_of(to, name) for name in found.names}
        to.mkdir(parents=True, exist_ok=True)
        for name, file_path in paths.items():
            with written(file_path) as file:
                write_value(file, _value(found, name))
    return f"wrote {len(found.names)} variables of step {found.step} to {to}"


def _value(found: Checkpoint, name: str) -> object:
    if not found.is_table(name):
        return found.read(name)
    ids, rows = found.rows(name)
    order = np.argsort(ids)
    return SelectedRows(ids[order], rows[order], int(ids.max(initial=-1)) + 1)


def _arrays(found: Checkpoint) -> Iterator[tuple[str, object]]:
    for name in found.names:
        value = _value(found, name)
        if isinstance(value, SelectedRows):
            yield f"{name} (ids)", value.rows
            value = value.value
        yield name, value

"""Where a server begins: with the record that its predecessor left, with the newest checkpoint, or
with the values of its startup program.

A record gives the variables, and then round after round.

The newest log whose base exists is the begin; the logs after it follow. What a crash left
incomplete was acknowledged to nobody.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from bireme import flags
from bireme.arrays.random import adopt_seed
from bireme.errors import ConfigError, FormatError, PeerLost
from bireme.io.disk import Disk
from bireme.io.parts import DATA
from bireme.io.write_ahead_log import FOLDER, read_log
from bireme.ir import Program
from bireme.net.layouts import Value
from bireme.paths import is_url
from bireme.rewinding import check_mode

from .events import Apply, Shared
from .job_record import Begin, Known, Record, Round, read_record
from .modes import mode_of
from .recorder import START, Recorder
from .round_payloads import RoundPayloads
from .server_spec import Settings
from .updates import Updates

__all__ = ["begin", "forget"]

_REPLAYED = -1  # the ticket of a recorded payload


def begin(
    program: Program, settings: Settings, updates: Updates, life: int, disk: Disk | None = None
) -> Known | None:
    """Give the variables the values to begin with, and start recording if FLAGS_durability asks
    for it; what the record of an earlier life says, if there is one.

    Raises:
        ConfigError: this job cannot be recorded or go back to a checkpoint, or the disk refuses.
        FormatError: what was saved is damaged, or of another model.
    """
    check_mode(mode_of(settings).name, settings.trainers)
    if not _is_recorded(settings):
        _load(settings, updates)
        return None
    root = Path(flags.get("checkpoint_dir")).resolve()
    try:
        recorder = _recover(root, RoundPayloads(program, settings), updates, disk)
        known = recorder.known if recorder.known.lives else None
        if known is None:
            _load(settings, updates)
        else:
            place = f"after round {known.version}, as {recorder.folder} says"
            print(f"server {settings.endpoint} goes on {place}", file=sys.stderr)
        recorder.begin(updates.keeper.capture, updates.keeper.head, life)
    except OSError as error:
        raise ConfigError(
            f"FLAGS_durability=step: the record cannot be written: {error}",
            where=str(root / FOLDER),
            hint="FLAGS_checkpoint_dir must be a directory that every server may write to",
        ) from None
    updates.recorder = recorder
    return known


def _load(settings: Settings, updates: Updates) -> None:
    if folder := updates.keeper.resume():
        print(f"server {settings.endpoint} goes on from {folder}", file=sys.stderr)


def _is_recorded(settings: Settings) -> bool:
    """Whether FLAGS_durability asks for a record.

    Raises:
        ConfigError: there cannot be one.
    """
    asked = flags.get("durability")
    if asked not in ("checkpoint", "step"):
        raise ConfigError(f"FLAGS_durability={asked}", hint="give checkpoint or step")
    if asked == "checkpoint":
        return False
    mode = mode_of(settings)
    problem = hint = ""
    if not flags.get("checkpoint_dir"):
        problem, hint = "needs FLAGS_checkpoint_dir", "servers record every round below it"
    elif is_url(flags.get("checkpoint_dir")):
        problem = "needs a local FLAGS_checkpoint_dir"
        hint = "an object store has no files to append to: mount a disk that outlives the server"
    elif not mode.rounds:
        problem = f"is for sync jobs, and this one runs in {mode.name} mode"
        hint = "FLAGS_durability=checkpoint resumes it from its newest checkpoint"
    elif flags.get("rpc_fluid"):
        problem = "and FLAGS_rpc_fluid=1 exclude each other"
        hint = "calls of Fluid's protocol have no numbers by which a repeat could be recognised"
    if problem:
        raise ConfigError(f"FLAGS_durability=step {problem}", hint=hint)
    return True


def _recover(root: Path, payloads: RoundPayloads, updates: Updates, disk: Disk | None) -> Recorder:
    """The recorder of this server. If there is a record, `updates` holds all that it leads to, and
    `known.lives` names the lives before this one.
    """
    keeper = updates.keeper
    folder = root / FOLDER / keeper.part
    recorder = Recorder(root, keeper.part, payloads, disk)
    logs = [(path, begin) for path in sorted(folder.glob("log-*")) if (begin := _begin_of(path))]
    based = [i for i, (_, begin) in enumerate(logs) if begin.base and (root / begin.base).is_dir()]
    if not based:
        return recorder
    logs = logs[based[-1] :]
    first = logs[0][1]
    adopt_seed(first.seed)
    keeper.restore_part(root / first.base)
    known = Known.at(first)
    for path, begin in logs:
        if begin.version != known.version:
            raise _incomplete(folder, f"{path.name} begins after round {begin.version}", known)
        for record, values in _records(path):
            _replay(record, values, payloads, updates)
            known.add(record, values)
    calls, shared = known.gathered
    if calls:
        updates.shared_values.resume(Shared((), 0, calls), shared)
    number, size = int(logs[-1][0].name[-6:]), sum(path.stat().st_size for path, _ in logs)
    recorder.found(known, number, size, (root / first.base / DATA).stat().st_size)
    return recorder


def forget(updates: Updates) -> None:
    """The job begins anew: give the variables the values that they had before the first round, and
    remove the record.

    Raises:
        PeerLost: a disk that refused has ended the record that held them.
    """
    recorder = updates.recorder
    assert recorder is not None
    start = recorder.folder / START
    if not start.is_dir():
        recorder.remove()
        raise PeerLost(
            "the job was started again as a whole, and the values that this server began with went "
            "with a record that its disk refused",
            where=str(start),
            hint="start this server again: its startup program gives them",
        )
    updates.keeper.restore_part(start)
    recorder.remove()


def _begin_of(path: Path) -> Begin | None:
    """The first record of a log; None if a crash left it without one."""
    record = next((record for record, _ in _records(path)), None)
    return record if isinstance(record, Begin) else None


def _records(path: Path) -> Iterator[tuple[Record, dict[str, Value]]]:
    for data in read_log(path):
        yield read_record(data)


def _replay(
    record: Record, values: dict[str, Value], payloads: RoundPayloads, updates: Updates
) -> None:
    if not isinstance(record, Round):
        return
    updates.keep(_REPLAYED, payloads.terms(dict(values), record.summed))
    updates.apply(Apply(record.number, record.blocks, (_REPLAYED,), record.absent))


def _incomplete(folder: Path, problem: str, known: Known) -> FormatError:
    return FormatError(
        f"the record of this server is incomplete: {problem}, and the logs before it end after "
        f"round {known.version}",
        where=str(folder),
        hint=f"remove {folder} to resume the job from its newest checkpoint",
    )

"""Where a server begins: with the record that its predecessor left, with the newest checkpoint, or
with the values of its startup program.

A record gives the variables, and then round after round.

The newest log whose base exists is the begin; the logs after it follow. What a crash left
incomplete was acknowledged to nobody.
"""

from pathlib import Path

from bireme import flags
from bireme.arrays.random import adopt_seed
from bireme.errors import BiremeError, ConfigError, FormatError, PeerLost
from bireme.io.checkpoint import Checkpoint
from bireme.io.disk import Disk
from bireme.io.parts import DATA, Part
from bireme.io.write_ahead_log import FOLDER
from bireme.ir import Program
from bireme.logs import logger
from bireme.net.layouts import Value
from bireme.net.membership import UNTOLD, JobSize
from bireme.paths import is_url
from bireme.recovery.restarts import check_mode

from ..rules.events import Apply, Shared
from ..rules.rounds import mode_of
from ..rules.server_spec import Settings
from ..store.updates import Updates
from .recorded_logs import recorded_logs, refused
from .recorder import START, Recorder
from .records import Known, Round
from .round_payloads import RoundPayloads

__all__ = ["begin", "forget"]

_log = logger("server")

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
        recorder = _recover(root, settings, RoundPayloads(program, settings), updates, disk)
        known = recorder.known if recorder.known.lives else None
        if known is None:
            _load(settings, updates)
        else:
            place = f"after round {known.version}, as {recorder.folder} says"
            _log.info("server %s goes on %s", settings.endpoint, place)
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
        _log.info("server %s goes on from %s", settings.endpoint, folder)


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


def _recover(
    root: Path, settings: Settings, payloads: RoundPayloads, updates: Updates, disk: Disk | None
) -> Recorder:
    """The recorder of this server. If there is a record of this job, `updates` holds all that it
    leads to, and `known.lives` names the lives before this one.
    """
    keeper = updates.keeper
    folder = root / FOLDER / keeper.part
    recorder = Recorder(root, keeper.part, payloads, disk, settings.size)
    logs, unread = recorded_logs(root, folder)
    if not logs or not _is_of_this_job(folder, logs[0].begin.size, settings):
        return recorder
    first = logs[0].begin
    adopt_seed(first.seed)
    _restore(root / first.base, folder, updates)
    known = Known.at(first)
    for log in logs:
        for record, values in log.fold(known):
            if isinstance(record, Round):
                _replay(log.path, record, values, payloads, updates)
    known.end = unread or known.end
    calls, shared = known.gathered
    if calls:
        updates.shared_values.resume(Shared((), 0, calls), shared)
    number, size = int(logs[-1].path.name[-6:]), sum(log.path.stat().st_size for log in logs)
    recorder.found(known, number, size, (root / first.base / DATA).stat().st_size)
    return recorder


def _is_of_this_job(folder: Path, size: JobSize, settings: Settings) -> bool:
    """Whether a record was written by as many trainers and servers. Otherwise the job was started
    again as a whole, and resumes from its newest checkpoint.

    Raises:
        FormatError: another server wrote it.
    """
    own = settings.size
    if (size.trainers, size.servers) != (own.trainers, own.servers) and size != UNTOLD:
        _log.warning(
            f"server {settings.endpoint}: {folder} is the record of a job of {size.trainers} "
            f"trainer(s) and {size.servers} server(s), this one has {own.trainers} and "
            f"{own.servers}: resuming from the newest checkpoint"
        )
        return False
    if size.server not in (-1, own.server):
        raise refused(folder, f"server {size.server} wrote it, and this is server {own.server}")
    return True


def _restore(base: Path, folder: Path, updates: Updates) -> None:
    found = Checkpoint(base, [Part(base)])
    try:
        updates.keeper.restore(found)
    except FormatError as error:
        raise _of_another_model(folder, error.message) from None


def _of_another_model(place: Path, why: str) -> FormatError:
    found = refused(place, f"it is not of this model: {why}")
    found.hint = f"start the job with the script that wrote it; or {found.hint}"
    return found


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


def _replay(
    log: Path, record: Round, values: dict[str, Value], payloads: RoundPayloads, updates: Updates
) -> None:
    given = payloads.terms(dict(values), record.summed)
    if fault := updates.checks.recorded(given, record):
        raise _of_another_model(log, fault)
    updates.keep(_REPLAYED, given)
    try:
        updates.apply(Apply(record.number, record.blocks, (_REPLAYED,), record.absent))
    except BiremeError as error:
        raise refused(log, f"round {record.number}: {error.message}") from None

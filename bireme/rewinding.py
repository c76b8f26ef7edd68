"""A process that has lost a peer goes back to the newest checkpoint: it starts itself again in
place, with FLAGS_rewind.

The process keeps its number, so whoever started it sees nothing end; he starts the missing one
again. The file knows this process, no peers.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping

from bireme import flags
from bireme.ending import show
from bireme.errors import ConfigError, PeerLost
from bireme.logs import logger
from bireme.monitoring.counters import tally

__all__ = ["allowed", "check_mode", "rewind", "rewound"]

_log = logger("rewinding")

COUNT = "BIREME_REWINDS"  # how often this process has rewound; since when without a step
IDLE = 3  # lives without a step in a row: there is no progress
KEPT = "BIREME_PROGRESS_FD"  # names a descriptor that a launcher reads

_folder = os.getcwd()


def allowed() -> bool:
    """Whether processes of this job rewind."""
    return bool(flags.get("rewind") > 0)


def check_mode(mode: str, trainers: int) -> None:
    """Refuse rewinding where checkpoints hold the steps of trainer 0 and not those of the others.

    Raises:
        ConfigError: the job would lose steps of other trainers, or apply them twice.
    """
    if allowed() and flags.get("checkpoint_dir") and mode != "sync" and trainers > 1:
        raise ConfigError(
            f"FLAGS_rewind={flags.get('rewind')} is for sync jobs, and this is a {mode} job of "
            f"{trainers} trainers: going back to a checkpoint, which is of trainer 0's step, would "
            "lose steps of the others or apply them twice",
            where="bireme launch --restart sets FLAGS_rewind",
            hint="train with sync_mode=True; or set FLAGS_rewind=0, so that a lost process ends "
            "the job, which resumes as a whole from trainer 0's step",
        )


def rewound() -> int:
    """How often this process has rewound."""
    return _counts()[0]


def _counts() -> tuple[int, int]:
    count, _, idle = os.environ.get(COUNT, "0,0").partition(",")
    return int(count), int(idle)


def rewind(error: BaseException | None) -> None:
    """Start this process again if a lost peer is what ends it; returns if it has to end."""
    if not isinstance(error, PeerLost) or not allowed():
        return
    show(error)
    count, idle = _counts()
    idle = 0 if tally.steps else idle + 1
    most = flags.get("rewind")
    if count >= most or idle >= IDLE:
        why = "FLAGS_rewind allows no more" if count >= most else "without any progress"
        _say(f"bireme: not going back to the newest checkpoint again after {count} times: {why}")
        return
    _say(
        f"bireme: going back to the newest checkpoint ({count + 1} of {most}), and waiting "
        f"{flags.get('rejoin_seconds'):.0f} s for {error.peer or 'the one that is missing'}",
    )
    _start_again({COUNT: f"{count + 1},{idle}"})


def _say(line: str) -> None:
    _log.warning(line)


def _start_again(more: Mapping[str, str]) -> None:
    """The same program with the same arguments, environment and number; never returns."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    kept = os.environ.get(KEPT, "")
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):
            os.set_inheritable(int(name), int(name) <= 2 or name == kept)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir(_folder)
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execve(sys.executable, command, {**_first_environment(), **more})


def _first_environment() -> dict[str, str]:
    """The environment that this process was started with."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        return dict(os.environ)

"""A process that has lost a peer goes back to the newest checkpoint (FLAGS_rewind): it ends with
exit code 75, and its launcher or scheduler starts it again.
"""

import multiprocessing
import os
import sys
from typing import NoReturn

from bireme import flags
from bireme.ending import show
from bireme.errors import ConfigError, PeerLost
from bireme.logs import logger
from bireme.monitoring.counters import tally

__all__ = [
    "COUNT",
    "RESTART",
    "allowed",
    "check_mode",
    "count",
    "counted",
    "restart_after",
    "restarted",
]

_log = logger("restarts")

RESTART = 75  # EX_TEMPFAIL: start this process again
COUNT = "BIREME_REWINDS"  # restarts of this process, and how many of the last had no step
IDLE = 3  # restarts without a step in a row: there is no progress


def allowed() -> bool:
    """Whether processes of this job go back to a checkpoint."""
    return bool(flags.get("rewind") > 0)


def check_mode(mode: str, trainers: int) -> None:
    """Refuse FLAGS_rewind where checkpoints hold the steps of trainer 0 and not those of the
    others.

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


def restarted() -> int:
    """How often this process has been started again."""
    return count(os.environ.get(COUNT, ""))


def count(text: str) -> int:
    """The restarts that a value of COUNT counts."""
    return _counts(text)[0]


def counted(before: str, stepped: bool) -> str:
    """The value of COUNT for the successor of a process that had `before`.

    >>> counted("", True), counted("1,0", False), counted("2,1", True)
    ('1,0', '2,1', '3,0')
    """
    number, idle = _counts(before)
    return f"{number + 1},{0 if stepped else idle + 1}"


def _counts(text: str) -> tuple[int, int]:
    number, _, idle = text.partition(",")
    return int(number or 0), int(idle or 0)


def restart_after(error: BaseException | None) -> None:
    """End this process with RESTART if a lost peer is what ends it; returns if it has to fail."""
    if not isinstance(error, PeerLost) or not allowed():
        return
    show(error)
    number, idle = _counts(os.environ.get(COUNT, ""))
    idle = 0 if tally.steps else idle + 1
    most = flags.get("rewind")
    if number >= most or idle >= IDLE:
        why = "FLAGS_rewind allows no more" if number >= most else "without any progress"
        _log.error(f"not going back to the newest checkpoint again after {number} times: {why}")
        return
    _log.warning(
        f"going back to the newest checkpoint ({number + 1} of {most}): this process ends with "
        f"exit code {RESTART}, to be started again within {flags.get('rejoin_seconds'):.0f} s"
    )
    _end()


def _end() -> NoReturn:
    """At once: threads and children may be waiting for the peer."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(RESTART)

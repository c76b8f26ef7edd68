"""One row per mode of a server: everything in which the modes differ, as data.

Sync gathers the pushes of all trainers into a round, and a pull waits for the trainer's round.
The others apply a push when it comes, in arrival order, and never make a pull wait; DC-ASGD also
remembers what each trainer pulled.
"""

from dataclasses import dataclass

from bireme.errors import ProgramError
from bireme.ir import DistributedMode

from .server_spec import Settings

__all__ = ["Mode", "mode_of"]


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    rounds: bool  # pushes wait for everybody's barrier, pulls for the round
    snapshots: bool = False  # what a trainer pulls is kept for its next push


MODES: dict[int, Mode] = {
    DistributedMode.SYNC: Mode("sync", rounds=True),
    DistributedMode.ASYNC: Mode("async", rounds=False),
    DistributedMode.HALF_ASYNC: Mode("half-async", rounds=False),
    DistributedMode.GEO: Mode("geo", rounds=False),
}
DC_ASGD = Mode("dc-asgd", rounds=False, snapshots=True)


def mode_of(settings: Settings) -> Mode:
    """The row that `distributed_mode` and `dc_asgd` choose."""
    mode = MODES.get(settings.mode)
    if mode is None:
        raise ProgramError(
            f"unknown distributed_mode {settings.mode}",
            hint=f"known: {[int(m) for m in DistributedMode]}",
        )
    if settings.dc_asgd and mode.rounds:
        raise ProgramError(
            "delay compensation in sync mode",
            hint="set config.sync_mode = False, or enable_dc_asgd = False",
        )
    return DC_ASGD if settings.dc_asgd else mode

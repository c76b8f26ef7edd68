"""What became of the processes of a job, in words: who failed first, and who because of it."""

from collections.abc import Sequence

from bireme.monitoring.counters import NO_ROLE

from ..telemetry.job_file import Process
from .child import Child

__all__ = ["origin_of", "others_of", "process_of", "strays_of", "verdict_on"]


def process_of(child: Child, blamed: bool) -> Process:
    """A child as the job's file lists it."""
    seat = child.seat
    figures = {} if child.running else dict(child.seen)
    if not child.running and (rate := child.pace.rate("samples")):
        figures["samples_per_second"] = round(rate, 1)
    return Process(
        seat.role,
        seat.index,
        child.pid,
        child.admin,
        child.exit_code,
        figures,
        child.log.name,
        child.last_word() if child.exit_code else "",
        blamed,
    )


def origin_of(child: Child) -> tuple[int, int]:
    """Sorts causes before effects: an error of its own, or a signal, before lost peers, and these
    before what a peer said.
    """
    failure = child.failure
    begun_elsewhere = failure.concerns_peers + failure.is_told if failure else 0
    return begun_elsewhere, -(child.exit_code or 0)


def verdict_on(child: Child) -> str:
    """What became of a process that failed."""
    if child.killed and child.exit_code:
        return f"{child.seat} was killed (signal {child.exit_code - 128})"
    reason = f": {child.error}" if child.error else ""
    return f"{child.seat} failed with exit code {child.exit_code}{reason}"


def others_of(failed: Child, children: Sequence[Child]) -> list[str]:
    """What else failed by itself, then who was ended by this: told so, or has lost it."""
    rest = [child for child in children if child is not failed and child.exit_code]
    own = [c for c in rest if c.error and not c.told and not _follows(c, failed)]
    ended = [str(child.seat) for child in rest if child not in own]
    lines = [f"{child.seat}: {child.error}" for child in own]
    return [*lines, f"ended with it: {', '.join(ended)}"] if ended else lines


def strays_of(children: Sequence[Child]) -> list[str]:
    """What to say of servers that have not served, but trained by themselves."""
    names = [str(c.seat) for c in children if c.seat.role == "server" and c.role == NO_ROLE]
    if not names:
        return []
    return [
        f"{', '.join(names)} trained alone: this was no cluster, the script did not use its role",
        "  hint: a script that takes its role as arguments gets them by {role}, {index}, ...; "
        "see bireme launch --help",
    ]


def _follows(child: Child, failed: Child) -> bool:
    """Whether a child's error is a consequence of the failure: a peer said so, or it names it."""
    failure, seat = child.failure, failed.seat
    if failure is None:
        return False
    names = {str(seat), f"{seat.role} {seat.variables['PADDLE_CURRENT_ENDPOINT']}"}
    if seat.role == "trainer":
        names.add(f"rank {seat.index}")
    lost = failure.concerns_peers and names.intersection((failure.peer or "").split(", "))
    return failure.is_told or bool(lost)

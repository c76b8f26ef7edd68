"""Error replies of a server: what happened, at which server and step, what to do."""

from collections.abc import Iterable
from math import inf

import msgspec

from bireme.net.messages import NOT_GREETED, Abort, Hello, Refused

from .events import Call
from .server_spec import Settings

__all__ = [
    "absent",
    "anothers",
    "broken",
    "came_back",
    "cut_off",
    "finished",
    "forgotten",
    "gave_up",
    "gone",
    "needs_barrier",
    "not_greeted",
    "not_owned",
    "other_size",
    "out_of_range",
    "reported",
    "silent",
    "slow",
    "stranger",
    "superseded",
    "taken",
    "takes_no_barrier",
    "too_early",
    "trainers_named",
    "with_waiters",
    "wrong_data",
]

_MODES = "config.sync_mode and transpile(sync_mode=) must agree in every process"


def trainers_named(numbers: Iterable[int]) -> str:
    """Trainers as a phrase.

    >>> trainers_named([1]), trainers_named([0, 2])
    ('trainer 1', 'trainers 0, 2')
    """
    listed = list(numbers)
    return f"trainer{'s' if len(listed) != 1 else ''} {', '.join(map(str, listed))}"


# -- who takes part ----------------------------------------------------------------------------
def other_size(server: Settings, hello: Hello) -> Refused | None:
    """A refusal where the trainer was told of another job than this server."""
    its, own = hello.size, server.size
    if its.trainers not in (0, own.trainers):
        return Refused(
            kind="ConfigError",
            text=f"trainer {hello.trainer} was started for {its.trainers} "
            f"trainer{'s' * (its.trainers > 1)}, server {server.endpoint} for {own.trainers}",
            hint="give every process the same PADDLE_TRAINERS_NUM (trainers= of transpile)",
        )
    if 0 in (its.servers, own.servers) or its[1:] == own[1:]:
        return None
    return Refused(
        kind="ConfigError",
        text=f"trainer {hello.trainer} takes server {server.endpoint} for number {its.server} of "
        f"{its.servers}; it was started as number {own.server} of {own.servers}",
        hint="give every process the same list of servers in the same order: "
        "PADDLE_PSERVERS_IP_PORT_LIST (pservers= of transpile)",
    )


def out_of_range(trainer: int, count: int) -> Refused:
    return Refused(
        kind="ConfigError",
        text=f"trainer id {trainer} is out of range: this server expects 0 to {count - 1}",
        hint="check PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM in every process",
    )


def taken(trainer: int) -> Refused:
    return Refused(
        kind="ConfigError",
        text=f"trainer id {trainer} is already taken by another process of this job",
        hint="give every trainer its own PADDLE_TRAINER_ID; to restart one, restart the cluster",
    )


def finished(trainer: int) -> Refused:
    return Refused(
        kind="ConfigError",
        text=f"trainer {trainer} has already completed this job",
        hint="exe.close() ends a trainer's part; run everything before it",
    )


def stranger(trainer: int) -> Refused:
    return Refused(
        kind="PeerLost",
        text=f"trainer {trainer} has not introduced itself to this server, which was started again",
    )


def not_greeted(endpoint: str, trainer: int) -> Refused:
    return Refused(
        kind=NOT_GREETED,
        text=f"server {endpoint} was restarted, and trainer {trainer} has not greeted it",
    )


def forgotten(endpoint: str, version: int, hello: Hello, record: str) -> Refused:
    return Refused(
        kind="PeerLost",
        text=f"server {endpoint} was restarted and its record ends with round {version}, but "
        f"trainer {hello.trainer} has seen round {hello.seen}: the disk has lost or damaged what "
        f"it had confirmed; the record ends with {record}",
        peer=f"server {endpoint}",
        step=hello.seen,
        hint="restart the whole job: it resumes from its newest checkpoint",
    )


# -- who is missing ----------------------------------------------------------------------------
def silent(trainer: int, since: float, step: int) -> Refused:
    place = f"at step {step}" if step >= 0 else "before its first step"
    return Refused(
        kind="PeerLost",
        text=f"trainer {trainer} is lost: last heard {since:.1f} s ago, {place}",
        peer=f"trainer {trainer}",
        step=step,
        hint="see that trainer's log; the time is FLAGS_heartbeat_seconds",
    )


def cut_off(trainer: int, since: float, step: int, may_return: bool = False) -> Refused:
    place = f"at step {step}" if step >= 0 else "before its first step"
    what = f"its connection ended {since:.1f} s ago" if since < inf else "its process has ended"
    alone = ", and it was not started again" if may_return else ""
    flag = f"; the time is FLAGS_{'rejoin' if may_return else 'heartbeat'}_seconds"
    return Refused(
        kind="PeerLost",
        text=f"trainer {trainer} is lost: {what}, {place}{alone}",
        peer=f"trainer {trainer}",
        step=step,
        hint=f"see that trainer's log{flag if since < inf else ''}",
    )


def gone(endpoint: str, trainer: int, step: int, seconds: float) -> str:
    return (
        f"server {endpoint}: trainer {trainer} has gone at step {step}; it may be started again "
        f"within {seconds:.0f} s"
    )


def came_back(endpoint: str, trainer: int, passed: int) -> str:
    return f"server {endpoint}: trainer {trainer} was started again; it has passed {passed} rounds"


def superseded(trainer: int) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"trainer {trainer} was started again, and this process is its former life",
        hint="its connection was lost for so long that it was taken for dead",
    )


def absent(trainers: list[int], waited: float) -> Refused:
    return Refused(
        kind="PeerLost",
        text=f"{trainers_named(trainers)} never connected within {waited:.0f} s",
        peer=trainers_named(trainers),
        hint="start every trainer (PADDLE_TRAINERS_NUM of them); the time is FLAGS_join_seconds",
    )


def with_waiters(lost: Refused, waiting: Iterable[int], endpoint: str) -> Refused:
    """The loss of a peer, with who waited for it at which server."""
    names = sorted(waiting)
    where = f"; {trainers_named(names)} waited for it" if names else ""
    return msgspec.structs.replace(lost, text=f"{lost.text}{where} (server {endpoint})")


def slow(trainers: list[int], round_: int, waited: float) -> Refused:
    names = trainers_named(trainers)
    return Refused(
        kind="DeadlineExceeded",
        text=f"{names} did not reach the barrier of round {round_} within {waited:.0f} s, "
        "though alive",
        peer=names,
        step=round_,
        hint="is it much slower than the others? the time is FLAGS_rpc_deadline (milliseconds)",
    )


def gave_up(peer: str, cause: str, step: int) -> Refused:
    return Refused(kind="Aborted", text=f"{peer} gave up: {cause}", peer=peer, step=step)


def reported(abort: Abort, reporter: str) -> Refused:
    kind = "PeerLost" if abort.kind == "PeerLost" else "Aborted"
    return Refused(
        kind=kind, text=f"{abort.cause} (reported by {reporter})", peer=abort.peer, step=abort.step
    )


def broken(server: str, update: int, cause: str) -> Refused:
    return Refused(
        kind="Aborted",
        text=f"{server} could not compute update {update}: {cause}",
        peer=server,
        step=update,
    )


# -- what may not be said ----------------------------------------------------------------------
def not_owned(endpoint: str, name: str, owned: Iterable[str]) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"server {endpoint} owns no gradient '{name}'",
        hint=f"it owns {', '.join(list(owned)[:6]) or 'none'}; "
        "all processes must run the same script with the same endpoints",
    )


def anothers(name: str, owner: int, sender: int) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"'{name}' is trainer {owner}'s gradient, and trainer {sender} sent it",
        hint="check PADDLE_TRAINER_ID in every process",
    )


def wrong_data(fault: str) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=fault,
        hint="all processes must run the same script; ids of rows come from the data",
    )


def needs_barrier(endpoint: str, trainer: int) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"trainer {trainer} pushed gradients without a barrier, but server {endpoint} is sync",
        hint=_MODES,
    )


def takes_no_barrier(endpoint: str, mode: str) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"a trainer sent a barrier, but server {endpoint} runs in {mode} mode",
        hint=_MODES,
    )


def too_early(call: Call, missing: int) -> Refused:
    return Refused(
        kind="ProtocolError",
        text=f"call {call.sequence} of trainer {call.trainer} came while call {missing} was "
        "missing",
        hint="a call may come before earlier ones, but not so far before them",
    )

"""The parent of one process of a job: whatever that process starts ends with it, and all of it with
the launcher, even by kill -9.

A script of the standard library alone: `python -I -S keeper.py CONTROL PIDS COMMAND...` runs the
command and ends as it does. The kernel gives it the orphans among its descendants (subreaper), so
none can leave by a session of its own or by the exit of its parent. CONTROL is a pipe from the
launcher: each byte is a signal for all descendants, its end kills them. The pid of the command is
written to PIDS. What the command prints is copied to the keeper's stdout, with FLAGS_log_json as
lines of JSON.
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

if __package__:
    from ..log_relay import Relay
else:  # run by its path
    sys.path.append(os.path.dirname(os.path.dirname(__file__)))
    from log_relay import Relay  # type: ignore[import-not-found,no-redef]

__all__ = ["PARENT", "keep_this_program", "main"]

PARENT = "BIREME_LAUNCHER_PID"  # as in `lifeline`, which this script cannot import
REPORTS = "BIREME_PROGRESS_FD"  # as in `progress`
JSON = "FLAGS_log_json"
_ROLES = {"PSERVER": ("server", "PADDLE_PSERVER_ID"), "TRAINER": ("trainer", "PADDLE_TRAINER_ID")}
PATIENCE = 5.0  # seconds for killed processes to end: one that hangs in the kernel does not
_PR_SET_CHILD_SUBREAPER = 36
_NOT_FOR_IT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

Execute = Callable[[Sequence[str], Mapping[str, str]], object]
Seen = tuple[int, int]  # the parent of a process, and when it was started


def _exec(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.execvpe(command[0], list(command), dict(environ))


def main(control: int, pids: int, command: Sequence[str], execute: Execute = _exec) -> NoReturn:
    """Run the command, and end as it does."""
    parent = _kept(control, pids, signal.SIG_IGN)
    try:
        execute(command, {**os.environ, PARENT: str(parent)})
    except OSError as error:
        print(f"bireme: cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def keep_this_program() -> None:
    """Go on in a child, of which this process becomes the keeper: signals are passed on to it."""
    control, writer = os.pipe()
    pids = os.open(os.devnull, os.O_WRONLY)
    parent = _kept(control, pids, lambda number, frame: os.write(writer, bytes([number])))
    os.close(writer)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[PARENT] = str(parent)


def _kept(control: int, pids: int, heard: Any) -> int:
    """Fork: returns in the child, with the pid of this process, which becomes its keeper and ends
    as it does. `heard`: the handler of signals in the keeper.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ignored = [n for n in _NOT_FOR_IT if signal.signal(n, heard) == signal.SIG_IGN]
    wake = _woken_by_children()
    parent = os.getpid()
    relay = Relay(_report_cut, _fields(os.environ))
    child = os.fork()
    if not child:
        relay.enter_child()
        _enter_child(ignored, (control, pids))
        return parent
    relay.enter_parent(child)
    os.write(pids, str(child).encode())
    os.close(pids)
    status = _followed(child, control, wake, relay)
    status = _ended(child, wake, status)
    relay.finish()
    _end_as(status)


def _enter_child(ignored: Sequence[int], ours: Sequence[int]) -> None:
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for number in {*_NOT_FOR_IT, signal.SIGCHLD}.difference(ignored):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in ours:
        os.close(descriptor)


def _fields(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """What the lines of JSON say of the process; None for lines as they are."""
    if environ.get(JSON, "").strip().lower() not in ("1", "true", "yes"):
        return None
    role, variable = _ROLES.get(environ.get("TRAINING_ROLE", ""), ("", ""))
    index = environ.get(variable, "")
    fields: dict[str, Any] = {"role": role} if role else {}
    return fields | ({"index": int(index)} if index.isdecimal() else {})


def _report_cut(reason: str) -> None:
    """Let the launcher know that the log cannot be written."""
    row = json.dumps({"cut": reason, "time": time.monotonic()})
    os.write(int(os.environ[REPORTS]), f"{row}\n".encode())


def _woken_by_children() -> int:
    """A descriptor that becomes readable when a child has ended."""
    wake, writer = os.pipe()
    for end in (wake, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return wake


def _followed(child: int, control: int, wake: int, relay: Relay) -> int | None:
    """Pass signals on, and what is printed, until the child has ended, with its status, or the
    launcher is gone.
    """
    while True:
        ready = select.select([control, wake, *relay.readers], [], [])[0]
        for reader in ready:
            if reader not in (control, wake):
                relay.copy(reader)
        if wake in ready:
            _drain(wake)
            if (status := _reaped(child)) is not None:
                return status
        if control in ready:
            signals = os.read(control, 64)
            if not signals:
                return None
            for number in signals:
                _signal_descendants(number)


def _drain(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(wake, 1 << 12)


def _reaped(child: int) -> int | None:
    """Reap what has ended; the status of the child if it is among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = ended[1]
    return found


def _ended(child: int, wake: int, status: int | None) -> int:
    """Kill all descendants; the status of the child.

    Only children are killed, whose pids cannot be taken by others before they are reaped here.
    Their own children then become children of this process.
    """
    until = time.monotonic() + PATIENCE
    while children := _children(os.getpid()):
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        select.select([wake], [], [], max(0.0, until - time.monotonic()))
        _drain(wake)
        found = _reaped(child)
        status = status if found is None else found
        if time.monotonic() > until:
            break
    return signal.SIGKILL if status is None else status


def _children(parent: int) -> list[int]:
    return [pid for pid, seen in _processes().items() if seen[0] == parent]


def _signal_descendants(number: int) -> None:
    """Signal every process below this one."""
    processes = _processes()
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, seen in processes.items() if seen[0] == parent]
    for pid in found[1:]:
        _signal(pid, processes[pid], number)


def _signal(pid: int, seen: Seen, number: int) -> None:
    """Signal a process unless its pid now belongs to another."""
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            now = _seen(pid)
            if now is not None and now[1] == seen[1]:
                signal.pidfd_send_signal(process, number)
        finally:
            os.close(process)


def _processes() -> dict[int, Seen]:
    """The processes of this machine."""
    return {pid: seen for pid in _pids() if (seen := _seen(pid)) is not None}


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _seen(pid: int) -> Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:  # it has ended
        return None
    return int(fields[1]), int(fields[19])


def _end_as(status: int) -> NoReturn:
    """End as the child with this status has: by its exit code, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child's is enough
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

"""Whole jobs over real sockets: they agree, they end, and nobody waits for the dead."""

import json
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.wire, pytest.mark.slow]

SILENT = {"FLAGS_heartbeat_seconds": "3"}
ENDED = {"FLAGS_heartbeat_seconds": str(2 * PATIENCE)}  # found by a connection's end alone
MakeJob = Callable[..., Any]


def ended(job: Any) -> dict[str, int]:
    return {role: process.wait() for role, process in job.processes.items()}


def params(job: Any, name: str) -> Any:
    return json.loads((job.folder / name).read_text())["params"]


def test_two_servers_and_two_trainers_finish_with_exit_code_0(job: MakeJob) -> None:
    made = job(2, 2)
    made.start_all("--steps", "20")
    assert set(ended(made).values()) == {0}, {r: p.text for r, p in made.processes.items()}


def test_one_trainer_and_one_server_finish_in_every_mode(job: MakeJob) -> None:
    for mode in ("sync", "async", "dc-asgd"):
        made = job(1, 1)
        made.start_all("--steps", "5", "--mode", mode)
        assert set(ended(made).values()) == {0}, {r: p.text for r, p in made.processes.items()}


def test_sync_jobs_repeat_bit_for_bit(job: MakeJob) -> None:
    found = []
    for turn in ("a", "b"):
        made = job(1, 2)
        for role in made.endpoints:
            made.start(role)
        for trainer in ("0", "1"):
            out = str(made.folder / f"{turn}{trainer}.json")
            made.start(trainer, "--steps", "10", "--out", out)
        assert set(ended(made).values()) == {0}
        found += [params(made, f"{turn}{trainer}.json") for trainer in "01"]
    assert found[0] == found[1] == found[2] == found[3]


def run(made: Any, mode: str, steps: str = "10") -> list[Any]:
    """A job to its end; each trainer's parameters."""
    for role in made.endpoints:
        made.start(role, "--mode", mode)
    outs = [made.folder / f"{mode}{trainer}.json" for trainer in range(made.trainers)]
    for trainer, out in enumerate(outs):
        made.start(str(trainer), "--mode", mode, "--steps", steps, "--out", str(out))
    assert set(ended(made).values()) == {0}, {r: p.text for r, p in made.processes.items()}
    return [params(made, out.name) for out in outs]


def local(made: Any, steps: str = "10") -> Any:
    out = made.folder / "local.json"
    assert made.start("local", "--steps", steps, "--out", str(out)).wait() == 0
    return params(made, out.name)


def close(a: Any, b: Any, rtol: float = 1e-5) -> bool:
    pairs = [(np.array(a[name]), np.array(b[name])) for name in a]
    return all(np.abs(x - y).max() <= rtol * np.abs(y).max() for x, y in pairs)


@pytest.mark.parametrize("mode", ["sync", "split-sync"])
def test_sync_equals_one_process_on_the_union_of_the_batches(job: MakeJob, mode: str) -> None:
    made = job(2, 2)
    found = run(made, mode)
    assert found[0] == found[1]
    assert close(found[0], local(made))


@pytest.mark.parametrize("mode", ["async", "dc-asgd", "split", "half-async"])
def test_other_modes_finish(job: MakeJob, mode: str) -> None:
    run(job(2, 2), mode)


@pytest.mark.parametrize("mode", ["async", "dc-asgd", "split"])
def test_one_trainer_in_other_modes_equals_one_process(job: MakeJob, mode: str) -> None:
    made = job(2, 1)
    (found,) = run(made, mode)
    assert close(found, local(made))


def test_a_killed_trainer_ends_the_others_who_name_it_and_its_step(job: MakeJob) -> None:
    made = job(2, 2)
    made.start_all("--steps", "1000", "--pause", "0.05", **ENDED)
    made.processes["1"].until("step 5")
    made.kill("1")
    codes = ended(made)
    assert 0 not in codes.values()
    for role, process in made.processes.items():
        assert "trainer 1 is lost" in process.text, role
        assert "at step" in process.text


def test_a_killed_server_ends_the_others_who_name_it_and_the_step(job: MakeJob) -> None:
    made = job(2, 2)
    made.start_all("--steps", "1000", "--pause", "0.05", **ENDED)
    made.processes["1"].until("step 5")
    gone = made.endpoints[1]
    made.kill(gone)
    codes = ended(made)
    assert 0 not in codes.values()
    for process in made.processes.values():
        assert f"server {gone} is lost" in process.text
        assert "at step" in process.text


@pytest.mark.parametrize("mode", ["sync", "async", "queued", "geo"])
@pytest.mark.parametrize("victim", ["1", "server"])
def test_in_every_mode_one_death_is_told_once_and_without_a_traceback(
    job: MakeJob, mode: str, victim: str
) -> None:
    made = job(2, 2)
    for role in (*made.endpoints, "0", "1"):
        made.start_run(role, "--steps", "1000", "--pause", "0.05", "--mode", mode, **ENDED)
    made.processes["1"].until("step 5")
    gone = made.endpoints[1] if victim == "server" else victim
    made.kill(gone)
    codes = ended(made)
    assert 0 not in codes.values()
    dead = f"server {gone}" if victim == "server" else "trainer 1"
    for role, process in made.processes.items():
        assert f"{dead} is lost" in process.text, (role, process.text)
        assert process.text.count("is lost") == 1, (role, process.text)
        assert "gave up" not in process.text, (role, process.text)
        assert "Traceback" not in process.text, (role, process.text)


def test_a_trainer_that_computes_for_long_ends_too(job: MakeJob) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0], **SILENT)
    made.start("0", "--steps", "1", "--pause", "600", **SILENT)
    other = made.start("1", "--steps", "2", "--pause", "600", **SILENT)
    made.processes["0"].until("step 0")
    other.until("step 0")
    made.kill("1")
    codes = ended(made)
    assert 0 not in codes.values()
    assert "trainer 1 is lost" in made.processes["0"].text


def test_an_uncaught_error_ends_the_others_with_its_cause(job: MakeJob) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0])
    made.start("0", "--steps", "1000", "--pause", "0.01")
    made.start("1", "--steps", "1000", "--fail", "7")
    codes = ended(made)
    assert 0 not in codes.values()
    for role in (made.endpoints[0], "0"):
        assert "trainer 1 gave up: ValueError: the batch is bad" in made.processes[role].text


ENDS = {
    "sys.exit(1)": (1, "it exited with code 1"),
    "raise SystemExit('no data')": (1, "SystemExit: no data"),
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); os.kill(os.getpid(), signal.SIGUSR1)": (
        9,
        "it exited with code 9",
    ),
    "raise KeyboardInterrupt": (130, "KeyboardInterrupt"),
    "os.kill(os.getpid(), signal.SIGTERM)": (143, "it was ended by SIGTERM"),
}


@pytest.mark.parametrize("bireme_run", [False, True], ids=["by-hand", "bireme-run"])
@pytest.mark.parametrize("how", ENDS)
def test_only_an_orderly_exit_counts_as_finished(job: MakeJob, how: str, bireme_run: bool) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0])
    made.start("0", "--steps", "1000", "--pause", "0.01")
    start = made.start_run if bireme_run else made.start
    start("1", "--steps", "1000", "--fail", "3", "--how", how)
    codes = ended(made)
    code, cause = ENDS[how]
    if "xit(" in how and not bireme_run and sys.version_info < (3, 12):
        cause = "it called sys.exit, with a code that plain python does not show"
    assert codes.pop("1") in (code, -signal.SIGINT)
    assert 0 not in codes.values()
    for role in (made.endpoints[0], "0"):
        assert f"trainer 1 gave up: {cause}" in made.processes[role].text


@pytest.mark.parametrize("how", ["sys.exit()", "raise SystemExit(0)"])
def test_whoever_exits_in_order_has_finished(job: MakeJob, how: str) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0])
    made.start("0", "--steps", "20")
    made.start_run("1", "--steps", "20", "--fail", "3", "--how", how)
    assert set(ended(made).values()) == {0}


def test_closing_while_an_error_passes_does_not_count_as_finished(job: MakeJob) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0])
    made.start("0", "--steps", "1000", "--pause", "0.01")
    how = """
try:
    raise ValueError("the batch is bad")
finally:
    exe.close()
"""
    made.start("1", "--steps", "1000", "--fail", "3", "--how", how)
    assert 0 not in ended(made).values()
    assert "trainer 1 gave up: ValueError: the batch is bad" in made.processes["0"].text


def test_closing_where_an_error_was_handled_counts_at_the_end(job: MakeJob) -> None:
    made = job(1, 2)
    made.start(made.endpoints[0])
    made.start("0", "--steps", "20")
    how = """
try:
    raise ValueError("the data is over")
except ValueError:
    exe.close()
sys.exit(0)
"""
    made.start_run("1", "--steps", "20", "--fail", "3", "--how", how)
    assert set(ended(made).values()) == {0}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_everybody_ends_the_cluster(job: MakeJob, number: int) -> None:
    made = job(1, 2)
    made.start_all("--steps", "1000", "--pause", "0.05")
    made.processes["0"].until("step 3")
    for process in made.processes.values():
        process.popen.send_signal(number)
    codes = ended(made)
    assert 0 not in codes.values()


def test_a_stopped_server_tells_its_trainers(job: MakeJob) -> None:
    made = job(1, 2)
    made.start_all("--steps", "1000", "--pause", "0.05")
    made.processes["0"].until("step 3")
    made.processes[made.endpoints[0]].popen.send_signal(signal.SIGTERM)
    codes = ended(made)
    assert codes[made.endpoints[0]] == 128 + signal.SIGTERM
    assert "it was ended by SIGTERM" in made.processes["0"].text


def test_a_port_in_use_is_a_clear_error(job: MakeJob) -> None:
    made = job(1, 1)
    port = int(made.endpoints[0].rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        server = made.start(made.endpoints[0], BIREME_RESERVED_PORTS="")
        assert server.wait() == 1
    assert "ConfigError: cannot listen on 127.0.0.1" in server.text
    assert "choose another endpoint" in server.text


def test_a_trainer_without_servers_says_so_after_the_join_time(job: MakeJob) -> None:
    made = job(1, 1)
    trainer = made.start("0", FLAGS_join_seconds="2")
    assert trainer.wait() == 1
    assert f"server {made.endpoints[0]} did not answer within 2 s" in trainer.text


def test_a_server_without_trainers_says_who_never_came(job: MakeJob) -> None:
    made = job(1, 2)
    server = made.start(made.endpoints[0], FLAGS_join_seconds="2")
    assert server.wait() == 1
    assert "trainers 0, 1 never connected within" in server.text


def test_a_killed_job_goes_on_with_one_more_server(job: MakeJob) -> None:
    keeping = {"FLAGS_checkpoint_every_steps": "4", **SILENT}
    undisturbed = run(job(2, 2), "sync", "16")
    made = job(2, 2)
    keeping["FLAGS_checkpoint_dir"] = str(made.folder / "kept")
    made.start_all("--steps", "500", "--pause", "0.05", **keeping)
    made.processes["0"].until("step 10\n")
    made.kill(made.endpoints[1])
    assert 0 not in ended(made).values()
    again = job(3, 2)
    outs = [again.folder / f"again{trainer}.json" for trainer in range(2)]
    for role in again.endpoints:
        again.start(role, **keeping)
    for trainer, out in enumerate(outs):
        again.start(str(trainer), "--steps", "16", "--out", str(out), **keeping)
    assert set(ended(again).values()) == {0}, {r: p.text for r, p in again.processes.items()}
    assert "goes on from" in again.processes[again.endpoints[2]].text
    first = int(again.processes["0"].text.split()[1])
    assert first >= 8
    assert first % 4 == 0
    for trainer, out in enumerate(outs):
        assert close(params(again, out.name), undisturbed[trainer], 1e-6)


@pytest.mark.parametrize(
    "child",
    [
        "sys.exit(0)",
        "exe.close(); os._exit(0)",
        "exe.run(feed=sys.modules['__main__'].batch(3, 0))",
    ],
)
def test_a_fork_of_a_trainer_changes_nothing(job: MakeJob, child: str) -> None:
    how = f"if os.fork() == 0: {child}\nprint('forked', os.wait()[1] == 0)"
    made = job(1, 1)
    made.start_all("--steps", "6", "--fail", "3", "--how", how, "--out", str(made.folder / "out"))
    assert set(ended(made).values()) == {0}, {r: p.text for r, p in made.processes.items()}
    text = made.processes["0"].text
    assert f"forked {'run' not in child}" in text
    assert ("trainer 0 belongs to process" in text) == ("run" in child)
    assert close(params(made, "out"), local(made, "6"))

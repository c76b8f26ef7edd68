"""What watching costs a job of two servers and four trainers on this machine.

One job runs throughout. The processes that watch it (a recorder as in the launcher, `bireme
dashboard`, and a client that receives what a browser would) are stopped and continued in turn,
every second, and the mean step times of trainer 0 in neighbouring stretches are compared: all that
watching does in a stretch counts, not only what it does in most steps.
All of it shares the same cores, which is the worst case: a browser is usually on another machine.
The time on the processor that watching takes is measured, too: it varies less than step times do.

    python benchmarks/bench_dashboard.py [SECONDS]
"""

import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from bireme.fleet.telemetry import job_file
from bireme.fleet.telemetry.recording import Recorder
from bireme.monitoring.admin_server import Admin
from bireme.monitoring.counters import Tally
from bireme.monitoring.step_clock import BACKWARD, FORWARD, StepClock

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks" / "results" / "dashboard.txt"
STRETCH = 1.0  # seconds
SETTLE = 0.1  # seconds at the beginning of a stretch that are not counted
TOGETHER = 0.2  # seconds: messages that come within are one update of the page
PROCESSES = 6
ENTERS = 16  # changes of phase in a step of this job
BIREME = [sys.executable, "-m", "bireme"]


def launched(folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """The job, which records nothing by itself."""
    code = (
        "import sys; from bireme.fleet.telemetry import recording; "
        "recording.pause = lambda age: 1e9; "
        "from bireme.fleet.cli import main; main(sys.argv[1:])"
    )
    words = ["launch", "--servers", "2", "--trainers", "4", "--log-dir", str(folder / "log")]
    job = [str(ROOT / "tools" / "dashboard_job.py"), "--steps", "1000000"]
    job += ["--seconds", str(seconds), "--stamps", str(folder / "stamps.npy")]
    return subprocess.Popen([sys.executable, "-c", code, *words, *job], stdout=subprocess.DEVNULL)


def record(log_dir: str) -> None:
    """The launcher's recorder, in a process of its own."""
    folder = Path(log_dir)
    with tempfile.TemporaryDirectory() as out:
        recorder = Recorder(Path(out), lambda: job_file.read(folder))
        signal.sigwait({signal.SIGTERM})
        recorder.close()


def receive(url: str, out: str) -> None:
    """A window of the dashboard without a screen: takes every update, and counts them."""
    from tornado.websocket import websocket_connect

    page = urllib.request.urlopen(url).read().decode()
    found = re.search(r'"token":\s*"([^"]+)"', page)
    assert found, "the page has no token"
    token = found.group(1)
    count, size, last = 0, 0, 0.0

    async def run() -> None:
        nonlocal count, size, last
        host = url.removeprefix("http").rstrip("/")
        socket = await websocket_connect(f"ws{host}/ws", subprotocols=["bokeh", token])
        while True:
            part = await socket.read_message()
            if part is None:
                return
            size += len(part)
            count += time.monotonic() - last > TOGETHER
            last = time.monotonic()
            Path(out).write_text(json.dumps([count, size]))

    asyncio.run(run())


@contextmanager
def watchers(folder: Path) -> Iterator[list["subprocess.Popen[str]"]]:
    """The recorder, the dashboard, and its client."""
    log, me = str(folder / "log"), [sys.executable, __file__]
    dashboard = subprocess.Popen(
        [*BIREME, "dashboard", "--port", "0", "--log-dir", log], stdout=subprocess.PIPE, text=True
    )
    assert dashboard.stdout is not None
    url = dashboard.stdout.readline().split()[-1]
    found = [
        dashboard,
        subprocess.Popen([*me, "record", log], text=True),
        subprocess.Popen([*me, "receive", url, str(folder / "updates")], text=True),
    ]
    try:
        yield found
    finally:
        for process in found:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def alternate(watching: list["subprocess.Popen[str]"], until: float) -> list[tuple[float, bool]]:
    """Stop and continue the watchers in pairs of random order, so that nothing periodic is counted
    as theirs; when each stretch began, and whether they were running.
    """
    random_order = random.Random(1)
    began = []
    while time.monotonic() < until:
        first = random_order.random() < 0.5
        for on in (first, not first):
            for process in watching:
                os.kill(process.pid, signal.SIGCONT if on else signal.SIGSTOP)
            began.append((time.monotonic(), on))
            time.sleep(STRETCH)
    return began


def step_times(stamps: np.ndarray, began: list[tuple[float, bool]]) -> dict[bool, list[float]]:
    """The mean step time of every stretch, in seconds."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for at, on in began:
        inside = stamps[(stamps > at + SETTLE) & (stamps < at + STRETCH)]
        found[on].append(float(np.mean(np.diff(inside))) if len(inside) > 2 else STRETCH)
    return found


def busy(watching: list["subprocess.Popen[str]"]) -> float:
    """Seconds that the watchers have spent on a processor."""
    times = [psutil.Process(process.pid).cpu_times() for process in watching]
    return sum(each.user + each.system for each in times)


def answering() -> float:
    """Seconds on a processor that a process needs to answer `/status` once."""
    books = Tally()
    books.enter("trainer", 0)
    books.step(1, 0.1, [0.01] * 7)
    admin, count = Admin("127.0.0.1", 0, books), 300
    script = (
        "import http.client, sys\n"
        "c = http.client.HTTPConnection(sys.argv[1])\n"
        "for _ in range(int(sys.argv[2])): c.request('GET', '/status'); c.getresponse().read()"
    )
    began = time.process_time()
    subprocess.run([sys.executable, "-c", script, admin.endpoint, str(count)], check=True)
    spent = time.process_time() - began
    admin.close()
    return spent / count


def marks() -> float:
    """Seconds that the changes of phase take in a step."""
    clock, count = StepClock(), 20_000
    best = 1.0
    for _ in range(5):
        clock.begin()
        began = time.perf_counter()
        for _ in range(count):
            clock.enter(BACKWARD)
            clock.enter(FORWARD)
        best = min(best, (time.perf_counter() - began) / (2 * count))
        clock.end()
    return best * ENTERS


def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = launched(folder, seconds)
        try:
            while not (folder / "log" / "job.json").exists():
                time.sleep(0.1)
            time.sleep(8)  # processes start and compile
            with watchers(folder) as watching:
                time.sleep(5)
                spent = -busy(watching)
                began = alternate(watching, time.monotonic() + seconds - 18)
                spent += busy(watching)
            job.wait(60)
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait()
        times = step_times(np.load(folder / "stamps.npy"), began)
        updates = json.loads((folder / "updates").read_text())
    report(times, updates, spent, answering(), marks())


def report(
    times: dict[bool, list[float]],
    updates: list[float],
    spent: float,
    answer: float,
    phases: float,
) -> None:
    pairs = list(zip(times[True], times[False], strict=True))
    ratios = [on / off for on, off in pairs]
    error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5  # of a median
    off = statistics.median(times[False])
    active, cores = STRETCH * len(times[True]), os.cpu_count() or 1
    watchers = spent / active
    answers = 2 * PROCESSES * answer  # per second: for the recorder and for the dashboard
    lines = [
        "What watching costs a job of 2 servers and 4 trainers, all on one machine of "
        f"{os.cpu_count()} cores,",
        "dashboard and client included (benchmarks/bench_dashboard.py)",
        "",
        f"step time unwatched, median of {len(times[False])} stretches of {STRETCH:g} s"
        f"{off * 1e3:>12.2f} ms",
        f"step time watched, median of {len(times[True])} stretches"
        f"{statistics.median(times[True]) * 1e3:>24.2f} ms",
        f"watched / unwatched, median of {len(pairs)} pairs"
        f"{statistics.median(ratios):>28.3f} +- {error:.3f}",
        f"time on processors, of the watchers{watchers * 1e3:>32.1f} ms per second",
        f"time on processors, of the job's answers{answers * 1e3:>27.1f} ms per second",
        f"both, of all that {cores} cores have{(watchers + answers) / cores:>32.2%}",
        f"updates of the page per second while watched{updates[0] / active:>23.2f}",
        f"bytes per update{updates[1] / max(1, updates[0]):>51.0f}",
        f"changes of phase, always on: {ENTERS} in a step{phases * 1e6:>26.2f} us"
        f"  ({phases / off:.3%} of a step)",
    ]
    text = "\n".join(lines) + "\n"
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"]:
        record(sys.argv[2])
    elif sys.argv[1:2] == ["receive"]:
        receive(sys.argv[2], sys.argv[3])
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 150.0)

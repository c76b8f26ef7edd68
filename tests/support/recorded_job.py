"""A recorded job without a job: two servers and four trainers, of which trainer 2 reads its data
slowly and trainer 3 fails at the end.
"""

from pathlib import Path

import msgspec

from bireme.fleet.telemetry.asking import Shard
from bireme.fleet.telemetry.job_file import JobFile, Process
from bireme.fleet.telemetry.recording import NAME, Line, Shards
from bireme.fleet.telemetry.snapshot import Observed, Rates, Snapshot, Status, TableSize

__all__ = ["BEGAN", "SECONDS", "processes", "shards", "snapshot", "write"]

BEGAN, SECONDS = 1_700_000_000.0, 60
PHASES = {"data": 0.001, "forward": 0.002, "backward": 0.004, "send": 0.003, "wait": 0.022}
SLOW = {**PHASES, "data": 0.021, "wait": 0.002}


def processes(ended: bool = False) -> list[Process]:
    codes: dict[str, int | None] = {"trainer 3": 1}
    names = ["server 0", "server 1", *(f"trainer {i}" for i in range(4))]
    return [
        Process(
            role := name.split()[0],
            index := int(name.split()[1]),
            pid=100 + i,
            admin=f"127.0.0.1:{9000 + i}",
            exit_code=codes.get(name, 0) if ended else None,
            log=f"{role}log.{index}",
            error="ValueError: <no data>" if ended and codes.get(name) else "",
            blamed=ended and bool(codes.get(name)),
        )
        for i, name in enumerate(names)
    ]


def snapshot(second: int) -> Snapshot:
    """The job after so many seconds."""
    ended = second >= SECONDS
    observed = [Observed(p, _status(p, second)) for p in processes(ended)]
    return Snapshot(BEGAN + second, tuple(observed))


def _status(process: Process, second: int) -> Status:
    server = process.role == "server"
    failed = second >= SECONDS and (process.role, process.index) == ("trainer", 3)
    rates = Rates(
        steps_per_second=30.0,
        samples_per_second=0.0 if server else 3840.0,
        sent_bytes_per_second=2e7,
        received_bytes_per_second=1e7,
        wait_seconds=0.02,
        phase_seconds={"update": 0.004} if server else SLOW if process.index == 2 else PHASES,
    )
    fault = [(BEGAN + second - 1, "ValueError: <no data>")] if failed else []
    return Status(
        role=process.role,
        index=process.index,
        ready=True,
        pid=process.pid,
        host="node-a",
        time=BEGAN + second,
        started=BEGAN - 2,
        memory_bytes=90_000_000,
        last_error=fault[0][1] if fault else "",
        faults=fault,
        rates=rates,
        step=30 * second,
        loss=None if server else 2.0 / (1 + second),
        metrics={} if server else {"auc": 0.5 + second / 200},
        staleness=dict.fromkeys(range(4), 0.0) if server else {},
        tables={"vectors": TableSize(rows=100 * second, bytes=6400 * second)} if server else {},
    )


def shards() -> Shards:
    def dense(name: str, variable: str, rows: int) -> Shard:
        return Shard(name, variable, "dense", (rows, 64), 256 * rows, 256 * rows)

    table = Shard("vectors", "vectors", "table", (500, 16), 32_000, 64_000)
    return {
        "server 0": (dense("w.block0", "w", 600), table),
        "server 1": (dense("w.block1", "w", 500), dense("b", "b", 20), table),
    }


def write(folder: Path, seconds: int = SECONDS) -> None:
    """The log folder that such a job leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [Line(shards=shards()), *(Line(snapshot=snapshot(s)) for s in range(seconds + 1))]
    (folder / NAME).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    JobFile(folder).tell(processes(ended=True))
    for process in processes():
        (folder / process.log).write_text(f"{process.role} {process.index} says <hello>\n")

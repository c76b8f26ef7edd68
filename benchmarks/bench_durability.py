"""What does FLAGS_durability=step cost? A step with 2 servers and 2 trainers, with and without it.

Both sides in turns; the figure of a run is the median step of trainer 0, the table shows the least
and the median of the runs. `KiB` is what both servers record in a round; `disk` is the time that
the disk alone takes to make as much durable, in two files side by side.

    python benchmarks/bench_durability.py [--rounds N] [--save FILE] [MODEL ...]
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench_cluster import STEPS, run
from peer import machine

SERVERS, TRAINERS = 2, 2
OURS = (sys.executable, "bireme")


class Watched:
    """The largest size that every log below a folder has had."""

    def __init__(self, folder: Path) -> None:
        self.sizes: dict[Path, int] = {}
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for path in self._folder.glob("write-ahead/*/log-*"):
                try:
                    self.sizes[path] = max(self.sizes.get(path, 0), path.stat().st_size)
                except OSError:
                    continue

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def recorded(model: str, folder: Path) -> tuple[float, int]:
    """Milliseconds of a step with a record, and the bytes of a round at all servers."""
    env = {"FLAGS_durability": "step", "FLAGS_checkpoint_dir": str(folder)}
    with Watched(folder) as watched:
        step = run(OURS, model, "sync", SERVERS, TRAINERS, env)
    return step, sum(watched.sizes.values()) // STEPS[model]


def disk(folder: Path, size: int, times: int = 20) -> float:
    """Milliseconds to append `size` bytes, divided among as many files as there are servers."""
    data = os.urandom(size // SERVERS)

    def append(number: int) -> None:
        with open(folder / f"disk{number}", "ab", buffering=0) as file:
            file.write(data)
            os.fdatasync(file.fileno())

    found = []
    with ThreadPoolExecutor(SERVERS) as pool:
        for _ in range(times):
            began = time.perf_counter()
            list(pool.map(append, range(SERVERS)))
            found.append(time.perf_counter() - began)
    for number in range(SERVERS):
        (folder / f"disk{number}").unlink()
    return median(found) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("models", nargs="*", default=list(STEPS))
    options = parser.parse_args()
    lines = [machine(), "", f"sync, {SERVERS} servers x {TRAINERS} trainers, ms per step"]
    lines.append(f"{'':10}{'least of runs':>18}{'':8}{'median of runs':>18}")
    lines.append(
        f"{'model':10}" + 2 * f"{'none':>9}{'step':>9}{'ratio':>8}" + f"{'KiB':>9}{'disk':>8}"
    )
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for model in options.models:
            none, step, size = [], [], 0
            for number in range(options.rounds):
                none.append(run(OURS, model, "sync", SERVERS, TRAINERS, {}))
                found, size = recorded(model, Path(name) / f"{model}{number}")
                step.append(found)
            pairs = [(what(none), what(step)) for what in (min, median)]
            row = "".join(f"{a:9.2f}{b:9.2f}{b / a:8.2f}" for a, b in pairs)
            lines.append(f"{model:10}{row}{size / 1024:9.0f}{disk(Path(name), size):8.2f}")
            print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()

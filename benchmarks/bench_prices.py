"""What do a token, certificates and a record cost? A step with 2 servers and 2 trainers.

All sides in turns, over each carrier; the figure of a run is the median step of trainer 0, the
table shows the least of the runs, and the ratios to `none` of the least and of the median. `token`
is a job token, `TLS` a token and certificates, `step` FLAGS_durability=step: `KiB` is what both
servers record in a round, `disk` the time that the disk alone takes to make as much durable, in
two files side by side. Shared memory serves processes of one host, TCP and gRPC also others.

    python benchmarks/bench_prices.py [--rounds N] [--save FILE] [MODEL ...]
"""

import argparse
import os
import secrets
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from bench_cluster import STEPS, run
from peer import machine, one_of

from bireme.fleet.certs import write_certificates

SERVERS, TRAINERS = 2, 2
OURS = (sys.executable, "bireme")
CARRIERS = {
    "memory": {},
    "TCP": {"FLAGS_rpc_shared_memory": "0"},
    "gRPC": {"FLAGS_rpc_shared_memory": "0", "FLAGS_rpc_stream": "0"},
}
PRICES = ("none", "token", "TLS", "step")


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


class Prices:
    """Runs of one model, each with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        token = {"BIREME_JOB_TOKEN": secrets.token_hex(32)}
        said = [line.split() for line in write_certificates(folder / "certificates")]
        tls = dict(words[-1].split("=", 1) for words in said)
        self._env = {"none": {}, "token": token, "TLS": {**token, **tls}}
        self._runs = 0

    def env(self, carrier: str, price: str) -> dict[str, str]:
        """The settings of a run."""
        return {**CARRIERS[carrier], **self._env.get(price, {})}

    def step(self, model: str, carrier: str, price: str) -> tuple[float, int]:
        """Milliseconds of a step, and the bytes that a round records at all servers."""
        env = self.env(carrier, price)
        if price != "step":
            return run(OURS, model, "sync", SERVERS, TRAINERS, env), 0
        self._runs += 1
        folder = self._folder / f"run{self._runs}"
        env |= {"FLAGS_durability": "step", "FLAGS_checkpoint_dir": str(folder)}
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


def measured(prices: Prices, folder: Path, model: str, carrier: str, rounds: int) -> str:
    """A line of the table."""
    times: dict[str, list[float]] = {price: [] for price in PRICES}
    size = 0
    for _ in range(rounds):
        for price in PRICES:
            step, recorded = prices.step(model, carrier, price)
            times[price].append(step)
            size = recorded or size
    none = times["none"]
    line = f"{model:8}{carrier:8}" + "".join(f"{min(times[p]):9.2f}" for p in PRICES)
    for what in (min, median):
        line += "  " + "".join(f"{what(times[p]) / what(none):7.2f}" for p in PRICES[1:])
    return f"{line}{size / 1024:9.0f}{disk(folder, size):8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--carriers", nargs="*", choices=list(CARRIERS), default=list(CARRIERS))
    parser.add_argument("models", nargs="*", type=one_of(STEPS), default=list(STEPS))
    options = parser.parse_args()
    lines = [machine(), "", f"sync, {SERVERS} servers x {TRAINERS} trainers, ms per step"]
    lines.append(f"{'':16}{'least of runs':>36}  {'ratio of the least':>21}  {'of the median':>21}")
    ratios = "".join(f"{price:>7}" for price in PRICES[1:])
    lines.append(f"{'model':8}{'carrier':8}" + "".join(f"{price:>9}" for price in PRICES))
    lines[-1] += f"  {ratios}  {ratios}{'KiB':>9}{'disk':>8}"
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        prices = Prices(folder)
        for model in options.models:
            for carrier in options.carriers:
                lines.append(measured(prices, folder, model, carrier, options.rounds))
                print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()

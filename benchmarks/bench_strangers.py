"""How much do strangers slow a job down? 50 idle and 50 dripping connections at every way in.

2 servers and 2 trainers, each server's gRPC endpoint, TCP port and Unix socket besieged by
`strangers.py`, beside the same job alone, in turns. The figure of a run is the median step of
trainer 0; the table shows the least and the median of the runs.

    python benchmarks/bench_strangers.py [--rounds N] [--save FILE] [MODEL ...]
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench_cluster import STEPS, run
from bench_prices import CARRIERS, OURS, SERVERS, TRAINERS, Prices
from peer import HERE, machine, one_of

COUNT, SECONDS = 50, 1.0
LONGER = 5  # times the steps of bench_cluster: a connection that says nothing is closed after 5 s


@contextmanager
def strangers(servers: list[int]) -> Iterator[None]:
    command = [sys.executable, str(HERE / "strangers.py"), "idle,drip", str(COUNT), str(SECONDS)]
    process = subprocess.Popen([*command, *map(str, servers)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("the strangers found no way in")
        yield
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def nobody(servers: list[int]) -> Iterator[None]:
    yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--carriers", nargs="*", choices=list(CARRIERS), default=list(CARRIERS))
    parser.add_argument(
        "models", nargs="*", type=one_of(STEPS), default=["mlp", "layers", "sparse"]
    )
    options = parser.parse_args()
    for model in options.models:
        STEPS[model] *= LONGER
    lines = [machine(), ""]
    lines.append(
        f"sync, {SERVERS} servers x {TRAINERS} trainers, {COUNT} idle connections and {COUNT} that "
        f"send a byte every {SECONDS:g} s at each way in, ms per step"
    )
    lines.append(f"{'':24}{'least of runs':>25}{'median of runs':>28}")
    lines.append(
        f"{'model':8}{'carrier':8}{'':8}" + f"{'alone':>9}{'besieged':>9}{'ratio':>7}   " * 2
    )
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as name:
        prices = Prices(Path(name))
        for model in options.models:
            for carrier in options.carriers:
                for price in ("token", "TLS"):
                    env = prices.env(carrier, price)
                    alone, besieged = [], []
                    for _ in range(options.rounds):
                        for times, beside in ((alone, nobody), (besieged, strangers)):
                            step = run(OURS, model, "sync", SERVERS, TRAINERS, env, beside)
                            times.append(step)
                    row = [(what(alone), what(besieged)) for what in (min, median)]
                    text = "   ".join(f"{a:9.2f}{b:9.2f}{b / a:7.2f}" for a, b in row)
                    lines.append(f"{model:8}{carrier:8}{price:8}{text}")
                    print(lines[-1], flush=True)
    if options.save:
        options.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()

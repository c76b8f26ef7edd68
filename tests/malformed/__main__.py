"""`python -m tests.malformed [--count N] [--live N] [--seed S] [KIND or WAY ...]`: what the tests
try in short, at full length, as a table. Exit code 1 if anything was not refused as it should be.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .hunting import KEPT, PEAK, hunt, resident
from .kinds import kinds
from .live import WAYS, attack


def in_process(count: int, seed: int, only: list[str]) -> int:
    faults = 0
    with tempfile.TemporaryDirectory() as folder, kinds(Path(folder)) as found:
        whole = sum(kind.weight for kind in found.values())
        for name, kind in found.items():
            if only and name not in only:
                continue
            outcome = hunt(kind, -(-count * kind.weight // whole), seed)
            print(f"{name:26}{outcome}", flush=True)
            for error, (_, data) in outcome.raw.items():
                print(f"    not ours: {error}; for example {data[:200]!r}")
            faults += len(outcome.raw) + (outcome.kept >= KEPT) + (outcome.peak >= PEAK)
    return faults


def live(count: int, seed: int, only: list[str]) -> int:
    faults = 0
    for way in WAYS:
        if not only or way in only:
            outcome = attack(way, count, seed)
            print(f"{way:34}{outcome}", flush=True)
            faults += len(outcome.faults)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="in process, in all")
    parser.add_argument("--live", type=int, default=20_000, help="on every way in")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    began = time.monotonic()
    faults = in_process(options.count, options.seed, options.only) if options.count else 0
    faults += live(options.live, options.seed, options.only) if options.live else 0
    seconds, memory = time.monotonic() - began, resident() >> 20
    print(f"{faults} faults; {seconds:.0f} s, {memory} MiB of memory at most")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every combination of optimizer, table and learning rate, in every way of dying.

python -m tests.durability --jobs 2                             all; exit code 1 if one is inexact
python -m tests.durability --write docs/durability.md           all, and write the page
python -m tests.durability --optimizer Adam --table growing     some
"""

import argparse
import multiprocessing
import os
import sys
from itertools import product
from pathlib import Path

from .combinations import OPTIMIZERS, RATES, TABLES, Combination
from .page import Outcomes, page
from .ways import WAYS, is_known, tried


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.durability")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="this one only")
    parser.add_argument("--table", choices=TABLES, help="this kind only")
    parser.add_argument("--rate", choices=RATES, help="this learning rate only")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried side by side")
    parser.add_argument("--write", type=Path, help="write this page, where all are tried")
    given = parser.parse_args()
    if given.write and (given.optimizer or given.table or given.rate):
        parser.error("--write needs all combinations")
    return given


def main() -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # for the processes that are spawned
    given = _arguments()
    chosen = [
        Combination(*each)
        for each in product(
            [given.optimizer] if given.optimizer else OPTIMIZERS,
            [given.table] if given.table else TABLES,
            [given.rate] if given.rate else RATES,
        )
    ]
    found: Outcomes = {}
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=40) as pool:
        for built, outcome in zip(chosen, pool.imap(tried, chosen), strict=True):
            found[built] = outcome
            said = set(outcome.values())
            print(f"{built}: {said.pop() if len(said) == 1 else outcome}", flush=True)
    unknown = sum(not is_known(each) for outcome in found.values() for each in outcome.values())
    print(f"{len(chosen)} combinations, {len(WAYS)} ways of dying, {unknown} inexact")
    if given.write:
        given.write.write_text(page(found))
    sys.exit(min(unknown, 1))


if __name__ == "__main__":
    main()

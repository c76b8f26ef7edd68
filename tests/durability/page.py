"""The page that says what came of every combination."""

from collections import Counter
from itertools import product

from .combinations import OPTIMIZERS, RATES, TABLES, Combination
from .ways import EXACT, REFUSED, SAVED, SERVERS, STEPS, TRAINERS, WAYS

__all__ = ["Outcomes", "page"]

Outcomes = dict[Combination, dict[str, str]]

TEXT = """# Optimizers, tables and schedules after a kill

Every optimizer, with every kind of embedding and every learning rate, in a job whose processes are
killed twice and [restarted](checkpoints.md#restarts). {jobs:,} jobs: {exact:,} are exact,
{refused:,} are refused before training, {other:,} differ. `make thorough` runs all of them.
This page is generated.

A job has {servers} servers, {trainers} trainers, {steps} steps, and a checkpoint every {saved}
steps. *Exact*: the losses of all steps, the persistable variables of the trainers, and the
contents of the servers (parameters, optimizer state, counters, rows of tables and their ids) equal
those of an undisturbed job bit for bit. Each cell covers {rates} learning rates: {names}.

* *server*, *trainer*, *both*: with `FLAGS_durability=step`, one server, one trainer, or one of each
  is killed within a step and restarted alone, twice.
* *launcher*: with `FLAGS_durability=step`, all processes are killed within a step, when one server
  has the barriers of all trainers and the other has not, and the job is restarted, twice.
* *launcher, `checkpoint`*: the same with `FLAGS_durability=checkpoint`.

| optimizer | embedding | {ways} | refused |
|---|---|{lines}---|
"""


def page(found: Outcomes) -> str:
    """The page of these outcomes."""
    counts = Counter(_kind(each) for outcome in found.values() for each in outcome.values())
    head = TEXT.format(
        jobs=counts.total(),
        exact=counts[EXACT],
        refused=counts[REFUSED],
        other=counts["other"],
        servers=SERVERS,
        trainers=TRAINERS,
        steps=STEPS,
        saved=SAVED,
        rates=len(RATES),
        names=", ".join(RATES),
        ways=" | ".join(WAYS),
        lines="---|" * len(WAYS),
    )
    return head + "".join(_line(found, *each) for each in product(OPTIMIZERS, TABLES))


def _kind(outcome: str) -> str:
    if outcome.startswith(REFUSED):
        return REFUSED
    return EXACT if outcome == EXACT else "other"


def _line(found: Outcomes, optimizer: str, table: str) -> str:
    of = {rate: found[Combination(optimizer, table, rate)] for rate in RATES}
    cells = [_cell({rate: outcome[way] for rate, outcome in of.items()}) for way in WAYS]
    why = sorted({each for outcome in of.values() for each in outcome.values() if each != EXACT})
    reasons = "; ".join(each.removeprefix(REFUSED) for each in why).replace("\n", " ")
    return f"| {optimizer} | {table} | {' | '.join(cells)} | {reasons} |\n"


def _cell(outcomes: dict[str, str]) -> str:
    """What came of the learning rates: one word if it is the same."""
    kinds = {rate: _kind(outcome) for rate, outcome in outcomes.items()}
    if len(set(kinds.values())) > 1:
        return ", ".join(f"{rate}: {kind}" for rate, kind in kinds.items() if kind != EXACT)
    return {EXACT: EXACT, REFUSED: "-"}.get(kinds.popitem()[1], "other")

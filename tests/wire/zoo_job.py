"""One role of a cluster that trains a small model in float64.

`zoo_job.py CASE ROLE RANK ENDPOINTS TRAINERS OUT`.

With ROLE `local` one process trains on the union of the trainers' batches. The parameters of the
end are saved in OUT.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bireme as fluid

sys.path.insert(0, str(Path(__file__).parent.parent.parent))
from tests.optimizer import models
from tests.optimizer.rules import RULES
from tests.optimizer.variants import VARIANTS
from tests.support.job import Build

STEPS = 5
IDS = [[1, 5, 29, 2, 23, 1], [30, 2, 8, 25, 3, 30], [7, 39, 0]]  # of each trainer
Feed = Callable[[int, int], dict[str, Any]]  # step, trainer -> batch


def _rows(step: int, trainer: int) -> dict[str, Any]:
    return models.sparse_feed(IDS[trainer], step, trainer)


def _updated(model: Callable[[], Any], name: str) -> Build:
    return models.built(model, lambda loss: RULES[name]().minimize(loss))


def _cases() -> dict[str, tuple[Build, Feed]]:
    found = {f"opt_{name}": _updated(models.wide, name) for name in RULES} | VARIANTS
    dense: dict[str, tuple[Build, Feed]] = {n: (b, models.dense_feed) for n, b in found.items()}
    sparse = {name: _updated(models.words, name) for name in ("sgd", "adagrad")}
    return dense | {f"sparse_{name}": (build, _rows) for name, build in sparse.items()}


CASES = _cases()


def _params(main: Any) -> list[str]:
    return [p.name for p in main.all_parameters()]


def _save(names: list[str], out: str) -> None:
    scope = fluid.global_scope()
    np.savez(out, **{name: np.array(scope.find_var(name).get()) for name in names})


def local(case: str, trainers: int, out: str) -> None:
    build, feed = CASES[case]
    main, startup, _ = build()
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        for step in range(STEPS):
            exe.run(main, feed=models.joined([feed(step, t) for t in range(trainers)]))
        _save(_params(main), out)


def _split(case: str, rank: int, endpoints: str, trainers: int) -> tuple[Any, Any]:
    main, startup, _ = CASES[case][0]()
    t = fluid.DistributeTranspiler()
    t.transpile(rank, main, endpoints, trainers, startup_program=startup)
    return t, startup


def server(case: str, rank: int, endpoints: str, trainers: int) -> None:
    t, _ = _split(case, 0, endpoints, trainers)
    program, startup = t.get_pserver_programs(endpoints.split(",")[rank])
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        exe.run(program)


def trainer(case: str, rank: int, endpoints: str, trainers: int, out: str) -> None:
    t, startup = _split(case, rank, endpoints, trainers)
    program = t.get_trainer_program()
    remote = {
        op.input("W")[0]
        for op in program.global_block().ops
        if op.type == "distributed_lookup_table"
    }
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        for step in range(STEPS):
            exe.run(program, feed=CASES[case][1](step, rank))
        _save([name for name in _params(program) if name not in remote], out)


if __name__ == "__main__":
    case, role, rank, endpoints, trainers, out = sys.argv[1:7]
    if role == "local":
        local(case, int(trainers), out)
    elif role == "server":
        server(case, int(rank), endpoints, int(trainers))
    else:
        trainer(case, int(rank), endpoints, int(trainers), out)

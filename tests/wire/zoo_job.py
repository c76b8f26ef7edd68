"""One role of a cluster that trains a model of the oracle's zoo.

`zoo_job.py CASE ROLE RANK ENDPOINTS TRAINERS OUT`.

With ROLE `local` one process trains on the union of the trainers' batches. The parameters of the
end are saved in OUT. Sizes and data are those of the oracle's curves.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bireme as fluid

sys.path.insert(0, str(Path(__file__).parent.parent / "oracle"))
import curves  # type: ignore[import-not-found]  # found by the path above
import zoo  # type: ignore[import-not-found]

STEPS = 5


def _cases() -> dict[str, tuple[str, Callable[[Any], Any], Callable[[Any, Any], None]]]:
    """Name to (kind of data, model, optimizer)."""
    found: dict[str, Any] = {}
    wide = ("linreg_wide", zoo.linreg_wide)
    for name, optimizer in zoo.OPTS.items():
        # LARS and DP-SGD look at the norm of what they update: a slice is not the whole.
        whole = name in ("lars_momentum", "dpsgd")
        found[f"opt_{name}"] = ("linreg", zoo.linreg, optimizer) if whole else (*wide, optimizer)
    for name, schedule in zoo.SCHEDS.items():
        found[f"lr_{name}"] = (*wide, zoo.opt("Adam", sched=schedule))
    found["l1"] = (*wide, zoo.opt("SGD", lr=0.002, reg=("l1", 0.01)))
    found["l2"] = (*wide, zoo.opt("Momentum", lr=0.002, momentum=0.9, reg=("l2", 0.01)))
    found["frozen"] = ("frozen_and_lr", zoo.frozen_and_lr, zoo.opt("SGD", lr=0.05))
    found["sparse"] = ("word2vec", zoo.word2vec(True), zoo.opt("SGD", lr=0.5))
    found["sparse_adagrad"] = ("word2vec", zoo.word2vec(True), zoo.opt("Adagrad", lr=0.1))
    found["shared"] = ("shared_params", zoo.shared_params, zoo.opt("Adam", lr=0.001))
    return found


CASES = _cases()


def _build(case: str) -> tuple[Any, Any, str]:
    kind, model, optimizer = CASES[case]
    main, startup, _ = zoo.build(fluid, zoo.Case(case, model, optimizer, zoo.LOCAL, ""))
    return main, startup, kind


def _overwrite(names: dict[str, tuple[int, ...]]) -> None:
    for name, shape in names.items():
        if len(shape) > 1:
            curves.put(fluid, name, curves.weight(name, shape))


def _save(names: dict[str, tuple[int, ...]], out: str) -> None:
    np.savez(out, **{name: curves.get(fluid, name) for name in names})


def local(case: str, trainers: int, out: str) -> None:
    main, startup, kind = _build(case)
    shapes = {p.name: tuple(p.shape) for p in curves.params_of(main)}
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        _overwrite(shapes)
        for step in range(STEPS):
            parts = [curves.batch(fluid, main, kind, step, t) for t in range(trainers)]
            union = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
            exe.run(main, feed=union)
        _save(shapes, out)


def _split(case: str, rank: int, endpoints: str, trainers: int) -> tuple[Any, Any, str, Any]:
    main, startup, kind = _build(case)
    shapes = {p.name: tuple(p.shape) for p in curves.params_of(main)}
    t = fluid.DistributeTranspiler()
    t.transpile(rank, main, endpoints, trainers, startup_program=startup)
    return t, startup, kind, shapes


def server(case: str, rank: int, endpoints: str, trainers: int) -> None:
    t, _, _, shapes = _split(case, 0, endpoints, trainers)
    endpoint = endpoints.split(",")[rank]
    program, startup = t.get_pserver_programs(endpoint)
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        for d in t.vars_overview.distributed_vars:
            shape = shapes.get(d.origin.name, ())
            if d.endpoint == endpoint and d.vtype != "Optimizer" and len(shape) > 1:
                begin = d.offset // int(np.prod(shape[1:]))
                rows = slice(begin, begin + d.slice.shape[0])
                curves.put(fluid, d.slice.name, curves.weight(d.origin.name, shape)[rows])
        exe.run(program)


def trainer(case: str, rank: int, endpoints: str, trainers: int, out: str) -> None:
    t, startup, kind, shapes = _split(case, rank, endpoints, trainers)
    program = t.get_trainer_program()
    remote = {
        op.input("W")[0]
        for op in program.global_block().ops
        if op.type == "distributed_lookup_table"
    }
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        frozen = [p.name for p in curves.params_of(program) if not p.trainable]
        _overwrite({name: shapes[name] for name in frozen})  # no server has them
        for step in range(STEPS):
            exe.run(program, feed=curves.batch(fluid, program, kind, step, rank))
        _save({n: s for n, s in shapes.items() if n not in remote}, out)


if __name__ == "__main__":
    case, role, rank, endpoints, trainers, out = sys.argv[1:7]
    if role == "local":
        local(case, int(trainers), out)
    elif role == "server":
        server(case, int(rank), endpoints, int(trainers))
    else:
        trainer(case, int(rank), endpoints, int(trainers), out)

"""How long a split takes, and whether it grows linearly: parameters, slices and servers.

    python benchmarks/bench_transpile.py [--quick]

`transpile` is the trainer's whole way; `server` makes one server's two programs; `all` is every
server's. The null row only copies the programs.

Fluid 1.8.5 on the machine where this was written, `transpile` alone for 100 servers: 250, 500 and
1,000 parameters of 64x64 took 4.1, 17.5 and 81 s; 12, 25 and 50 parameters of 100 slices each took
7.0, 31 and 104 s. It grows with the square.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

from bireme.ir import Block, Operator, OpRole, Parameter, Program, VarType
from bireme.transpiler import DistributeTranspiler


@dataclass(frozen=True, slots=True)
class Case:
    """`count` parameters of a shape, for so many servers."""

    label: str
    count: int
    shape: tuple[int, int]
    servers: int
    limit: float


CASES = (
    Case("64x64, whole", 2500, (64, 64), 100, 0),
    Case("64x64, whole", 5000, (64, 64), 100, 0),
    Case("64x64, whole", 10000, (64, 64), 100, 5),
    Case("100 slices each", 125, (1000, 820), 100, 0),
    Case("100 slices each", 250, (1000, 820), 100, 0),
    Case("100 slices each", 500, (1000, 820), 100, 10),
)


def model(case: Case) -> tuple[Program, Program]:
    """A program with one gradient and one momentum update per parameter; only its form matters."""
    main, startup = Program(), Program()
    block, start = main.global_block(), startup.global_block()
    rate = block.create_var(name="rate", shape=(1,), dtype=VarType.FP32, persistable=True)
    start.copy_var(rate)
    start.append(_fill("rate", (1,)))
    names = [f"w_{i:05d}" for i in range(case.count)]
    for name in names:
        for home in (block, start):
            _declare(home, name, case.shape)
        block.create_var(name=f"{name}@GRAD", shape=case.shape, dtype=VarType.FP32)
        start.append(_fill(name, case.shape))
        start.append(_fill(f"{name}_velocity_0", case.shape))
    for name in reversed(names):
        block.append(_backward(name))
    for name in names:
        block.append(_update(name))
    return main, startup


def _declare(block: Block, name: str, shape: tuple[int, int]) -> None:
    param = Parameter(block, shape, VarType.FP32, name=name)
    block.vars[name] = param
    block.create_var(name=f"{name}_velocity_0", shape=shape, dtype=VarType.FP32, persistable=True)


def _fill(name: str, shape: tuple[int, ...]) -> Operator:
    return Operator(
        "fill_constant", {}, {"Out": (name,)}, {"shape": shape, "dtype": 5, "value": 0.0}
    )


def _backward(name: str) -> Operator:
    roles = {"op_role": OpRole.Backward, "op_role_var": (name, f"{name}@GRAD")}
    return Operator("scale", {"X": (name,)}, {"Out": (f"{name}@GRAD",)}, roles)


def _update(name: str) -> Operator:
    state = (f"{name}_velocity_0",)
    inputs = {
        "Param": (name,),
        "Grad": (f"{name}@GRAD",),
        "Velocity": state,
        "LearningRate": ("rate",),
    }
    outputs = {"ParamOut": (name,), "VelocityOut": state}
    roles = {"op_role": OpRole.Optimize, "op_role_var": (name, f"{name}@GRAD")}
    return Operator("momentum", inputs, outputs, {"mu": 0.9, **roles})


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measure(case: Case) -> dict[str, float]:
    """The times of one case, in seconds."""
    main, startup = model(case)
    copied = seconds(lambda: (main.clone(), startup.clone()))
    endpoints = [f"10.0.0.{i}:6174" for i in range(case.servers)]
    transpiler = DistributeTranspiler()

    def transpile() -> None:
        transpiler.transpile(0, main, ",".join(endpoints), 2, startup_program=startup)
        transpiler.get_trainer_program()

    split = seconds(transpile)
    servers = [seconds(lambda e=e: transpiler.get_pserver_programs(e)) for e in endpoints]  # type: ignore[misc]
    return {"null": copied, "transpile": split, "server": max(servers), "all": sum(servers)}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="the smallest case of each kind only")
    quick = options.parse_args().quick
    heads = ("params", 8), ("null s", 9), ("transpile s", 13), ("server s", 10), ("all s", 8)
    print("".join(["case".ljust(18), *(h.rjust(w) for h, w in (*heads, ("limit s", 9)))]))
    for case in CASES:
        if quick and case.count not in (2500, 125):
            continue
        found = measure(case)
        limit = f"{case.limit:.0f}" if case.limit else ""
        print(
            f"{case.label:<18}{case.count:>8}{found['null']:>9.2f}{found['transpile']:>13.2f}"
            f"{found['server']:>10.3f}{found['all']:>8.2f}{limit:>9}"
        )


if __name__ == "__main__":
    main()

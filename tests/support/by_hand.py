"""A synchronous cluster by hand: the programs of a split run in one process, in turn, and this file
carries values between them. No links, no servers, no threads: what is tested is the split.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import bireme as fluid
from bireme.arrays.random import Clock
from bireme.ir import Operator, Program
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope
from bireme.transpiler import DistributeTranspiler, DistributeTranspilerConfig

Build = Callable[[], Any]
Feed = Mapping[str, np.ndarray]
SEED = 90


def built(build: Build) -> tuple[Program, Program]:
    """The programs of a model whose loss `build` minimises, with names from zero."""
    main, startup = Program(), Program()
    main.random_seed = startup.random_seed = SEED
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        build()
    return main, startup


def alone(build: Build, batches: list[Feed]) -> dict[str, np.ndarray]:
    """The parameters after training in one process."""
    main, startup = built(build)
    executor, scope = Executor(fluid.CPUPlace()), Scope()
    executor.run(startup, scope=scope)
    for batch in batches:
        executor.run(main, feed=dict(batch), scope=scope)
    return {p.name: np.array(scope.var(p.name).value) for p in main.all_parameters()}


class Server:
    """One server's programs and memory."""

    def __init__(self, transpiler: DistributeTranspiler, endpoint: str) -> None:
        self.program, startup = transpiler.get_pserver_programs(endpoint)
        self.scope = Scope()
        self.executor = Executor(fluid.CPUPlace())
        self.executor.run(startup, scope=self.scope)
        self.serve = self.program.global_block().ops[-1]
        order = [ref.idx for ref in self.serve.attrs["optimize_blocks"]]
        self.steps = [self.executor.prepare(self.program, i, self.scope) for i in order]

    def take(self, name: str, value: Any) -> None:
        expected = self.serve.input("X")
        name = name if name in expected else f"{name}.trainer_0"
        assert name in expected
        self.scope.var(name).put(value)

    def update(self) -> None:
        for step in self.steps:
            step()


class Trainer:
    """One trainer's programs and memory; `servers` by endpoint."""

    def __init__(self, main: Program, startup: Program, servers: dict[str, Server]) -> None:
        self.main, self.servers, self.scope = main, servers, Scope()
        self.executor = Executor(fluid.CPUPlace())
        self.executor.run(_only(startup, lambda op: not _talks(op)), scope=self.scope)
        self.receive(startup)
        self.work = _local(_only(main, lambda op: not _talks(op)))
        self.sends = [op for op in main.global_block().ops if op.type == "send"]

    def receive(self, program: Program) -> None:
        """What `recv` and `concat` do."""
        for op in program.global_block().ops:
            if op.type == "recv":
                for name, endpoint in zip(_received(op), op.attrs["epmap"], strict=True):
                    self.scope.var(name).put(self._ask(name, endpoint))
                if op.attrs["recv_varnames"]:
                    self._join(op.output("Out")[0], list(op.attrs["recv_varnames"]))
            elif op.type == "concat" and op.input("X")[0].endswith(".block0"):
                self._join(op.output("Out")[0], op.input("X"))

    def _ask(self, name: str, endpoint: str) -> np.ndarray:
        return np.array(self.servers[endpoint].scope.var(name).value)

    def _join(self, whole: str, parts: list[str]) -> None:
        self.scope.var(whole).put(np.concatenate([self.scope.var(n).value for n in parts]))

    def push(self, feed: Feed) -> None:
        """Forward, backward, and every `send`."""
        for op in self.main.global_block().ops:
            if op.type == "distributed_lookup_table":
                homes = zip(op.attrs["table_names"], op.attrs["endpoints"], strict=True)
                rows = [self._ask(name, endpoint) for name, endpoint in homes]
                self.scope.var(op.input("W")[0]).put(np.concatenate(rows))
        names = [name for op in self.sends for name in op.input("X")]
        values = self.executor.values(self.work, feed, names, self.scope, Clock())
        found = dict(zip(names, values, strict=True))
        for op in self.sends:
            self._send(op, found)

    def _send(self, op: Operator, found: Mapping[str, Any]) -> None:
        sections, values = list(op.attrs["sections"]), [found[n] for n in op.input("X")]
        names = op.input("X")
        if sections:
            whole, names = np.array(values[0]), list(op.attrs["send_varnames"])
            values = np.split(whole, np.cumsum(sections)[:-1])
        for name, value, endpoint in zip(names, values, op.attrs["epmap"], strict=True):
            self.servers[endpoint].take(name, getattr(value, "array", value))


class Cluster:
    """Servers and trainers of one split."""

    def __init__(
        self,
        build: Build,
        servers: int,
        trainers: int,
        config: DistributeTranspilerConfig | None = None,
        sync: bool = True,
    ) -> None:
        endpoints = [f"s{i}:1" for i in range(servers)]

        def split(i: int) -> tuple[DistributeTranspiler, Program, Program]:
            main, startup = built(build)
            made = DistributeTranspiler(config)
            made.transpile(i, main, ",".join(endpoints), trainers, sync, startup)
            return made, main, startup

        self.transpiler = split(0)[0]
        self.servers = {e: Server(self.transpiler, e) for e in endpoints}
        self.trainers = [Trainer(*split(i)[1:], self.servers) for i in range(trainers)]

    def step(self, batches: list[Feed]) -> None:
        """One batch for each trainer."""
        for trainer, batch in zip(self.trainers, batches, strict=True):
            trainer.push(batch)
        for server in self.servers.values():
            server.update()
        for trainer in self.trainers:
            trainer.receive(trainer.main)

    def parameters(self) -> dict[str, np.ndarray]:
        """The parameters as the servers have them; what no server owns, as trainer 0 has it."""
        found: dict[str, np.ndarray] = {}
        for placement in self.transpiler.plan.placements if self.transpiler.plan else ():
            parts = [self.servers[s.endpoint].scope.var(s.name).value for s in placement.shards]
            found[placement.param] = np.concatenate(parts)
        first = self.trainers[0]
        for param in first.main.all_parameters():
            if param.name not in found:
                found[param.name] = np.array(first.scope.var(param.name).value)
        return found


def _talks(op: Operator) -> bool:
    return op.type in ("send", "recv", "send_barrier", "fetch_barrier", "fake_init")


def _received(op: Operator) -> list[str]:
    return list(op.attrs["recv_varnames"]) or op.output("Out")


def _only(program: Program, wanted: Callable[[Operator], bool]) -> Program:
    """The program with some of its operators; slices are joined by hand."""
    made = program.clone()
    block = made.global_block()
    block.set_ops([op for op in block.ops if wanted(op) and not _joins(op)])
    return made


def _joins(op: Operator) -> bool:
    return op.type == "concat" and op.input("X")[0].endswith(".block0")


def _local(program: Program) -> Program:
    """Remote look-ups as plain ones: the whole table is put into the scope before."""
    block = program.global_block()
    ops: list[Operator] = []
    for op in block.ops:
        if op.type != "distributed_lookup_table":
            ops.append(op)
            continue
        padding = {"padding_idx": op.attrs["padding_idx"], "op_role": 0}
        for ids, out in zip(op.input("Ids"), op.output("Outputs"), strict=True):
            inputs = {"W": (op.input("W")[0],), "Ids": (ids,)}
            kind = str(op.attrs["lookup_table_version"])
            ops.append(Operator(kind, inputs, {"Out": (out,)}, padding))
    block.set_ops(ops)
    return program

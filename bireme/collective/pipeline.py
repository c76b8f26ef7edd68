"""The action of a pipeline: stages on ranks of a job, or on threads of one process.

Every stage runs its forward operators for one micro-batch after the other, then its backward
operators, and uses the means of its gradients in one update. Values travel as messages of a
`Group`, so that waiting has a deadline, and a stage that has died is named.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from bireme.arrays.namespaces import Array, namespace_of, to_device, to_host
from bireme.arrays.random import Clock
from bireme.arrays.values import LoDTensor
from bireme.errors import FeedError, PeerError, UnsupportedError
from bireme.ir import Operator, Program
from bireme.monitoring.counters import tally
from bireme.passes.pipeline_stages import Names, Part, Pipeline
from bireme.runtime.context import Env
from bireme.runtime.effects import Effect, EffectContext
from bireme.runtime.replicas import joined, shares

from .communicators import of_context
from .divided_updates import keep_own
from .group import Group
from .local import local_groups

__all__ = ["PipelineStages"]

Values = dict[str, Any]
_DIMS = 16  # most dimensions of a value in a message


class PipelineStages(Effect):
    """A pipeline, bound to the scope of its process."""

    def __init__(self, op: Operator, context: EffectContext) -> None:
        self._op = op
        self._context = context
        self._plan: Pipeline = context.program._pipeline

    @classmethod
    def bind(cls, ops: list[Operator], context: EffectContext) -> Self:
        (op,) = ops
        return cls(op, context)

    def run(self, env: Env) -> None:
        feed = {name: env.get(name) for name in self._op.input("X")}
        batches = _micro_batches(feed, self._plan.micro_batches)
        shown = tuple(self._op.output("Out"))
        if self._context.program._trainers_endpoints:
            found = self._as_rank(env, batches, shown)
        else:
            found = self._on_threads(env, batches, shown)
        for name in shown:
            env.set(name, found[name])

    def _stage(self, number: int, env: Env, group: Group) -> "_Run":
        return _Run(self._plan, number, group, self._context, env.context.clock.step)

    def _on_threads(self, env: Env, batches: Sequence[Values], shown: Names) -> Values:
        """All stages in this process; they share its scope, and one of them updates it."""
        count = len(self._plan.stages)
        runs = [self._stage(i, env, g) for i, g in enumerate(local_groups(count))]
        with ThreadPoolExecutor(count, thread_name_prefix="stage") as pool:
            works = [pool.submit(run.work_alone, batches, shown) for run in runs]
            errors = [e for e in (work.exception() for work in works) if e is not None]
        if errors:
            raise next((e for e in errors if not isinstance(e, PeerError)), errors[0])
        gradients = {name: value for run in runs for name, value in run.gradients.items()}
        runs[0].execute(self._plan.whole_update, gradients, ())
        return {name: value for work in works for name, value in work.result().items()}

    def _as_rank(self, env: Env, batches: Sequence[Values], shown: Names) -> Values:
        """This rank's stage; others keep what only they use, and hand it to whoever reads it."""
        held = of_context(self._context)
        group = held.ring(0).group
        copies = {n for ns in self._plan.stages[group.rank].parameters_in.values() for n in ns}
        keep_own(held, self._context.scope, self._plan.kept, copies)
        run = self._stage(group.rank, env, group)
        try:
            if env.context.clock.step == 0:
                run.exchange_parameters()
            mine = run.work(batches, shown)
            run.update()
            found = run.everybodys(mine, shown)
            group.barrier()  # whoever has passed it finds the state of this step
            return found
        except PeerError as error:
            if error.step is None:
                error.step = env.context.clock.step
            tally.note(error)
            raise


@dataclass(slots=True)
class _Run:
    """One step of one stage."""

    plan: Pipeline
    number: int
    group: Group
    context: EffectContext
    step: int
    gradients: Values = field(default_factory=dict)

    def execute(
        self, program: Program, feed: Mapping[str, Any], names: Names, batch: int = 0
    ) -> Values:
        if not program.global_block().ops:
            return {name: feed[name] for name in names}
        clock = Clock(batch, self.step)
        known = {n: v for n, v in feed.items() if n in program.global_block().vars}
        found = self.context.executor.values(program, known, names, self.context.scope, clock)
        return dict(zip(names, found, strict=True))

    def work_alone(self, batches: Sequence[Values], shown: Names) -> Values:
        """`work`, after which the stages of the other threads wait for this one no more."""
        try:
            return self.work(batches, shown)
        finally:
            self.group.close()

    def work(self, batches: Sequence[Values], shown: Names) -> Values:
        """Run all micro-batches; returns what this stage computes of `shown`."""
        stage = self.plan.stages[self.number]
        own = tuple(n for n in shown if self.plan.owners.get(n) == self.number)
        kept, found = [], []
        for number, batch in enumerate(batches):
            values = self._part(stage.forward, batch, number, own)
            kept.append(values)
            found.append({name: values[name] for name in own})
        scale = 1.0 / len(batches)
        for number, values in enumerate(kept):
            after = self._part(stage.backward, values, number, stage.gradients)
            values.clear()
            for name in stage.gradients:
                value = joined([after[name]], scale)
                known = self.gradients.get(name)
                self.gradients[name] = value if known is None else known + value
        return {name: self._whole(name, [each[name] for each in found]) for name in own}

    def _part(self, part: Part, given: Values, number: int, wanted: Names) -> Values:
        """Receive, compute, send; returns everything that is known afterwards."""
        values = dict(given)
        for source, names in sorted(part.receives.items()):
            values.update((name, self._receive(source)) for name in names)
        feed = {name: values[name] for name in part.reads}
        made = tuple(dict.fromkeys([*part.makes, *wanted]))
        values.update(self.execute(part.program, feed, made, number))
        for other, names in sorted(part.sends.items()):
            for name in names:
                self._send(other, values[name], name)
        return values

    def _whole(self, name: str, values: Sequence[Any]) -> Any:
        """The value of the batch: rows one after the other, or the mean."""
        var = self.context.block.var(name)
        if var.shape and var.shape[0] == -1:
            arrays = [_plain(value, name) for value in values]
            return namespace_of(arrays[0]).concatenate(arrays)
        return joined(values, 1.0 / len(values))

    # -- what ranks do beside it -----------------------------------------------------------
    def exchange_parameters(self) -> None:
        """Take parameters that several stages read from the stage that updates them."""
        stage, scope = self.plan.stages[self.number], self.context.scope
        for other in range(self.group.size):
            for name in stage.parameters_out.get(other, ()):
                self._send(other, scope.var(name).value, name)
            for name in stage.parameters_in.get(other, ()):
                scope.var(name).value = self._receive(other)

    def update(self) -> None:
        """Run this stage's updates, with gradients of other stages where they use them."""
        stage = self.plan.stages[self.number]
        for other in range(self.group.size):
            for name in stage.gives.get(other, ()):
                self._send(other, self.gradients[name], name)
        for other, names in sorted(stage.needs.items()):
            self.gradients.update((name, self._receive(other)) for name in names)
        self.execute(stage.update, self.gradients, ())
        self.exchange_parameters()

    def everybodys(self, mine: Values, shown: Names) -> Values:
        """The shown values of all stages."""
        found = dict(mine)
        for name in shown:
            owner = self.plan.owners[name]
            for other in range(self.group.size) if owner == self.number else ():
                if other != self.number:
                    self._send(other, mine[name], name)
            if owner != self.number:
                found[name] = self._receive(owner)
        return found

    # -- messages --------------------------------------------------------------------------
    def _send(self, to: int, value: Any, name: str) -> None:
        array = np.ascontiguousarray(to_host(_plain(value, name)))
        head = np.zeros(_DIMS + 2, np.int64)
        head[0], head[1] = array.ndim, ord(array.dtype.char)
        head[2 : 2 + array.ndim] = array.shape
        self.group.send(head, to)
        self.group.send(array.reshape(-1), to)

    def _receive(self, source: int) -> Array:
        head = np.empty(_DIMS + 2, np.int64)
        self.group.recv(head, source)
        shape = head[2 : 2 + head[0]].tolist()
        found = np.empty(int(np.prod(shape)), chr(head[1]))
        self.group.recv(found, source)
        return to_device(found.reshape(shape), self.context.place)


def _plain(value: Any, name: str) -> Array:
    if isinstance(value, LoDTensor):
        if value.offsets:
            raise UnsupportedError(
                f"'{name}' passes between stages with sequences of its own (LoD)",
                hint="cut the program where values have no LoD",
            )
        return value.array
    return value


def _micro_batches(feed: Values, count: int) -> list[Values]:
    rows = {len(np.asarray(v)) for v in feed.values() if np.ndim(v)}
    uneven = sorted(n for n in rows if n % count)
    if uneven:
        raise FeedError(
            f"a batch of {uneven[0]} rows has no {count} equal micro-batches",
            hint="feed batches of a multiple, or set micro_batches of PipelineOptimizer",
        )
    return [dict(part) for part in shares(feed, count)] if feed else [{} for _ in range(count)]

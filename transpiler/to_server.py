"""A server's program: one block per owned slice that merges its gradients and updates it, and
`listen_and_serv`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

from bireme.errors import ConfigError, as_builtin
from bireme.ir import Block, BlockRef, Operator, Program, Variable
from bireme.ir.names import slice_name

from .analysis import Survey, Update, is_optimizer
from .config import ServerRuntimeConfig
from .dc_asgd import compensate, declare_snapshots, kept
from .distributed_tables import serve_tables
from .lr_schedule import copy_schedule, counting
from .op_builder import declare, make
from .plan import Plan, Shard
from .to_trainer import mark


def to_server(
    survey: Survey, plan: Plan, endpoint: str, threads: ServerRuntimeConfig | None = None
) -> Program:
    """The program of the server at `endpoint`.

    Raises:
        ConfigError: the plan has no such endpoint.
        AssertionError: delay compensation is asked for where servers wait for all trainers.
    """
    check_endpoint(plan, endpoint)
    if plan.modes.dc_asgd and plan.modes.sync:
        raise as_builtin(AssertionError)(
            "enable_dc_asgd compensates delays, but with sync_mode=True there are none",
            where="DistributeTranspiler.get_pserver_program",
            hint="transpile(sync_mode=False), or leave enable_dc_asgd off",
        )
    return _Server(survey, plan, endpoint, threads or ServerRuntimeConfig.from_flags()).build()


def check_endpoint(plan: Plan, endpoint: str) -> None:
    """Check that the plan has this endpoint.

    Raises:
        ConfigError: with the endpoints there are.
    """
    if endpoint not in plan.cluster.endpoints:
        raise ConfigError(
            f"{endpoint!r} is not one of the servers",
            where="DistributeTranspiler.get_pserver_program",
            hint=f"the servers are {', '.join(plan.cluster.endpoints)}",
        )


def shards_in_order(survey: Survey, plan: Plan, endpoint: str) -> list[Shard]:
    """The slices of a server in update order."""
    return sorted(plan.owned(endpoint), key=lambda s: survey.by_param[s.param].position)


def state_names(survey: Survey, shards: Iterable[Shard]) -> dict[tuple[str, str], str]:
    """The name of each optimizer variable on a server, by slice and original name.

    Usually the original's name. A server that owns several slices of one parameter needs a variable
    for each: the later ones are named like their slices.
    """
    names: dict[tuple[str, str], str] = {}
    seen: set[str] = set()
    for shard in shards:
        for name in survey.by_param[shard.param].own:
            again = shard.param in seen
            names[shard.name, name] = (
                slice_name(name, shard.slice.index, shard.parts) if again else name
            )
        seen.add(shard.param)
    return names


@dataclass(slots=True)
class Service:
    """What `listen_and_serv` needs besides the plan."""

    inputs: list[str] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    grads: list[str] = field(default_factory=list)
    sparse: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


def serve(plan: Plan, endpoint: str, threads: ServerRuntimeConfig, service: Service) -> Operator:
    """The operator that a server runs until all trainers are done."""
    attrs = {
        "optimize_blocks": [BlockRef(i) for i in service.blocks],
        "endpoint": endpoint,
        "Fanin": plan.cluster.trainers,
        "distributed_mode": int(plan.modes.server),
        "grad_to_block_id": service.grads,
        "sparse_grad_to_param": service.sparse,
        "rpc_get_thread_num": threads.get,
        "rpc_send_thread_num": threads.send,
        "rpc_prefetch_thread_num": threads.prefetch,
        **service.extra,
    }
    return make("listen_and_serv", {"X": service.inputs}, {}, attrs)


class _Server:
    """Builds one server program."""

    def __init__(
        self, survey: Survey, plan: Plan, endpoint: str, threads: ServerRuntimeConfig
    ) -> None:
        self.survey, self.plan, self.endpoint, self.threads = survey, plan, endpoint, threads
        self.source = survey.program.global_block()
        self.program = Program()
        self.home = self.program.global_block()
        self.service = Service()
        self.shards = shards_in_order(survey, plan, endpoint)
        self.names = state_names(survey, self.shards)
        self.temporaries = (f"tmp_dc_output_{i}" for i in count())

    def build(self) -> Program:
        plan, program, service = self.plan, self.program, self.service
        program.random_seed = self.survey.program.random_seed
        mark(program, plan)
        program._ps_endpoint = self.endpoint
        for shard in plan.owned(self.endpoint):
            self._declare(shard)
        index = plan.cluster.endpoints.index(self.endpoint)
        service.extra = {
            "lr_decay_block_id": self._schedule(),
            "pserver_id": index,
            "dc_asgd": plan.modes.dc_asgd,
            "bireme.slices": list(self._slices()),
        }
        parent = program.num_blocks - 1
        for shard in self.shards:
            self._update(shard, parent)
        self._serve_tables(index, parent)
        if not service.blocks:
            service.blocks.append(program.add_block(parent).idx)
        self.home.append(serve(plan, self.endpoint, self.threads, service))
        return program

    def _serve_tables(self, index: int, parent: int) -> None:
        service, tables = self.service, self.plan.tables
        found = serve_tables(self.program, self.survey, self.plan, index, parent)
        service.blocks += found.optimize
        service.grads += found.grads
        if tables:
            service.extra |= {
                "prefetch_var_name_to_block_id": found.prefetch,
                "checkpint_block_id": found.checkpoint,
                "bireme.tables": [table.param for table in tables],
                "bireme.table_state": found.state,
                "bireme.servers": len(self.plan.cluster.endpoints),
            }

    def _slices(self) -> Iterator[str]:
        """`slice:variable:first row:rows of the variable`, for saving and loading; -1 rows for a
        copy of the whole, of which a server with several slices has several.
        """
        for shard in self.shards:
            update = self.survey.by_param[shard.param]
            for name in update.state:
                if self.names[shard.name, name] != name and not update.cut(self.source.var(name)):
                    yield f"{self.names[shard.name, name]}:{name}:0:-1"
            row = prod(update.param.shape[1:])
            place = f"{shard.slice.offset // row}:{update.param.shape[0]}"
            pairs = {shard.name: shard.param}
            for name in update.state:
                if update.cut(self.source.var(name)):
                    pairs[self.names[shard.name, name]] = name
            pairs |= kept(self.plan, shard)
            yield from (f"{slice_}:{name}:{place}" for slice_, name in pairs.items())

    def _declare(self, shard: Shard) -> None:
        """The slice, its gradient, and the gradients named for each trainer."""
        plan, home = self.plan, self.home
        update = self.survey.by_param[shard.param]
        declare(home, update.param, shard.name, shape=shard.shape, persistable=True)
        declare(home, update.grad, shard.merged, shape=shard.shape, persistable=True)
        if plan.merges:
            sent = plan.trainers_of(shard.merged)
            for name in sent:
                declare(home, update.grad, name, shape=shard.shape)
            self.service.inputs += sent
        else:
            self.service.inputs.append(shard.merged)
        if plan.modes.dc_asgd:
            declare_snapshots(home, plan, shard)

    def _schedule(self) -> int:
        ops = self.survey.schedule
        if not ops:
            return -1
        block = self.program.add_block(0)
        if not self.plan.modes.sync:
            ops = tuple(counting(op, self.plan.cluster.trainers) for op in ops)
        copy_schedule(self.survey.program, ops, block)
        self.service.blocks.append(block.idx)
        return block.idx

    def _update(self, shard: Shard, parent: int) -> None:
        plan, update = self.plan, self.survey.by_param[shard.param]
        block = self.program.add_block(parent)
        self.service.blocks.append(block.idx)
        self.service.grads.append(f"{shard.merged}:{block.idx}")
        if update.optimizer.input("Grad") == [update.grad.name] and shard.sparse:
            self.service.sparse.append(f"{shard.merged}:{shard.name}")
        if plan.merges:
            block.append(
                make("sum", {"X": plan.trainers_of(shard.merged)}, {"Out": [shard.merged]})
            )
            mean = {"scale": 1.0 / plan.cluster.trainers}
            block.append(make("scale", {"X": [shard.merged]}, {"Out": [shard.merged]}, mean))
        for op in update.ops:
            self._append(block, op, shard, update)

    def _append(self, block: Block, op: Operator, shard: Shard, update: Update) -> None:
        """Append an operator of an update, with its variables sliced."""
        plan = self.plan
        names = {update.param.name: shard.name, update.grad.name: shard.merged}
        for name in (*op.input_arg_names, *op.output_arg_names):
            if name not in names:
                names[name] = self._carry(name, shard, update)
        cut = op.replaced(inputs=_through(op.inputs, names), outputs=_through(op.outputs, names))
        roles = tuple(plan.on_trainer(shard) if self._renamed(n, shard) else n for n in op.role_var)
        cut = cut.with_attrs(op_role_var=roles)
        if plan.modes.dc_asgd and is_optimizer(op):
            grad = compensate(block, plan, shard, cut.input("Grad")[0], self.temporaries)
            cut = cut.replaced(inputs={**cut.inputs, "Grad": (grad,)})
        block.append(cut)

    def _renamed(self, name: str, shard: Shard) -> bool:
        """Whether the trainer's program gives this gradient a trainer suffix."""
        return name == shard.grad and shard.parts == 1

    def _carry(self, name: str, shard: Shard, update: Update) -> str:
        """Declare a variable of an update; those with the parameter's shape get the slice's."""
        var: Variable = self.source.var(name)
        own = name in update.own
        new = self.names[shard.name, name] if own else name
        if not self.home.has_var(new):
            shape = shard.shape if update.cut(var) else None
            declare(self.home, var, new, shape=shape, persistable=True)
        return new


def _through(slots: Mapping[str, tuple[str, ...]], names: dict[str, str]) -> dict[str, list[str]]:
    return {slot: [names[n] for n in args] for slot, args in slots.items()}

"""Programs: a list of blocks, and the default programs that layers append to."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import guards
from .block import Block
from .dtypes import OpRole
from .names import is_grad
from .operator import Operator
from .printing import print_program
from .variable import Parameter, Variable

if TYPE_CHECKING:
    from .proto import ProgramDesc


class Program:
    """A program. Passes return edited clones; only Fluid's own in-place functions modify one."""

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block(self, 0)]
        self.version = 0
        self._current = 0
        self._seed = 0
        self._op_role = OpRole.Forward
        self._op_role_var: tuple[str, ...] = ()
        self._is_distributed: bool = False
        self._is_chief: bool = False
        self._endpoints: list[str] = []
        self._trainers = 0  # of the job; 0: the program was not told
        self._ps_endpoint: str | None = None
        self._distributed_lookup_table: str | None = None
        self._trainers_endpoints: list[str] = []
        self._trainer_id = 0
        self._runs_before = 0  # of a process whose work this one continues
        self._runs = 0  # with those before
        self._nccl_comm_num = 1
        self._use_hierarchical_allreduce = False
        self._hierarchical_allreduce_inter_nranks = 0
        self._parameters_on_pservers: Any = None
        self._origin_program: Program | None = None
        self._pipeline_opt: dict[str, Any] | None = None  # what PipelineOptimizer was told
        self._pipeline: Any = None  # the stages, in a program that runs them

    def touch(self) -> None:
        """Mark the program as changed, which invalidates plans of older versions."""
        self.version += 1

    def next_draw(self) -> int:
        """A number for the next operator that draws random numbers; copies keep theirs."""
        return 1 + max(block.op_index.last_draw for block in self.blocks)

    # -- blocks ----------------------------------------------------------------------------
    def global_block(self) -> Block:
        return self.blocks[0]

    def block(self, index: int) -> Block:
        return self.blocks[index]

    def current_block(self) -> Block:
        return self.blocks[self._current]

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def add_block(self, parent_idx: int) -> Block:
        """Add an empty block without making it current."""
        block = Block(self, len(self.blocks), parent_idx)
        self.blocks.append(block)
        self.touch()
        return block

    def _create_block(self, parent_idx: int | None = None) -> Block:
        block = self.add_block(self._current if parent_idx is None else parent_idx)
        self._current = block.idx
        return block

    def _rollback(self) -> None:
        self._current = self.current_block().parent_idx

    # -- variables and parameters ----------------------------------------------------------
    def list_vars(self) -> Iterator[Variable]:
        for block in self.blocks:
            yield from block.vars.values()

    def all_parameters(self) -> list[Parameter]:
        return [p for block in self.blocks for p in block.all_parameters()]

    @property
    def random_seed(self) -> int:
        """The seed of random operators without a seed of their own; 0 draws a new seed per
        process.
        """
        return self._seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        self._seed = int(seed)
        self.touch()

    def global_seed(self, seed: int = 0) -> None:
        """Set the seed of the default programs."""
        default_main_program().random_seed = seed
        default_startup_program().random_seed = seed

    # -- roles of new operators ------------------------------------------------------------
    def role_attrs(self) -> dict[str, Any]:
        """Attributes that new operators take from the context."""
        return {
            "op_role": self._op_role,
            "op_role_var": self._op_role_var,
            "op_namescope": guards.current_name_scope(),
            "op_device": guards.current_device(),
        }

    @contextmanager
    def _role(self, role: int, role_var: Iterable[str] = ()) -> Iterator[None]:
        old = self._op_role, self._op_role_var
        self._op_role, self._op_role_var = role, tuple(role_var)
        try:
            yield
        finally:
            self._op_role, self._op_role_var = old

    def _optimized_guard(self, param_and_grads: Iterable[Any]) -> Any:
        """Operators built in this context update these variables (role Optimize)."""
        names = [v.name if isinstance(v, Variable) else v for v in param_and_grads]
        return self._role(OpRole.Optimize, names)

    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Any:
        """Operators built in this context compute a learning rate (role LRSched)."""
        return self._role(OpRole.LRSched | (OpRole.Optimize if is_with_opt else 0))

    def _backward_role_guard(self) -> Any:
        return self._role(OpRole.Backward)

    # -- copies ----------------------------------------------------------------------------
    def clone(self, for_test: bool = False) -> "Program":
        """A copy; for testing, without backward and updates and with `is_test` set."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.blocks = []
        for block in self.blocks:
            twin = Block(copy, block.idx, block.parent_idx)
            twin.forward_block_idx = block.forward_block_idx
            copy.blocks.append(twin)
            twin.set_ops(block.ops)
            copies = {id(old): new for old, new in zip(block.ops, twin.ops, strict=True)}
            for var in block.vars.values():
                twin.copy_var(var).op = copies.get(id(var.op), var.op)
        copy.version = 0
        if for_test:
            _for_test(copy)
        return copy

    def take(self, other: "Program") -> None:
        """Replace the content of this program by that of `other`; the program, its blocks and all
        remaining variables stay the same objects.

        `other` must not be used afterwards.
        """
        mine, version = self.blocks, self.version
        self.__dict__.update({k: v for k, v in other.__dict__.items() if k != "blocks"})
        self.version = version
        self.blocks = [
            _merge(self, mine[b.idx] if b.idx < len(mine) else None, b) for b in other.blocks
        ]
        self.touch()

    # -- forms -----------------------------------------------------------------------------
    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        return str(self)

    def __str__(self) -> str:
        return print_program(self)

    @property
    def desc(self) -> "ProgramDesc":
        """The serialised form: `program.desc.serialize_to_string()`."""
        from .proto import ProgramDesc

        return ProgramDesc(self)

    @staticmethod
    def parse_from_string(binary_str: bytes) -> "Program":
        """The program in a serialised ProgramDesc.

        Raises:
            FormatError: the bytes are not a ProgramDesc.
        """
        from .proto import from_bytes

        return from_bytes(binary_str)


def _merge(program: Program, old: Block | None, new: Block) -> Block:
    """`old` with the content of `new`; variables in both stay the old objects."""
    block = old or Block(program, new.idx)
    block.idx, block.parent_idx = new.idx, new.parent_idx
    block.forward_block_idx = new.forward_block_idx
    block.set_ops(new.ops)
    merged: dict[str, Variable] = {}
    for name, var in new.vars.items():
        mine = block.vars.get(name)
        if mine is not None and type(mine) is type(var):
            mine.assume(var)
            merged[name] = mine
        else:
            var.block = block
            merged[name] = var
    block.vars = merged
    return block


def _for_test(program: Program) -> None:
    """Leave out schedules and updates and, where a loss is minimized, its gradients and what no
    operator uses then. `fluid.gradients` of a program that minimizes nothing stay.
    """
    ops = [op for block in program.blocks for op in block.ops]
    minimizes = any(op.role & OpRole.Backward and op.role & OpRole.Loss for op in ops)
    skip = OpRole.Optimize | OpRole.LRSched | (OpRole.Backward if minimizes else 0)
    for block in program.blocks:
        block.set_ops([_tested(op) for op in block.ops if not op.role & skip])
    used = {n for b in program.blocks for op in b.ops for n in _arguments(op)}
    for block in program.blocks:
        own = minimizes and block is program.global_block()
        idle = [v for v in block.vars.values() if v.name not in used and not v.is_data]
        for name in [v.name for v in idle if own or is_grad(v.name)]:
            block._remove_var(name)


def _tested(op: Operator) -> Operator:
    return op.with_attrs(is_test=True) if "is_test" in op.attrs else op


def _arguments(op: Operator) -> list[str]:
    return op.input_arg_names + op.output_arg_names


# -- the programs that layers append to --------------------------------------------------------
_main: Program | None = None
_startup: Program | None = None


def default_main_program() -> Program:
    """The program that layers append to outside of any `program_guard`."""
    global _main
    if _main is None:
        _main = Program()
    return _main


def default_startup_program() -> Program:
    """The program that initialises the variables of `default_main_program`."""
    global _startup
    if _startup is None:
        _startup = Program()
    return _startup


def switch_main_program(program: Program) -> Program:
    global _main
    old, _main = default_main_program(), program
    return old


def switch_startup_program(program: Program) -> Program:
    global _startup
    old, _startup = default_startup_program(), program
    return old


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Layers in this context append to these programs."""
    old_main = switch_main_program(main_program)
    old_startup = switch_startup_program(startup_program) if startup_program is not None else None
    try:
        yield
    finally:
        switch_main_program(old_main)
        if old_startup is not None:
            switch_startup_program(old_startup)

"""Programs: a list of blocks, and the small state that says which role the next operator plays."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from . import guards
from .block import Block
from .dtypes import OpRole
from .operator import Operator
from .variable import Parameter, Variable


class Program:
    """What is to be computed. Passes return edited clones; only Fluid's in-place doors edit one."""

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
        self._ps_endpoint: str | None = None
        self._distributed_lookup_table: str | None = None
        self._trainers_endpoints: list[str] = []
        self._trainer_id = 0
        self._nccl_comm_num = 1
        self._use_hierarchical_allreduce = False
        self._hierarchical_allreduce_inter_nranks = 0
        self._parameters_on_pservers: Any = None
        self._wait_ports: tuple[str, ...] = ()
        self._origin_program: Program | None = None

    def touch(self) -> None:
        """Note that something changed; plans compiled from an older version are stale."""
        self.version += 1

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
        """A new empty block; the current block stays what it is."""
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
        """The seed of every random operator that gives none of its own; 0 means a fresh one."""
        return self._seed

    @random_seed.setter
    def random_seed(self, seed: int) -> None:
        self._seed = int(seed)
        self.touch()

    def global_seed(self, seed: int = 0) -> None:
        """Set the seed of the default programs."""
        guards.default_main_program().random_seed = seed
        guards.default_startup_program().random_seed = seed

    # -- roles of new operators ------------------------------------------------------------
    def role_attrs(self) -> dict[str, Any]:
        """The attributes every new operator gets from where it is built."""
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
        """Operators built inside update these variables (role Optimize)."""
        names = [v.name if isinstance(v, Variable) else v for v in param_and_grads]
        return self._role(OpRole.Optimize, names)

    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Any:
        """Operators built inside compute a learning rate (role LRSched)."""
        return self._role(OpRole.LRSched | (OpRole.Optimize if is_with_opt else 0))

    def _backward_role_guard(self) -> Any:
        return self._role(OpRole.Backward)

    # -- copies ----------------------------------------------------------------------------
    def clone(self, for_test: bool = False) -> "Program":
        """An independent copy; for a test, without backward and updates and with `is_test` set."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy.blocks = []
        for block in self.blocks:
            twin = Block(copy, block.idx, block.parent_idx)
            twin.forward_block_idx = block.forward_block_idx
            copy.blocks.append(twin)
            for var in block.vars.values():
                twin.copy_var(var).op = var.op
            twin.ops = list(block.ops)
        copy.version = 0
        if for_test:
            _for_test(copy)
        return copy

    def take(self, other: "Program") -> None:
        """Become `other` in place; the program, its blocks and every surviving variable keep
        identity.

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
        from .text import print_program

        return print_program(self)

    @staticmethod
    def parse_from_string(binary_str: bytes) -> "Program":
        """The program in a serialised ProgramDesc.

        Raises:
            FormatError: the bytes are not a ProgramDesc.
        """
        from .proto import from_bytes

        return from_bytes(binary_str)


def _merge(program: Program, old: Block | None, new: Block) -> Block:
    """`old` with the content of `new`; variables that both have keep the old identity."""
    block = old or Block(program, new.idx)
    block.idx, block.parent_idx = new.idx, new.parent_idx
    block.forward_block_idx = new.forward_block_idx
    block.ops = new.ops
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
    skip = OpRole.Backward | OpRole.Optimize | OpRole.LRSched
    for block in program.blocks:
        block.set_ops([_tested(op) for op in block.ops if not op.role & skip])
    used = {n for b in program.blocks for op in b.ops for n in _arguments(op)}
    for block in program.blocks:
        for name in [n for n in block.vars if "@GRAD" in n and n not in used]:
            block._remove_var(name)


def _tested(op: Operator) -> Operator:
    return op.with_attrs(is_test=True) if "is_test" in op.attrs else op


def _arguments(op: Operator) -> list[str]:
    return op.input_arg_names + op.output_arg_names

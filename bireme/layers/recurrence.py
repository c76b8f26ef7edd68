"""Recurrences whose step is a block: StaticRNN for equal lengths, DynamicRNN for sequences."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bireme.errors import InvalidArgument
from bireme.ir import Block, Variable, VarType, unique_name

from . import blocks
from .arrays import array_read, array_to_lod_tensor, array_write, shrink_memory
from .elementwise import less_than
from .helper import LayerHelper
from .loops import While
from .tensor import fill_constant

__all__ = ["DynamicRNN", "StaticRNN"]


def _single(outputs: list[Variable], what: str) -> Any:
    if not outputs:
        raise InvalidArgument(f"{what} has no output", hint="call output() inside its block")
    return outputs[0] if len(outputs) == 1 else outputs


def _check_outside(parent: Block, x: Variable) -> None:
    if not parent._has_var_recursive(x.name):
        raise InvalidArgument(
            f"{x.name!r} is made inside the block, but the whole of it is an input of every step",
            hint="compute it before the `with` statement",
        )


class _Memory:
    """A state: where it starts, its name inside a step, and what the step leaves in it."""

    def __init__(self, init: Variable, before: Variable) -> None:
        self.init = init
        self.before = before
        self.after: Variable | None = None


class StaticRNN:
    """A step applied along dimension 0 of its inputs.

    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(words)
        state = rnn.memory(shape=[-1, 32], batch_ref=word)
        new = layers.fc([word, state], 32, act="tanh")
        rnn.update_memory(state, new)
        rnn.step_output(new)
    states = rnn()
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("static_rnn", name=name)
        self.inputs: list[Variable] = []
        self.outputs: list[Variable] = []
        self.seq_len: int | None = None
        self._memories: dict[str, _Memory] = {}
        self._block: Block | None = None
        self._done = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block of one step."""
        with blocks.new_block(self.helper.main_program) as block:
            self._block = block
            yield
            self._store_memories()
        self._complete(block)
        self._done = True

    def _parent(self, what: str) -> Block:
        if self._block is None or self._done:
            raise InvalidArgument(f"StaticRNN.{what}() is called inside `with rnn.step()`")
        return blocks.parent_of(self._block)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        batch_ref: Variable | None = None,
        init_value: float = 0.0,
        init_batch_dim_idx: int = 0,
        ref_batch_dim_idx: int = 1,
    ) -> Variable:
        """A state that starts as `init`, or filled with `init_value` in `shape`."""
        parent = self._parent("memory")
        if init is None:
            if shape is None or batch_ref is None:
                raise InvalidArgument("memory() needs init, or both shape and batch_ref")
            name = unique_name.generate(f"{self.helper.name}@memory_boot")
            init = parent.create_var(name=name, shape=shape, dtype=batch_ref.dtype)
            parent.append_op(
                type="fill_constant_batch_size_like",
                inputs={"Input": [batch_ref]},
                outputs={"Out": [init]},
                attrs={
                    "value": float(init_value),
                    "shape": init.shape,
                    "dtype": int(init.dtype or VarType.FP32),
                    "input_dim_idx": ref_batch_dim_idx,
                    "output_dim_idx": init_batch_dim_idx,
                },
            )
        name = unique_name.generate(f"{self.helper.name}@mem")
        before = self.helper.create_variable(name=name, dtype=init.dtype, shape=init.shape)
        self._memories[before.name] = _Memory(init, before)
        return before

    def step_input(self, x: Variable) -> Variable:
        """Step t of `x`, whose dimension 0 is time."""
        self._parent("step_input")
        if self.seq_len is None:
            self.seq_len = x.shape[0]
        elif x.shape[0] != -1 and self.seq_len != x.shape[0]:
            raise InvalidArgument(
                f"{x.name!r} has {x.shape[0]} steps, the inputs before it {self.seq_len}"
            )
        part = self.helper.create_variable(
            name=x.name, dtype=x.dtype, shape=x.shape[1:], type=x.type
        )
        self.inputs.append(part)
        return part

    def step_output(self, o: Variable) -> None:
        """Collect `o` over all steps."""
        parent = self._parent("step_output")
        kept = self._kept(o)
        self.outputs.append(
            parent.create_var(
                name=kept.name,
                shape=[-1 if self.seq_len is None else self.seq_len, *kept.shape],
                dtype=kept.dtype,
            )
        )

    def output(self, *outputs: Variable) -> None:
        """Collect several variables over all steps."""
        for out in outputs:
            self.step_output(out)

    def update_memory(self, mem: Variable, var: Variable) -> None:
        """Let the state `mem` be `var` in the next step."""
        if mem.name not in self._memories:
            raise InvalidArgument(f"{mem.name!r} is not a memory of this StaticRNN")
        self._memories[mem.name].after = var

    def __call__(self) -> Any:
        """The collected outputs: one variable, or a list of them."""
        if not self._done:
            raise InvalidArgument("call a StaticRNN after its step block")
        return _single(self.outputs, "StaticRNN")

    def _kept(self, var: Variable) -> Variable:
        out = self.helper.create_variable_for_type_inference(var.dtype)
        self.helper.append_op(
            type="rnn_memory_helper",
            inputs={"X": [var]},
            outputs={"Out": [out]},
            attrs={"dtype": int(var.dtype or VarType.FP32)},
        )
        return out

    def _store_memories(self) -> None:
        for memory in self._memories.values():
            if memory.after is None:
                raise InvalidArgument(f"memory {memory.before.name!r} is never updated")
            memory.after = self._kept(memory.after)

    def _complete(self, block: Block) -> None:
        parent = blocks.parent_of(block)
        own = {v.name for v in self.inputs} | set(self._memories)
        reads, _ = blocks.reads_and_writes(block, own)
        memories = self._memories.values()
        parent.append_op(
            type="recurrent",
            inputs={
                "inputs": [v.name for v in self.inputs],
                "initial_states": [m.init for m in memories],
                "parameters": blocks.outer_variables(parent, reads),
            },
            outputs={"outputs": self.outputs, "step_scopes": [blocks.step_scopes(parent)]},
            attrs={
                "has_states": bool(self._memories),
                "ex_states": list(self._memories),
                "states": [m.after.name for m in memories if m.after is not None],
                "sub_block": blocks.ref(block),
                "is_train": True,
                "reverse": False,
                "skip_eager_deletion_vars": [],
            },
        )


class _Link(NamedTuple):
    """What a step leaves in a memory's array."""

    new: Variable
    array: Variable


class DynamicRNN:
    """A step applied along sequences of unequal length; sequences that ended drop out of the batch.

    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(sentence)
        state = rnn.memory(shape=[32])
        new = layers.fc([word, state], 32, act="tanh")
        rnn.update_memory(state, new)
        rnn.output(new)
    states = rnn()
    """

    def __init__(self, name: str | None = None) -> None:
        self.helper = LayerHelper("dynamic_rnn", name=name)
        self.lod_rank_table: Variable | None = None
        self.max_seq_len: Variable | None = None
        self.step_idx: Variable | None = None
        self.outputs: list[Variable] = []
        self.cond = self.helper.create_variable_for_type_inference("bool")
        self._loop = While(self.cond)
        self._zero: Variable | None = None
        self._memories: dict[str, Variable] = {}
        self._links: list[_Link] = []
        self._output_arrays: list[Variable] = []
        self._input_arrays: list[Variable] = []
        self._done = False

    @contextmanager
    def block(self) -> Iterator[None]:
        """The block of one step."""
        if self.step_idx is not None:
            raise InvalidArgument("a DynamicRNN has one block")
        step = fill_constant(shape=[1], dtype="int64", value=0, force_cpu=True)
        step.stop_gradient = False
        self.step_idx = step
        with self._loop.block():
            yield
            if self.max_seq_len is None:
                raise InvalidArgument("a DynamicRNN needs at least one step_input()")
            self._advance(step, self.max_seq_len)
        self._done = True
        table = self._table("block")
        self.outputs = [array_to_lod_tensor(a, table) for a in self._output_arrays]

    def _advance(self, step: Variable, limit: Variable) -> None:
        self.helper.append_op(
            type="increment", inputs={"X": [step]}, outputs={"Out": [step]}, attrs={"step": 1.0}
        )
        for link in self._links:
            array_write(x=link.new, i=step, array=link.array)
        less_than(x=step, y=limit, force_cpu=True, cond=self.cond)

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """Step t of the sequences of `x`."""
        parent = self._parent("step_input")
        _check_outside(parent, x)
        if self.lod_rank_table is None:
            self._make_table(parent, x, level)
        array = self._outside(
            parent, "dynamic_rnn_input_array", x.dtype, type=VarType.LOD_TENSOR_ARRAY
        )
        self._input_arrays.append(array)
        parent.append_op(
            type="lod_tensor_to_array",
            inputs={"X": x, "RankTable": self.lod_rank_table},
            outputs={"Out": array},
        )
        return array_read(array=array, i=self._step())

    def _make_table(self, parent: Block, x: Variable, level: int) -> None:
        table = parent.create_var(
            name=unique_name.generate("lod_rank_table"), type=VarType.LOD_RANK_TABLE
        )
        table.stop_gradient = True
        attrs = {"level": level}
        parent.append_op(
            type="lod_rank_table", inputs={"X": x}, outputs={"Out": table}, attrs=attrs
        )
        limit = self._outside(parent, "dynamic_rnn_max_seq_len", "int64")
        parent.append_op(
            type="max_sequence_len", inputs={"RankTable": table}, outputs={"Out": limit}
        )
        self.cond.stop_gradient = True
        parent.append_op(
            type="less_than",
            inputs={"X": self._step(), "Y": limit},
            outputs={"Out": self.cond},
            attrs={"force_cpu": True},
        )
        self.lod_rank_table, self.max_seq_len = table, limit

    def static_input(self, x: Variable) -> Variable:
        """All of `x` in every step, for the sequences that are still running."""
        parent = self._parent("static_input")
        _check_outside(parent, x)
        table = self._table("static_input")
        ordered = self._reordered(parent, x, "dynamic_rnn_static_input_reordered")
        return shrink_memory(ordered, self._step(), table)

    def _reordered(self, parent: Block, x: Variable, name: str) -> Variable:
        ordered = self._outside(parent, name, x.dtype, type=VarType.LOD_TENSOR)
        parent.append_op(
            type="reorder_lod_tensor_by_rank",
            inputs={"X": [x], "RankTable": [self.lod_rank_table]},
            outputs={"Out": [ordered]},
        )
        return ordered

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """A state that starts as `init` (one row per sequence), or filled with `value`."""
        parent = self._parent("memory")
        table = self._table("memory")
        zero = self._first_step(parent)
        if init is None:
            init = self._filled(parent, zero, shape or (), value, dtype)
        elif need_reorder:
            init = self._reordered(parent, init, "dynamic_rnn_mem_init_reordered")
        array = self._outside(
            parent, "dynamic_rnn_mem_array", init.dtype, type=VarType.LOD_TENSOR_ARRAY
        )
        parent.append_op(
            type="write_to_array", inputs={"X": init, "I": zero}, outputs={"Out": array}
        )
        state = array_read(array=array, i=self._step())
        state = shrink_memory(state, self._step(), table)
        self._memories[state.name] = array
        return state

    def _first_step(self, parent: Block) -> Variable:
        if self._zero is None:
            self._zero = self._outside(parent, "zero_idx", "int64")
            attrs = {"shape": [1], "dtype": int(VarType.INT64), "value": 0.0, "force_cpu": True}
            parent.append_op(
                type="fill_constant", inputs={}, outputs={"Out": [self._zero]}, attrs=attrs
            )
        return self._zero

    def _filled(
        self, parent: Block, zero: Variable, shape: Sequence[int], value: float, dtype: Any
    ) -> Variable:
        init = self._outside(parent, "mem_init", dtype)
        first = self._outside(parent, "in0", self._input_arrays[0].dtype)
        parent.append_op(
            type="read_from_array",
            inputs={"X": [self._input_arrays[0]], "I": [zero]},
            outputs={"Out": [first]},
        )
        parent.append_op(
            type="fill_constant_batch_size_like",
            inputs={"Input": [first]},
            outputs={"Out": [init]},
            attrs={
                "shape": [-1, *shape],
                "value": float(value),
                "dtype": int(init.dtype or VarType.FP32),
            },
        )
        return init

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Let the state `ex_mem` be `new_mem` in the next step."""
        self._parent("update_memory")
        array = self._memories.get(ex_mem.name)
        if array is None:
            raise InvalidArgument(f"{ex_mem.name!r} is not a memory of this DynamicRNN")
        self._links.append(_Link(new_mem, array))

    def output(self, *outputs: Variable) -> None:
        """Collect variables over all steps."""
        parent = self._parent("output")
        for out in outputs:
            name = f"{self.helper.name}_output_array_{out.name}"
            array = self._outside(parent, name, out.dtype, type=VarType.LOD_TENSOR_ARRAY)
            array_write(x=out, i=self._step(), array=array)
            self._output_arrays.append(array)

    def __call__(self) -> Any:
        """The collected outputs as sequences: one variable, or a list of them."""
        if not self._done:
            raise InvalidArgument("call a DynamicRNN after its block")
        return _single(self.outputs, "DynamicRNN")

    @staticmethod
    def _outside(parent: Block, key: str, dtype: Any, **fields: Any) -> Variable:
        return parent.create_var(name=unique_name.generate(key), dtype=dtype, **fields)

    def _step(self) -> Variable:
        assert self.step_idx is not None
        return self.step_idx

    def _table(self, what: str) -> Variable:
        if self.lod_rank_table is None:
            raise InvalidArgument(f"DynamicRNN.{what}() needs a step_input() before it")
        return self.lod_rank_table

    def _parent(self, what: str) -> Block:
        if self.step_idx is None or self._done:
            raise InvalidArgument(f"DynamicRNN.{what}() is called inside `with rnn.block()`")
        return blocks.parent_of(self.helper.main_program.current_block())

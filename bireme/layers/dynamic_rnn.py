"""DynamicRNN: a recurrence over sequences of unequal length, whose step is a block."""

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

__all__ = ["DynamicRNN"]


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
        blocks.check_outside(parent, x)
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
        blocks.check_outside(parent, x)
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
        return blocks.one_or_all(self.outputs, "DynamicRNN")

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

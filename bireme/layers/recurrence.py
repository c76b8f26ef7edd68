"""StaticRNN: a recurrence over equally long sequences, whose step is a block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Block, Variable, VarType, unique_name

from . import blocks
from .helper import LayerHelper

__all__ = ["StaticRNN"]


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
        return blocks.one_or_all(self.outputs, "StaticRNN")

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

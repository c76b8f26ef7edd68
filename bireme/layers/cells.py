"""Recurrent cells and the loop that runs one over time, for equally long or masked sequences."""

from collections.abc import Callable
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, unique_name

from . import blocks
from .elementwise import elementwise_add, elementwise_mul
from .helper import LayerHelper
from .nn import matmul
from .ops import sigmoid, tanh
from .picking import shape as shape_of
from .recurrence import StaticRNN
from .sequence_lod import sequence_mask
from .shaping import reverse, split, transpose
from .tensor import concat, fill_constant, fill_constant_batch_size_like

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]

Activation = Callable[[Variable], Variable]


class RNNCell:
    """One step of a recurrence: `call(inputs, states)` returns (outputs, new states).

    A subclass says the shapes of its states (without the batch) in `state_shape`.
    """

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """One step.

        Raises:
            InvalidArgument: the subclass does not define it.
        """
        raise InvalidArgument(f"{type(self).__name__} does not define call(inputs, states)")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """The shape of a state without the batch, nested as the states are."""
        raise InvalidArgument(
            f"{type(self).__name__} does not define state_shape",
            hint="define it, or give rnn() and the decoders initial states",
        )

    @property
    def state_dtype(self) -> Any:
        return "float32"

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = "float32",
        init_value: float = 0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States filled with `init_value`, one row for each in `batch_ref`."""
        like = blocks.flatten(batch_ref)[0]

        def filled(sizes: list[int]) -> Variable:
            state = fill_constant_batch_size_like(
                input=like,
                shape=[-1, *sizes],
                dtype=dtype,
                value=init_value,
                input_dim_idx=batch_dim_idx,
            )
            state.stop_gradient = False
            return state

        return _map_shapes(filled, self.state_shape if shape is None else shape)


def _map_shapes(function: Callable[[list[int]], Any], shapes: Any) -> Any:
    """Apply `function` to every list of whole numbers in a nested structure."""
    if isinstance(shapes, dict):
        return {key: _map_shapes(function, shape) for key, shape in shapes.items()}
    if all(isinstance(n, int) for n in shapes):
        return function([n for n in shapes if n != -1] if -1 in shapes[:1] else list(shapes))
    return [_map_shapes(function, shape) for shape in shapes]


class _Cell(RNNCell):
    """What the two cells share: parameters, made at the first step."""

    _unit = ""

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any,
        bias_attr: Any,
        gate_activation: Activation | None,
        activation: Activation | None,
        dtype: Any,
        name: str,
    ) -> None:
        self.hidden_size = hidden_size
        self.dtype = dtype
        self._helper_name = unique_name.generate(f"{name}/{self._unit}")
        self._attrs = param_attr, bias_attr
        self._gate = gate_activation or sigmoid
        self._act = activation or tanh
        self._parameters: list[Any] = []

    def _made(self, inputs: Variable, widths: list[int]) -> list[Any]:
        """A weight for each width, then a bias for each."""
        if not self._parameters:
            param_attr, bias_attr = self._attrs
            helper = LayerHelper(
                "cell", name=self._helper_name, param_attr=param_attr, bias_attr=bias_attr
            )
            rows = inputs.shape[-1] + self.hidden_size
            sizes = [n * self.hidden_size for n in widths]
            self._parameters = [
                helper.create_parameter(helper.param_attr, [rows, n], self.dtype) for n in sizes
            ]
            self._parameters += [
                helper.create_parameter(helper.bias_attr, [n], self.dtype, is_bias=True)
                for n in sizes
            ]
        return self._parameters


def _projected(parts: list[Variable], weight: Any, bias: Any) -> Variable:
    return elementwise_add(matmul(x=concat(parts, 1), y=weight), bias)


class GRUCell(_Cell):
    """A gated recurrent unit; its state is its output."""

    _unit = "BasicGRUUnit"

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ) -> None:
        super().__init__(
            hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name
        )

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The new state, twice."""
        gate_w, new_w, gate_b, new_b = self._made(inputs, [2, 1])
        gates = self._gate(_projected([inputs, states], gate_w, gate_b))
        reset, update = split(gates, num_or_sections=2, dim=1)
        kept: Any = reset * states
        new = self._act(_projected([inputs, kept], new_w, new_b))
        state = update * states + (1 - update) * new
        return state, state

    @property
    def state_shape(self) -> Any:
        return [self.hidden_size]


class LSTMCell(_Cell):
    """A long short-term memory; its states are [hidden, cell]."""

    _unit = "BasicLSTMUnit"

    def __init__(
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ) -> None:
        super().__init__(
            hidden_size, param_attr, bias_attr, gate_activation, activation, dtype, name
        )
        self._forget_bias = fill_constant([1], dtype=dtype, value=forget_bias)
        self._forget_bias.stop_gradient = False

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """(hidden, [hidden, cell])."""
        before, cell = states
        weight, bias = self._made(inputs, [4])
        gates = _projected([inputs, before], weight, bias)
        enter, new, forget, leave = split(gates, num_or_sections=4, dim=-1)
        keep = self._gate(elementwise_add(forget, self._forget_bias))
        kept = elementwise_mul(cell, keep)
        entering = elementwise_mul(sigmoid(enter), self._act(new))
        cell = elementwise_add(kept, entering)
        hidden: Any = self._act(cell)
        hidden = hidden * self._gate(leave)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> Any:
        return [[self.hidden_size], [self.hidden_size]]


def _masked(old: Variable, new: Variable, mask: Any) -> Variable:
    """The new state where the sequence is still running, else the old one."""
    kept = elementwise_mul(new, mask, axis=0)
    out: Variable = kept - elementwise_mul(old, mask - 1, axis=0)
    return out


def _swapped(x: Variable) -> Variable:
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Run `cell` over time; returns (outputs, final states).

    Inputs are (batch, time, ...), or (time, batch, ...) with `time_major`. Beyond its
    `sequence_length` a row keeps its state.
    """
    if initial_states is None:
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=1 if time_major else 0)
    if not time_major:
        inputs = blocks.map_structure(_swapped, inputs)
    mask: Any = None
    if sequence_length is not None:
        first: Any = shape_of(blocks.flatten(inputs)[0])
        dtype = blocks.flatten(initial_states)[0].dtype
        mask = transpose(sequence_mask(sequence_length, maxlen=first[0], dtype=dtype), [1, 0])
    if is_reverse:
        inputs = blocks.map_structure(_turned, inputs)
        mask = None if mask is None else _turned(mask)
    outputs, states = _run(cell, inputs, initial_states, mask, kwargs)
    if is_reverse:
        outputs = blocks.map_structure(_turned, outputs)
    if not time_major:
        outputs = blocks.map_structure(_swapped, outputs)
    return outputs, states


def _turned(x: Variable) -> Variable:
    return reverse(x, axis=[0])


def _run(cell: RNNCell, inputs: Any, initial: Any, mask: Any, kwargs: Any) -> tuple[Any, Any]:
    """The loop: (outputs over time, states after the last step)."""
    loop = StaticRNN()
    with loop.step():
        now = blocks.map_structure(loop.step_input, inputs)
        old = blocks.map_structure(lambda state: loop.memory(init=state), initial)
        outputs, new = cell.call(now, old, **kwargs)
        if mask is not None:
            running = loop.step_input(mask)
            new = blocks.map_structure(lambda o, n: _masked(o, n, running), old, new)
        blocks.map_structure(loop.update_memory, old, new)
        blocks.map_structure(loop.step_output, outputs)
        blocks.map_structure(loop.step_output, new)
    found = iter(loop.outputs)
    all_outputs = blocks.map_structure(lambda _: next(found), outputs)
    return all_outputs, blocks.map_structure(lambda _: next(found)[-1], new)

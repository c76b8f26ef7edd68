"""LSTM and GRU out of plain operators in a StaticRNN, for batches of padded sequences."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import bireme.layers as layers
from bireme.initializer import Constant
from bireme.ir import Variable, unique_name
from bireme.layers.helper import LayerHelper
from bireme.param_attr import ParamAttr

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]

Activation = Callable[[Any], Any]


class _Unit:
    """A cell that makes its parameters when it first sees an input."""

    def __init__(self, name_scope: str, hidden_size: int, attrs: Sequence[Any], dtype: str) -> None:
        self._name = unique_name.generate(f"{name_scope}/{type(self).__name__}")
        self._size, self._attrs, self._dtype = hidden_size, attrs, dtype

    def _parameters(self, rows: int, widths: Sequence[int]) -> list[Any]:
        """A weight [rows, width] for each width, then a bias for each."""
        helper = LayerHelper(self._name, name=self._name)
        weight, bias = (ParamAttr._to_attr(attr) for attr in self._attrs)
        many = len(widths) > 1
        made = []
        for i, width in enumerate(widths):
            attr = _suffixed(weight, _PARTS[i] if many else "")
            made.append(helper.create_parameter(attr, [rows, width], self._dtype))
        for i, width in enumerate(widths):
            attr = _suffixed(bias, _PARTS[i] if many else "")
            start = Constant(0.0)
            made.append(
                helper.create_parameter(attr, [width], self._dtype, True, default_initializer=start)
            )
        return made


_PARTS = ("_gate", "_candidate")


def _suffixed(attr: Any, suffix: str) -> Any:
    """The attribute with a name of its own for one of several parameters."""
    if not attr or attr.name is None or not suffix:
        return attr
    own = copy.copy(attr)
    own.name = attr.name + suffix
    return own


class BasicLSTMUnit(_Unit):
    """One step: (input, hidden, cell) to (hidden, cell); gates are input, new value, forget and
    output, with `forget_bias` added to the third.
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: str = "float32",
    ) -> None:
        super().__init__(name_scope, hidden_size, (param_attr, bias_attr), dtype)
        self._gate = gate_activation or layers.sigmoid
        self._act = activation or layers.tanh
        self._forget = forget_bias
        self._made: list[Any] = []

    def __call__(self, input: Any, pre_hidden: Any, pre_cell: Any) -> tuple[Any, Any]:
        if not self._made:
            self._made = self._parameters(input.shape[-1] + self._size, [4 * self._size])
        weight, bias = self._made
        gates = layers.matmul(layers.concat([input, pre_hidden], 1), weight)
        i, j, f, o = layers.split(layers.elementwise_add(gates, bias), 4, dim=-1)
        kept = pre_cell * self._gate(layers.scale(f, bias=self._forget))
        cell = kept + self._gate(i) * self._act(j)
        return self._act(cell) * self._gate(o), cell


class BasicGRUUnit(_Unit):
    """One step: (input, hidden) to hidden; gates are reset and update."""

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: str = "float32",
    ) -> None:
        super().__init__(name_scope, hidden_size, (param_attr, bias_attr), dtype)
        self._gate = gate_activation or layers.sigmoid
        self._act = activation or layers.tanh
        self._made: list[Any] = []

    def __call__(self, input: Any, pre_hidden: Any) -> Any:
        if not self._made:
            rows = input.shape[-1] + self._size
            self._made = self._parameters(rows, [2 * self._size, self._size])
        gate_weight, weight, gate_bias, bias = self._made
        both = layers.matmul(layers.concat([input, pre_hidden], 1), gate_weight)
        r, u = layers.split(self._gate(layers.elementwise_add(both, gate_bias)), 2, dim=1)
        candidate = layers.matmul(layers.concat([input, r * pre_hidden], 1), weight)
        new = self._act(layers.elementwise_add(candidate, bias))
        return u * pre_hidden + (1 - u) * new


def _named(attr: Any, suffix: str) -> Any:
    """The attribute with `suffix` at its name, so that each layer has parameters of its own."""
    found = ParamAttr._to_attr(attr) if attr is not None else None
    return _suffixed(found, suffix)


class _Stack:
    """Layers of units over time, in one direction or in both."""

    def __init__(self, options: dict[str, Any], make: Callable[..., _Unit], states: int) -> None:
        self._given, self._states = options, states
        self._ways = ("fw", "bw") if options["bidirectional"] else ("fw",)
        middle = {"fw": "_layers_", "bw": "_reverse_layers_"}
        self._units = {
            way: [
                make(
                    f"{options['name']}{middle[way]}{i}",
                    _named(options["param_attr"], f"_{way}_w_{i}"),
                    _named(options["bias_attr"], f"_{way}_b_{i}"),
                )
                for i in range(options["num_layers"])
            ]
            for way in self._ways
        }

    def run(self, inits: Sequence[Any]) -> tuple[Any, list[Any]]:
        """(outputs over time, the last value of each state [layers x directions, N, size])."""
        given = self._given
        x = given["input"]
        if given["batch_first"]:
            x = layers.transpose(x, [1, 0, 2])
        mask = self._mask(x)
        size, ways, count = given["hidden_size"], len(self._ways), given["num_layers"]
        starts = [self._starts(s) for s in inits]
        outputs, lasts = [], []
        for d, way in enumerate(self._ways):
            back = way == "bw"
            steps = layers.reverse(x, axis=[0]) if back else x
            turned = layers.reverse(mask, axis=[0]) if back and mask is not None else mask
            out, last = self._direction(way, steps, turned, starts, d)
            outputs.append(layers.reverse(out, axis=[0]) if back else out)
            lasts.append(last)
        whole = outputs[0] if ways == 1 else layers.concat(outputs, axis=2)
        if given["batch_first"]:
            whole = layers.transpose(whole, [1, 0, 2])
        final = []
        for s in range(self._states):
            parts = [last[s] for last in lasts]
            joined = parts[0] if ways == 1 else layers.concat(parts, axis=1)
            final.append(layers.reshape(joined, [count * ways, -1, size]))
        return whole, final

    def _starts(self, init: Any) -> Any:
        """The first value of a state for each (layer, direction); None if it is 0."""
        if init is None:
            return None
        count, ways = self._given["num_layers"], len(self._ways)
        shaped = layers.reshape(init, [count, ways, -1, self._given["hidden_size"]])
        return {(i, d): shaped[i, d] for i in range(count) for d in range(ways)}

    def _mask(self, x: Any) -> Any:
        length = self._given["sequence_length"]
        if length is None:
            return None
        steps = x.shape[0] if x.shape[0] > 0 else layers.slice(layers.shape(x), [0], [0], [1])
        shaped: Any = layers.sequence_mask(length, maxlen=steps, dtype=self._given["dtype"])
        shaped.stop_gradient = True
        return layers.transpose(shaped, [1, 0])

    def _direction(
        self, way: str, x: Any, mask: Any, starts: Sequence[Any], d: int
    ) -> tuple[Any, list[Any]]:
        rnn = layers.StaticRNN()
        units, size = self._units[way], self._given["hidden_size"]
        with rnn.step():
            step = rnn.step_input(x)
            here = None if mask is None else rnn.step_input(mask)
            for i, unit in enumerate(units):
                before = [self._memory(rnn, s, i, d, x, size) for s in starts]
                made = unit(step, *before)  # type: ignore[operator]  # the two kinds of unit
                after = [made] if self._states == 1 else list(made)
                if here is not None:
                    after = [_masked(n, b, here) for n, b in zip(after, before, strict=True)]
                for b, n in zip(before, after, strict=True):
                    rnn.update_memory(b, n)
                    rnn.step_output(n)
                step = after[0]
                if self._given["dropout_prob"]:
                    step = layers.dropout(
                        step,
                        self._given["dropout_prob"],
                        dropout_implementation="upscale_in_train",
                    )
            rnn.step_output(step)
        *states, out = rnn()
        lasts = []
        for s in range(self._states):
            over_layers = [states[i * self._states + s][-1] for i in range(len(units))]
            lasts.append(layers.reshape(layers.concat(over_layers, axis=0), [len(units), -1, size]))
        return out, lasts

    @staticmethod
    def _memory(rnn: Any, start: Any, layer: int, way: int, x: Any, size: int) -> Any:
        if start is not None:
            return rnn.memory(init=start[layer, way])
        return rnn.memory(batch_ref=x, shape=[-1, size], ref_batch_dim_idx=1)


def _masked(new: Any, before: Any, mask: Any) -> Any:
    """`new` where the sequence goes on, `before` where it has ended."""
    return layers.elementwise_mul(new, mask, axis=0) - layers.elementwise_mul(
        before, (mask - 1), axis=0
    )


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: str = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Layers of LSTM over a padded batch [N, T, D] ([T, N, D] unless `batch_first`).

    Returns the output of the last layer at every step, directions side by side, and the last
    hidden and cell values [layers x directions, N, size]. After `sequence_length` steps a sequence
    keeps its states.
    """
    options = dict(locals())

    def unit(scope: str, weight: Any, bias: Any) -> BasicLSTMUnit:
        return BasicLSTMUnit(
            scope, hidden_size, weight, bias, gate_activation, activation, forget_bias, dtype
        )

    out, (hidden, cell) = _Stack(options, unit, 2).run((init_hidden, init_cell))
    return out, hidden, cell


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: Any = None,
    bias_attr: Any = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: str = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Layers of GRU over a padded batch; see `basic_lstm`."""
    options = dict(locals())

    def unit(scope: str, weight: Any, bias: Any) -> BasicGRUUnit:
        return BasicGRUUnit(scope, hidden_size, weight, bias, gate_activation, activation, dtype)

    out, (hidden,) = _Stack(options, unit, 1).run((init_hidden,))
    return out, hidden

"""Decoding step by step: the loop, and beam search over any recurrent cell.

A beam is a dimension after the batch. Every step keeps the best `beam_size` continuations of each
row, and remembers from which beam each came.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType, default_main_program

from . import blocks
from .arrays import array_read, array_write, tensor_array_to_tensor
from .cells import RNNCell
from .elementwise import (
    elementwise_add,
    elementwise_floordiv,
    elementwise_mod,
    elementwise_mul,
    equal,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
)
from .helper import LayerHelper
from .loops import While
from .nn import softmax, topk
from .ops import log
from .order import range as range_of
from .picking import gather_nd
from .picking import shape as shape_of
from .reduction import reduce_all
from .rnn import gather_tree
from .shaping import expand, reshape, stack, transpose, unsqueeze
from .tensor import assign, cast, fill_constant, fill_constant_batch_size_like, zeros_like

__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode"]

_NEVER = 1e9


class Decoder:
    """What `dynamic_decode` runs."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """(first inputs, first states, which rows have finished)."""
        raise InvalidArgument(f"{type(self).__name__} does not define initialize(inits)")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, ...]:
        """(outputs, new states, next inputs, which rows have finished)."""
        raise InvalidArgument(f"{type(self).__name__} does not define step(time, inputs, states)")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        """What is made of outputs, stacked over time, and states at the end."""
        return outputs, final_states


def _merged(x: Variable) -> Variable:
    """(batch * beam, ...) of (batch, beam, ...); unknown sizes behind stay what they are."""
    rest = len(x.shape) - 2
    if -1 not in x.shape[2:]:
        return reshape(x, [-1, *x.shape[2:]])
    last = transpose(x, [*range(2, rest + 2), 0, 1])
    return transpose(reshape(last, [*[0] * rest, -1]), [rest, *range(rest)])


class BeamSearchDecoder(Decoder):
    """Beam search with a cell.

    `embedding_fn` makes inputs of ids, `output_fn` makes scores over words of the cell's outputs.
    """

    OutputWrapper = namedtuple("OutputWrapper", ("scores", "predicted_ids", "parent_ids"))
    StateWrapper = namedtuple("StateWrapper", ("cell_states", "log_probs", "finished", "lengths"))

    def __init__(
        self,
        cell: RNNCell,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Variable] | None = None,
    ) -> None:
        self.cell = cell
        self.embedding_fn = embedding_fn
        self.output_fn = output_fn
        self.start_token = start_token
        self.end_token = end_token
        self.beam_size = beam_size
        self._batch: Any = None
        self._end: Any = None

    # -- shapes ----------------------------------------------------------------------------
    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """Each row of `x` `beam_size` times: (batch * beam, ...)."""
        tiled = expand(unsqueeze(x, [1]), [1, beam_size, *[1] * (len(x.shape) - 1)])
        return _merged(tiled)

    def _beams(self, x: Variable) -> Variable:
        """(batch, beam, ...) of (batch, ...)."""
        return expand(unsqueeze(x, [1]), [1, self.beam_size, *[1] * (len(x.shape) - 1)])

    def _parted(self, x: Variable) -> Variable:
        """(batch, beam, ...) of (batch * beam, ...)."""
        rest = len(x.shape) - 1
        if -1 not in x.shape[1:]:
            return reshape(x, [-1, self.beam_size, *x.shape[1:]])
        last = transpose(x, [*range(1, rest + 1), 0])
        parted = reshape(last, [*[0] * rest, -1, self.beam_size])
        return transpose(parted, [rest, rest + 1, *range(rest)])

    def _gathered(self, x: Variable, indices: Variable) -> Variable:
        """x[row, indices[row, beam]] for every row and beam."""
        row = range_of(0, cast(self._batch, "int64"), 1, "int64")
        place = expand(unsqueeze(row, [1]), [1, self.beam_size])
        return gather_nd(x, stack([place, indices], axis=2))

    # -- the decoder -----------------------------------------------------------------------
    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        like = blocks.flatten(initial_cell_states)[0]
        shape: Any = shape_of(like)
        self._batch = shape[0]
        start = fill_constant([1], "int64", self.start_token)
        self._end = fill_constant([1], "int64", self.end_token)
        states = blocks.map_structure(self._beams, initial_cell_states)
        inputs: Any = self._beams(expand(start, [self._batch]))
        only_first = np.array([[0.0] + [-_NEVER] * (self.beam_size - 1)], dtype="float32")
        log_probs = expand(assign(only_first), [self._batch, 1])
        finished = fill_constant_batch_size_like(
            input=like, shape=[-1, self.beam_size], dtype="bool", value=0, force_cpu=True
        )
        lengths = zeros_like(inputs)
        if self.embedding_fn is not None:
            inputs = self.embedding_fn(inputs)
        return inputs, self.StateWrapper(states, log_probs, finished, lengths), finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, ...]:
        inputs = blocks.map_structure(_merged, inputs)
        before = blocks.map_structure(_merged, states.cell_states)
        outputs, after = self.cell.call(inputs, before, **kwargs)
        outputs = blocks.map_structure(self._parted, outputs)
        after = blocks.map_structure(self._parted, after)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        found, state = self._chosen(outputs, after, states)
        ids = found.predicted_ids
        return (
            found,
            state,
            ids if self.embedding_fn is None else self.embedding_fn(ids),
            (state.finished),
        )

    def _chosen(self, logits: Variable, cells: Any, state: Any) -> tuple[Any, Any]:
        """The best continuations, and the states they lead to."""
        words = logits.shape[-1]
        count = fill_constant([1], "int64", words)
        ending = np.full(words, -_NEVER, dtype="float32")
        ending[self.end_token] = 0
        only_end = assign(ending)
        step_probs = self._kept_ended(log(softmax(logits)), state.finished, only_end)
        total = elementwise_add(step_probs, state.log_probs, axis=0)
        flat = [-1, self.beam_size * words]
        scores, indices = topk(input=reshape(total, flat), k=self.beam_size)
        beams, tokens = elementwise_floordiv(indices, count), elementwise_mod(indices, count)
        log_probs = self._gathered(reshape(total, flat), indices)
        cells = blocks.map_structure(lambda x: self._gathered(x, beams), cells)
        finished = self._gathered(state.finished, beams)
        lengths: Any = self._gathered(state.lengths, beams)
        lengths = lengths + cast(logical_not(finished), state.lengths.dtype)
        finished = logical_or(finished, equal(tokens, self._end))
        output = self.OutputWrapper(scores, tokens, beams)
        return output, self.StateWrapper(cells, log_probs, finished, lengths)

    def _kept_ended(self, probs: Variable, finished: Variable, only_end: Variable) -> Any:
        """A finished beam goes on with the end token, at no cost."""
        mask: Any = cast(finished, probs.dtype)
        spread = expand(unsqueeze(mask, [2]), [1, 1, probs.shape[-1]])
        ended: Any = elementwise_mul(spread, only_end, axis=-1)
        return ended - elementwise_mul(probs, mask - 1, axis=0)

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> tuple[Any, Any]:
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states


def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Run a decoder until all rows have finished, or for `max_step_num` further steps.

    Returns (outputs, final states), and the lengths with `return_length`. With `impute_finished` a
    finished row keeps its state.
    """
    inputs, states, finished = decoder.initialize(inits)
    step = fill_constant([1], "int64", 0)
    going = logical_not(reduce_all(finished))
    limit = None if max_step_num is None else fill_constant([1], "int64", max_step_num)
    loop = While(going, is_test)
    lengths = cast(zeros_like(finished), "int64")
    input_arrays = blocks.map_structure(lambda x: array_write(x, step), inputs)
    state_arrays = blocks.map_structure(lambda x: array_write(x, step), states)
    with loop.block():
        inputs = blocks.map_structure(lambda array: array_read(array, step), input_arrays)
        states = blocks.map_structure(lambda array: array_read(array, step), state_arrays)
        outputs, new, inputs, ended = decoder.step(step, inputs, states, **kwargs)
        ended = logical_or(ended, finished)
        longer = elementwise_add(lengths, cast(logical_not(finished), "int64"))
        if impute_finished:
            new = blocks.map_structure(lambda o, n: _kept(o, n, finished), states, new)
        output_arrays = blocks.map_structure(_array_outside, outputs)
        _write_all(outputs, step, output_arrays)
        LayerHelper("increment").append_op(
            type="increment", inputs={"X": [step]}, outputs={"Out": [step]}, attrs={"step": 1.0}
        )
        _write_all(inputs, step, input_arrays)
        _write_all(new, step, state_arrays)
        assign(ended, finished)
        assign(longer, lengths)
        more = logical_not(reduce_all(finished))
        if limit is None:
            assign(more, going)
        else:
            logical_and(more, less_equal(step, limit), going)
    stacked = blocks.map_structure(
        lambda array: tensor_array_to_tensor(array, axis=0, use_stack=True)[0], output_arrays
    )
    states = blocks.map_structure(lambda array: array_read(array, step), state_arrays)
    stacked, states = decoder.finalize(stacked, states, lengths)
    if not output_time_major:
        stacked = blocks.map_structure(_batch_first, stacked)
    return (stacked, states, lengths) if return_length else (stacked, states)


def _write_all(values: Any, step: Variable, arrays: Any) -> None:
    blocks.map_structure(lambda value, array: array_write(value, step, array), values, arrays)


def _array_outside(like: Variable) -> Variable:
    """An array in the block around the loop."""
    helper = LayerHelper("array")
    parent = blocks.parent_of(default_main_program().current_block())
    return parent.create_var(
        name=f"{helper.name}.out", type=VarType.LOD_TENSOR_ARRAY, dtype=like.dtype
    )


def _kept(old: Variable, new: Variable, finished: Variable) -> Any:
    """The old state of finished rows, the new one of the others."""
    mask: Any = cast(finished, new.dtype)
    kept: Any = elementwise_mul(old, mask, axis=0)
    return kept - elementwise_mul(new, mask - 1, axis=0)


def _batch_first(x: Variable) -> Variable:
    return transpose(x, [1, 0, *range(2, len(x.shape))])

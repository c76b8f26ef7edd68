"""Decoding along given words, or along the words that a cell says itself: `BasicDecoder` and what
chooses its next input.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable

from . import blocks
from .cells import RNNCell
from .decode import Decoder
from .elementwise import elementwise_add, elementwise_min, equal, greater_equal
from .nn import softmax
from .order import argmax
from .picking import gather_nd
from .picking import shape as shape_of
from .random import sampling_id
from .shaping import transpose
from .tensor import cast, fill_constant, fill_constant_batch_size_like, zeros_like

__all__ = [
    "BasicDecoder",
    "DecodeHelper",
    "GreedyEmbeddingHelper",
    "SampleEmbeddingHelper",
    "TrainingHelper",
]


class DecodeHelper:
    """Chooses words and next inputs for a `BasicDecoder`."""

    def initialize(self) -> tuple[Any, Variable]:
        """(first inputs, which rows have finished)."""
        raise InvalidArgument(f"{type(self).__name__} does not define initialize()")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        """The words that are said in this step."""
        raise InvalidArgument(f"{type(self).__name__} does not define sample(time, outputs, ...)")

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        """(which rows have finished, next inputs, next states)."""
        raise InvalidArgument(f"{type(self).__name__} does not define next_inputs(time, ...)")


class TrainingHelper(DecodeHelper):
    """Feeds the right words, as training does: row i of `inputs` has sequence_length[i] steps.

    `inputs` are (batch, steps, ...), or (steps, batch, ...) with `time_major`; a nest of them too.
    """

    def __init__(self, inputs: Any, sequence_length: Variable, time_major: bool = False) -> None:
        self.inputs = inputs
        self.sequence_length = sequence_length
        self.time_major = time_major
        self.inputs_ = inputs if time_major else blocks.map_structure(_time_first, inputs)

    def initialize(self) -> tuple[Any, Variable]:
        zero = fill_constant([1], "int64", 0)
        first = blocks.map_structure(lambda x: _at(x, zero), self.inputs_)
        return first, equal(self._lengths, zeros_like(self._lengths))

    @property
    def _lengths(self) -> Variable:
        return cast(self.sequence_length, "int64")

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        return argmax(outputs, axis=-1)

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        coming: Any = elementwise_add(time, fill_constant([1], "int64", 1))
        finished = greater_equal(_for_each(coming, self._lengths), self._lengths)
        following = blocks.map_structure(lambda x: _at(x, _within(coming, x)), self.inputs_)
        return finished, following, states


class GreedyEmbeddingHelper(DecodeHelper):
    """Goes on with the likeliest word, until `end_token`; `start_tokens` are (batch,) of int64."""

    def __init__(
        self, embedding_fn: Callable[[Variable], Any], start_tokens: Variable, end_token: int
    ) -> None:
        self.embedding_fn = embedding_fn
        self.start_tokens = start_tokens
        self.end_token = fill_constant([1], "int64", end_token)
        self.start_inputs = embedding_fn(start_tokens)

    def initialize(self) -> tuple[Any, Variable]:
        finished = fill_constant_batch_size_like(
            input=self.start_tokens, shape=[-1], dtype="bool", value=0, force_cpu=True
        )
        return self.start_inputs, finished

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        return argmax(outputs, axis=-1)

    def next_inputs(
        self, time: Variable, outputs: Any, states: Any, sample_ids: Variable
    ) -> tuple[Variable, Any, Any]:
        finished = equal(sample_ids, self.end_token)
        return finished, self.embedding_fn(sample_ids), states


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Goes on with a word drawn from what the cell says; a low temperature keeps to the likely."""

    def __init__(
        self,
        embedding_fn: Callable[[Variable], Any],
        start_tokens: Variable,
        end_token: int,
        softmax_temperature: float | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding_fn, start_tokens, end_token)
        self.softmax_temperature = softmax_temperature
        self.seed = seed

    def sample(self, time: Variable, outputs: Any, states: Any) -> Variable:
        if self.softmax_temperature is not None:
            outputs = outputs / self.softmax_temperature
        return cast(sampling_id(softmax(outputs), seed=self.seed or 0), "int64")


class BasicDecoder(Decoder):
    """One cell, one helper: the cell's outputs (through `output_fn`) and the words chosen."""

    OutputWrapper = namedtuple("OutputWrapper", ("cell_outputs", "sample_ids"))

    def __init__(
        self, cell: RNNCell, helper: DecodeHelper, output_fn: Callable[[Any], Any] | None = None
    ) -> None:
        self.cell = cell
        self.helper = helper
        self.output_fn = output_fn

    def initialize(self, initial_cell_states: Any) -> tuple[Any, Any, Variable]:
        inputs, finished = self.helper.initialize()
        return inputs, initial_cell_states, finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, ...]:
        outputs, after = self.cell.call(inputs, states, **kwargs)
        if self.output_fn is not None:
            outputs = self.output_fn(outputs)
        words = self.helper.sample(time, outputs, after)
        finished, following, after = self.helper.next_inputs(time, outputs, after, words)
        return self.OutputWrapper(outputs, words), after, following, finished


def _time_first(x: Variable) -> Variable:
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def _at(x: Variable, step: Variable) -> Variable:
    """x[step]."""
    return gather_nd(x, step)


def _within(step: Variable, x: Variable) -> Variable:
    """The last step, past the end: what is there is not used any more."""
    count: Any = cast(shape_of(x)[0], "int64")
    return elementwise_min(step, count - 1)


def _for_each(step: Variable, rows: Variable) -> Variable:
    """One number for every row."""
    return elementwise_add(zeros_like(rows), step)

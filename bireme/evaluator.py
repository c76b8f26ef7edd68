"""Metrics over many batches whose sums live in the program, as `fluid.evaluator` offers them.

`fluid.metrics` replaces them: it adds up fetched values in Python.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

import bireme.layers as layers
from bireme.errors import undefined
from bireme.initializer import Constant
from bireme.ir import Program, Variable, program_guard, unique_name
from bireme.layers.detection_metric import DetectionMAP
from bireme.layers.helper import LayerHelper

__all__ = ["ChunkEvaluator", "DetectionMAP", "EditDistance", "Evaluator"]


class Evaluator:
    """States that grow in every run of the program, and their evaluation."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self.helper = LayerHelper(name, **kwargs)

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Set every state to 0."""
        program = reset_program or Program()
        with program_guard(program, Program()):
            for state in self.states:
                same = program.current_block().create_var(
                    name=state.name, shape=state.shape, dtype=state.dtype, persistable=True
                )
                layers.fill_constant(same.shape, same.dtype, 0.0, out=same)
        executor.run(program)

    def eval(self, executor: Any, eval_program: Program | None = None) -> Any:
        """The metric of everything since the last reset; each evaluator defines its own."""
        raise undefined(self, "eval(executor)", hint="return the metric that its states make up")

    def _create_state(self, suffix: str, dtype: Any, shape: Sequence[int]) -> Variable:
        """A persistable variable that starts at 0."""
        state = self.helper.create_variable(
            name=f"{unique_name.generate(self.helper.name)}_{suffix}",  # as saved models name it
            persistable=True,
            dtype=dtype,
            shape=list(shape),
        )
        self.helper.set_variable_initializer(state, Constant(0.0))
        self.states.append(state)
        return state

    def _add_up(self, suffix: str, value: Variable) -> Variable:
        """A state to which the program adds `value` in every run."""
        state = self._create_state(suffix, value.dtype, [1])
        layers.sums([state, value], out=state)
        return state

    def _values(self, executor: Any) -> list[float]:
        """What the states hold now."""
        program = Program()
        block = program.current_block()
        fetched = [
            block.create_var(name=s.name, shape=s.shape, dtype=s.dtype, persistable=True)
            for s in self.states
        ]
        return [float(np.sum(v)) for v in executor.run(program, fetch_list=fetched)]


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of labelled chunks, from the counts of `layers.chunk_eval`."""

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ) -> None:
        super().__init__("chunk_eval")
        precision, recall, f1, *counts = layers.chunk_eval(
            input, label, chunk_scheme, num_chunk_types, excluded_chunk_types
        )
        names = ("num_infer_chunks", "num_label_chunks", "num_correct_chunks")
        for name, count in zip(names, counts, strict=True):
            self._add_up(name, count)
        self.metrics += [precision, recall, f1]

    def eval(self, executor: Any, eval_program: Program | None = None) -> tuple[Any, Any, Any]:
        """(precision, recall, F1), each an array of shape [1]."""
        inferred, labelled, correct = self._values(executor)
        precision = correct / inferred if inferred else 0.0
        recall = correct / labelled if labelled else 0.0
        f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
        first, second, third = (np.array([x], "float32") for x in (precision, recall, f1))
        return first, second, third


class EditDistance(Evaluator):
    """The mean edit distance of sequences, and the share of those that are not equal.

    `metrics` are those of one batch: the sum of its distances, and how many sequences are wrong.
    """

    def __init__(
        self,
        input: Variable,
        label: Variable,
        ignored_tokens: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__("edit_distance", **kwargs)
        distances, count = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        zero = layers.fill_constant([1], "float32", 0.0)
        unequal = layers.cast(layers.logical_not(layers.equal(distances, zero)), "int64")
        distance, wrong = layers.reduce_sum(distances), layers.reduce_sum(unequal)
        self._add_up("total_distance", distance)
        self._add_up("seq_num", layers.reshape(count, [1]))
        self._add_up("instance_error", wrong)
        self.metrics += [distance, wrong]

    def eval(self, executor: Any, eval_program: Program | None = None) -> tuple[Any, Any]:
        """(mean distance, share of wrong sequences), each an array of shape [1]."""
        total, count, wrong = self._values(executor)
        count = count or 1.0
        return np.array([total / count], "float32"), np.array([wrong / count], "float32")

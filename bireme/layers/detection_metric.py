"""`DetectionMAP`: mean average precision in variables of the program, per batch and over all."""

from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import Program, Variable, program_guard, unique_name

from .helper import LayerHelper
from .regions import detection_map
from .tensor import cast, concat, fill_constant

__all__ = ["DetectionMAP"]


class DetectionMAP:
    """Mean average precision of detections, sequences of (label, score, box).

    Truths are given as labels, boxes, and whether they are difficult (0 or 1); those count only
    with `evaluate_difficult`.
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ) -> None:
        if class_num is None:
            raise InvalidArgument("DetectionMAP needs class_num, the background included")
        self.helper = LayerHelper("map_eval")
        columns = [cast(gt_label, gt_box.dtype)]
        if gt_difficult is not None:
            columns.append(cast(gt_difficult, gt_box.dtype))
        truth = concat([*columns, gt_box], axis=1)
        how = (class_num, background_label, overlap_threshold, evaluate_difficult)
        self.cur_map = detection_map(input, truth, *how, ap_version=ap_version)
        states = [
            self._state("accum_pos_count", "int32", [class_num, 1]),
            self._state("accum_true_pos", "float32", [1, 2]),
            self._state("accum_false_pos", "float32", [1, 2]),
        ]
        self.has_state = self._state("has_state", "int32", [1])
        self.accum_map = detection_map(
            input, truth, *how, self.has_state, states, states, ap_version
        )
        fill_constant([1], "int32", 1, out=self.has_state)

    def _state(self, suffix: str, dtype: str, shape: list[int]) -> Variable:
        state = self.helper.create_variable(
            name=unique_name.generate(f"{self.helper.name}_{suffix}"),
            persistable=True,
            dtype=dtype,
            shape=shape,
        )
        self.helper.set_variable_initializer(state, Constant(0))
        return state

    def get_map_var(self) -> tuple[Variable, Variable]:
        """(of this batch, of all batches since the last reset)."""
        return self.cur_map, self.accum_map

    def reset(self, executor: Any, reset_program: Program | None = None) -> None:
        """Forget the batches so far."""
        program = reset_program or Program()
        with program_guard(program, Program()):
            same = program.current_block().create_var(
                name=self.has_state.name, shape=[1], dtype="int32", persistable=True
            )
            fill_constant([1], "int32", 0, out=same)
        executor.run(program)

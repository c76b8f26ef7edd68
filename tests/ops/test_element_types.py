"""Operators take the element types that Fluid 1.8.5 was recorded to take, and refuse the others
when they are appended.
"""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import layers
from bireme.errors import BiremeError, WrongType
from bireme.ir import Operator, Program, VarType, to_dtype
from bireme.ops import element_types
from bireme.ops.table import ROWS
from tests.support import oracle

RECORD = Path(__file__).parent.parent / "golden" / "element_types_operators.json.gz"
ATTEMPTS = oracle.tool("attempts")
TYPES: list[str] = ATTEMPTS.TYPES

# what is taken here and not by 1.8.5, beside floats of every width
TAKEN = {
    "cast X": "the way from every type to one that is computed with",
    "fill_constant ValueTensor": "must have the type of the attribute, whichever that is",
    "lookup_table Ids": "int32 ids are looked up as well",
    "lookup_table_v2 Ids": "int32 ids are looked up as well",
    "merge_lod_tensor X": "says how long the sequences are, not what is in them",
    "size Input": "counts elements of any type",
}


@cache
def recorded() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = ATTEMPTS.read(RECORD)
    return {op: variants for op, variants in found.items() if op in ROWS}


class Trial:
    """An operator with the inputs that a variant gives it."""

    def __init__(self, kind: str, variant: dict[str, Any]) -> None:
        self.block = Program().global_block()
        self.own: dict[str, str] = variant["types"]
        several = {slot for slot in self.own if f"{slot}[-1]" in variant["takes"]}
        inputs = {s: (s, f"{s}[-1]") if s in several else (s,) for s in self.own}
        for name in (name for names in inputs.values() for name in names):
            self.block.create_var(name=name, shape=[2])
        self.op = Operator(kind, inputs, {}, variant["attrs"])

    def refuses(self, changed: list[str], dtype: str) -> bool:
        """Whether it is refused with another type of these slots."""
        for name, var in self.block.vars.items():
            slot = name.removesuffix("[-1]")
            new = name in changed or slot in changed
            var.dtype = to_dtype(dtype if new else self.own[slot])
        try:
            element_types.check(ROWS[self.op.type].dtypes, self.op, self.block)
        except WrongType:
            return True
        return False


@pytest.mark.parametrize("kind", sorted(recorded()))
def test_an_operator_takes_what_1_8_5_takes(kind: str) -> None:
    faults = []
    for variant in recorded()[kind]:
        trial = Trial(kind, variant)
        for change, letters in variant["takes"].items():
            slots = change.split()
            for dtype, letter in zip(TYPES, letters, strict=True):
                ours = trial.refuses(slots, dtype)
                if ours and letter == ".":
                    faults.append(f"{change} of {dtype} is refused")
                if not ours and letter in "tc" and not _excused(kind, slots, dtype):
                    faults.append(f"{change} of {dtype} is taken")
    assert faults == []


def _excused(kind: str, slots: list[str], dtype: str) -> bool:
    return "float" in dtype or any(f"{kind} {slot}" in TAKEN for slot in slots)


def test_every_rule_names_slots_of_its_operator() -> None:
    for kind, row in ROWS.items():
        for rule in row.dtypes:
            assert set(rule.slots) <= set(row.in_slots), kind
            assert not rule.when or rule.when in row.attr_types, kind


def test_an_excuse_is_still_one() -> None:
    """What it excuses is refused by 1.8.5 and taken here."""
    for key in TAKEN:
        kind, slot = key.split()
        assert any(
            letter == "t"
            and "float" not in dtype
            and not Trial(kind, variant).refuses([slot], dtype)
            for variant in recorded()[kind]
            for dtype, letter in zip(TYPES, variant["takes"].get(slot, ""), strict=False)
        ), key


def test_a_refusal_names_the_layer_its_argument_and_the_line() -> None:
    number = fluid.data("number", [2, 3], "int32")
    with pytest.raises(TypeError) as caught:
        layers.softmax(number)  # this line
    text = str(caught.value)
    assert isinstance(caught.value, BiremeError)
    assert text.startswith(
        "softmax: input 'number' must be float16, float32, float64 or bfloat16, got int32"
    )
    assert f"at {__file__}:" in text
    assert "layers.cast(input" in text


def test_an_operator_appended_by_hand_is_refused_with_its_slot() -> None:
    x = fluid.data("x", [2], "int32")
    block = fluid.default_main_program().global_block()
    with pytest.raises(WrongType, match=r"^relu: X 'x' must be float16"):
        block.append_op(type="relu", inputs={"X": x}, outputs={"Out": x})


def test_a_layer_of_layers_is_named_by_what_the_script_called() -> None:
    q = fluid.data("q", [2, 3, 4], "bool")
    with pytest.raises(WrongType, match=r"^scaled_dot_product_attention: queries 'q' must be"):
        fluid.nets.scaled_dot_product_attention(q, q, q)


def test_operands_of_two_types_are_refused() -> None:
    x, y = fluid.data("x", [2], "float32"), fluid.data("y", [2], "float64")
    with pytest.raises(WrongType, match=r"^elementwise_add: y must be float32 as 'x' is"):
        layers.elementwise_add(x, y)


def test_half_floats_go_with_other_floats() -> None:
    x, y = fluid.data("x", [2], "float16"), fluid.data("y", [2], "float32")
    layers.elementwise_add(x, y)


def test_an_unknown_type_passes() -> None:
    block = fluid.default_main_program().global_block()
    x, y = block.create_var(name="x", shape=[2]), block.create_var(name="y", shape=[2])
    assert x.dtype is None
    block.append_op(type="relu", inputs={"X": x}, outputs={"Out": y})


def test_an_input_that_asks_for_parameters_of_integers_is_refused_by_name() -> None:
    x = fluid.data("x", [2, 3], "int64")
    with pytest.raises(TypeError, match=r"^fc: input 'x' must be float16.*got int64"):
        layers.fc(x, 4)
    with pytest.raises(TypeError, match=r"^create_parameter: a parameter of int64 has no default"):
        layers.create_parameter([2], "int64")


def test_sampled_classes_have_parameters_of_the_type_of_the_input() -> None:
    x, label = fluid.data("x", [4, 6], "float64"), fluid.data("y", [4, 1], "int64")
    layers.nce(x, label, 20)
    parameters = fluid.default_main_program().all_parameters()
    assert {p.dtype for p in parameters} == {VarType.FP64}


def test_parameters_of_double_precision_learn_at_a_rate_of_a_schedule() -> None:
    x = fluid.data("x", [2, 3], "float64")
    loss = layers.mean(layers.fc(x, 1))
    fluid.optimizer.Adam(layers.exponential_decay(0.1, 10, 0.5)).minimize(loss)


def _unchecked(kind: str, middle: str = "") -> Any:
    """A program from a file that applies an operator to whole numbers, fed or made by a cast."""
    program = Program()
    block = program.global_block()
    block.create_var(name="x", shape=[3], dtype="int32" if not middle else "float32")
    for name in ("middle", "y"):
        block.create_var(name=name, shape=[3], dtype="int32")
    if middle:
        attrs = {"in_dtype": VarType.FP32, "out_dtype": VarType.INT32}
        block.append(Operator(middle, {"X": ("x",)}, {"Out": ("middle",)}, attrs))
    given = "middle" if middle else "x"
    block.append(Operator(kind, {"X": (given,)}, {"Out": ("y",)}, {}))
    read = fluid.Program.parse_from_string(program.desc.serialize_to_string())
    feed = {"x": np.arange(3, dtype="float32" if middle else "int32")}
    return fluid.Executor().run(read, feed=feed, fetch_list=["y"])


def test_a_program_from_a_file_is_refused_before_it_runs() -> None:
    with pytest.raises(WrongType, match=r"^mean: X 'x' must be float16") as caught:
        _unchecked("mean")
    assert "op: {Out=[y]} = mean(X=[x])" in str(caught.value)


def test_a_failing_kernel_is_explained_by_the_types_of_its_inputs() -> None:
    with pytest.raises(WrongType, match=r"^sigmoid: X 'middle' must be float16.*got int32"):
        _unchecked("sigmoid", middle="cast")

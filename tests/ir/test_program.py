"""Programs: who owns what, what an edit does, and what survives a copy or a take-over."""

import copy
import pickle
from typing import Any

import pytest

import bireme.ops  # noqa: F401  (fills the op table)
from bireme.errors import InvalidArgument, ProgramError, UnknownName
from bireme.ir import BlockRef, Operator, OpRole, Parameter, Program, program_guard, unique_name


def two_layer_program() -> Program:
    program = Program()
    block = program.global_block()
    block.create_var(name="x", shape=[-1, 4], dtype="float32", is_data=True)
    block.create_parameter(name="w", shape=[4, 2], dtype="float32")
    block.create_var(name="y", dtype="float32")
    block.append_op(
        type="mul",
        inputs={"X": ["x"], "Y": ["w"]},
        outputs={"Out": ["y"]},
        attrs={"x_num_col_dims": 1, "y_num_col_dims": 1},
    )
    return program


def test_an_operator_gets_the_defaults_of_its_row_and_the_shape_of_its_rule() -> None:
    block = two_layer_program().global_block()
    assert block.ops[0].attr("scale_x") == 1.0
    assert block.ops[0].attr("scale_y") == [1.0]
    assert block.var("y").shape == (-1, 2)


def test_an_operator_remembers_the_line_that_made_it() -> None:
    site = two_layer_program().global_block().ops[0].site
    assert site is not None
    assert site.file == __file__
    assert site.function == "two_layer_program"


def test_every_edit_bumps_the_version() -> None:
    program = two_layer_program()
    block = program.global_block()
    seen = [program.version]
    for edit in (
        lambda: block.create_var(name="z"),
        lambda: setattr(block.var("z"), "persistable", True),
        lambda: block.put(0, block.ops[0].with_attrs(x_num_col_dims=1)),
        lambda: block._rename_var("z", "zz"),
        lambda: block._remove_var("zz"),
        lambda: setattr(program, "random_seed", 3),
    ):
        edit()
        seen.append(program.version)
    assert seen == sorted(set(seen))


def test_a_clone_owns_its_operators_and_variables() -> None:
    program = two_layer_program()
    copy = program.clone()
    assert str(copy) == str(program)
    assert copy.global_block().ops == program.global_block().ops
    assert copy.global_block().ops[0] is not program.global_block().ops[0]
    assert copy.global_block().var("w") is not program.global_block().var("w")
    assert isinstance(copy.global_block().var("w"), Parameter)
    copy.global_block()._remove_op(0)
    assert len(program.global_block().ops) == 1


def test_taking_over_keeps_the_identity_of_what_survives() -> None:
    program = two_layer_program()
    block, w = program.global_block(), program.global_block().var("w")
    other = program.clone()
    other.global_block()._rename_var("y", "out")
    other.global_block().var("w").stop_gradient = True
    version = program.version
    program.take(other)
    assert program.global_block() is block
    assert block.var("w") is w
    assert w.stop_gradient
    assert w.block is block
    assert list(block.vars) == ["x", "w", "out"]
    assert block.var("out").block is block
    assert program.version > version


def test_a_test_clone_has_neither_backward_nor_update() -> None:
    program = two_layer_program()
    block = program.global_block()
    with program._role(OpRole.Backward | OpRole.Loss):
        block.append_op(type="scale", inputs={"X": ["y"]}, outputs={"Out": ["y"]})
    with program._optimized_guard(["w"]):
        block.append_op(type="scale", inputs={"X": ["w"]}, outputs={"Out": ["w"]})
    assert block.ops[1].role == OpRole.Backward | OpRole.Loss
    assert block.ops[2].role_var == ("w",)
    assert [op.type for op in program.clone(for_test=True).global_block().ops] == ["mul"]
    assert len(block.ops) == 3


def test_renaming_a_variable_renames_it_in_operators_and_roles() -> None:
    program = two_layer_program()
    block = program.global_block()
    block.put(0, block.ops[0].with_attrs(op_role_var=("w", "y")))
    block._rename_var("y", "h")
    assert block.ops[0].output("Out") == ["h"]
    assert block.ops[0].role_var == ("w", "h")
    assert block.var("h").name == "h"


def test_sub_blocks_see_the_variables_of_their_parents() -> None:
    program = two_layer_program()
    sub = program._create_block()
    assert program.current_block() is sub
    assert sub._var_recursive("w") is program.global_block().var("w")
    program._rollback()
    assert program.current_block() is program.global_block()


def test_an_unknown_operator_is_named_with_its_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean .*'mul'"):
        Program().global_block().append_op(type="mull")


def test_an_unknown_variable_is_named_with_its_nearest() -> None:
    block = two_layer_program().global_block()
    block.create_var(name="label")
    with pytest.raises(UnknownName, match="'label'"):
        block.var("labl")


def test_a_wrong_shape_names_operator_shapes_and_line() -> None:
    program = two_layer_program()
    block = program.global_block()
    block.create_parameter(name="v", shape=[3, 2], dtype="float32")
    block.create_var(name="z", dtype="float32")
    with pytest.raises(InvalidArgument) as caught:
        block.append_op(type="mul", inputs={"X": ["x"], "Y": ["v"]}, outputs={"Out": ["z"]})
    text = str(caught.value)
    assert "x: float32[-1, 4]" in text
    assert "v: float32[3, 2]" in text
    assert "test_program.py" in text


def test_names_count_per_key_and_start_again_under_a_guard() -> None:
    with unique_name.guard():
        assert [unique_name.generate("fc"), unique_name.generate("fc")] == ["fc_0", "fc_1"]
        with unique_name.guard("tower/"):
            assert unique_name.generate("fc") == "tower/fc_0"
        assert unique_name.generate("fc") == "fc_2"


def test_operators_are_equal_in_meaning_not_by_line() -> None:
    a = Operator("scale", {"X": ("x",)}, {"Out": ("y",)}, {"scale": 2.0, "sub_block": BlockRef(1)})
    b = a.with_attrs(op_role=0)
    assert a == b
    assert a != a.with_attrs(scale=3.0)
    assert a.block_refs() == [BlockRef(1)]


def test_a_guard_restores_the_programs_after_an_error() -> None:
    from bireme.ir import default_main_program

    before = default_main_program()
    with pytest.raises(RuntimeError), program_guard(Program(), Program()):
        raise RuntimeError
    assert default_main_program() is before


def test_the_desc_of_a_program_is_its_serialised_form() -> None:
    program = Program()
    program.global_block().create_var(name="x", shape=[2], dtype="float32")
    assert program.desc.num_blocks() == 1
    again = Program.parse_from_string(program.desc.serialize_to_string())
    assert str(again) == str(program)


def test_operators_know_their_block_and_their_place_in_it() -> None:
    program = Program()
    block = program.global_block()
    for name in "xyz":
        block.create_var(name=name, shape=[2], dtype="float32")
    first = block.append_op(type="relu", inputs={"X": "x"}, outputs={"Out": "y"})
    last = block.append_op(type="relu", inputs={"X": "y"}, outputs={"Out": "z"})
    assert first.block is last.block is block
    assert (first.idx, last.idx) == (0, 1)
    block._insert_op(1, type="relu", inputs={"X": "x"}, outputs={"Out": "y"})
    assert (first.idx, last.idx) == (0, 2)


def test_operators_of_a_copy_are_in_the_copy() -> None:
    program = Program()
    block = program.global_block()
    for name in "xy":
        block.create_var(name=name, shape=[2], dtype="float32")
    op = block.append_op(type="relu", inputs={"X": "x"}, outputs={"Out": "y"})
    copy = program.clone()
    (twin,) = copy.global_block().ops
    assert twin == op
    assert op.block is block
    assert twin.block is copy.global_block()
    assert copy.global_block().var("y").op is twin
    program.take(copy)
    assert program.global_block().ops[0].block is block


def test_an_operator_in_no_block_says_so() -> None:
    with pytest.raises(ProgramError, match="'relu' is in no block"):
        _ = Operator("relu").block
    block = Program().global_block()
    op = block.append(Operator("relu"))
    block._remove_op(0)
    with pytest.raises(ProgramError, match="'relu' is in no block"):
        _ = op.idx


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_a_program_is_copied_and_pickled_with_its_operators(copied: Any) -> None:
    program = two_layer_program()
    twin = copied(program)
    assert str(twin) == str(program)
    assert [op.block for op in twin.global_block().ops] == [twin.global_block()]
    twin.global_block()._remove_op(0)
    assert len(program.global_block().ops) == 1

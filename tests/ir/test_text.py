"""A printed program parses back to an equal one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.errors import FormatError
from bireme.ir import BlockRef, Operator, Program, VarType, parse_program

names = st.one_of(
    st.from_regex(r"[a-z_][a-zA-Z0-9_@./#-]{0,8}", fullmatch=True),
    st.text(min_size=1, max_size=6),
)
numbers = st.one_of(st.integers(-(2**62), 2**62), st.floats(allow_nan=False))
scalars = st.one_of(
    st.booleans(), numbers, st.text(max_size=8), st.builds(BlockRef, st.integers(0, 9))
)
attrs = st.dictionaries(
    names, st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple)), max_size=4
)
slots = st.dictionaries(names, st.lists(names, max_size=3).map(tuple), max_size=3)
operators = st.builds(
    Operator,
    st.from_regex(r"[a-z_0-9]+", fullmatch=True).filter(lambda t: not t[0].isdigit()),
    slots,
    slots,
    attrs,
)
shapes = st.lists(st.integers(-1, 9), max_size=4)
kinds = st.sampled_from(
    [VarType.LOD_TENSOR, VarType.SELECTED_ROWS, VarType.RAW, VarType.STEP_SCOPES]
)
dtypes = st.sampled_from([None, "float32", "int64", "bool", "float16"])


@st.composite
def programs(draw: Any) -> Program:
    program = Program()
    program.random_seed = draw(st.integers(0, 2**31))
    for index in range(draw(st.integers(1, 3))):
        block = (
            program.blocks[0] if index == 0 else program.add_block(draw(st.integers(0, index - 1)))
        )
        for name in draw(st.lists(names, max_size=4, unique=True)):
            block.create_var(
                name=name,
                type=draw(kinds),
                shape=draw(shapes),
                dtype=draw(dtypes),
                lod_level=draw(st.integers(0, 2)),
                persistable=draw(st.booleans()),
                is_data=draw(st.booleans()),
                stop_gradient=draw(st.booleans()),
            )
        for op in draw(st.lists(operators, max_size=3)):
            block.append(op)
    for name in draw(
        st.lists(st.sampled_from(["w_0", "b@1", "odd name"]), max_size=2, unique=True)
    ):
        program.global_block().create_parameter(
            name=name,
            shape=draw(shapes),
            dtype="float32",
            trainable=draw(st.booleans()),
            optimize_attr={"learning_rate": draw(st.sampled_from([1.0, 0.5, 2.0]))},
        )
    return program


@given(programs())
def test_a_printed_program_parses_back(program: Program) -> None:
    back = parse_program(str(program))
    assert str(back) == str(program)
    for mine, theirs in zip(program.blocks, back.blocks, strict=True):
        assert mine.ops == theirs.ops
        assert [v.fields() for v in mine.vars.values()] == [
            v.fields() for v in theirs.vars.values()
        ]


def test_a_program_prints_as_a_reader_would_write_it() -> None:
    program = Program()
    block = program.global_block()
    block.create_var(name="x", shape=[-1, 4], dtype="float32", is_data=True)
    block.create_parameter(name="w", shape=[4, 2], dtype="float32", trainable=False)
    block.append(
        Operator("mul", {"X": ("x",), "Y": ("w",)}, {"Out": ("y",)}, {"x_num_col_dims": 1})
    )
    assert str(program).splitlines() == [
        "program seed=0",
        "block 0 parent=-1",
        "  var x: float32[-1, 4] is_data",
        "  param w: float32[4, 2] frozen",
        "  {Out=[y]} = mul(X=[x], Y=[w]) x_num_col_dims=1",
    ]


@pytest.mark.parametrize(
    "line", ["  {Out=[y]} = mul(X=[x]", "  var x float32[1]", "block 7 parent=-1", "  ~~~"]
)
def test_a_damaged_line_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(FormatError, match="line 3"):
        parse_program(f"program seed=0\nblock 0 parent=-1\n{line}")

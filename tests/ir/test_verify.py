"""What `verify` refuses, and that it says where."""

from collections.abc import Callable

import pytest

import bireme.ops  # noqa: F401  (fills the op table)
from bireme.errors import ProgramError
from bireme.ir import BlockRef, Operator, Program, verify

TEXT = Operator("scale", {"X": ("x",)}, {"Out": ("y",)}, {"scale": 2.0})


def program() -> Program:
    made = Program()
    block = made.global_block()
    block.create_var(name="x", shape=[1], dtype="float32", is_data=True)
    block.create_var(name="y", shape=[1], dtype="float32")
    block.create_var(name="z", shape=[1], dtype="float32")
    block.append(TEXT)
    block.append(Operator("scale", {"X": ("y",)}, {"Out": ("z",)}, {"scale": 2.0}))
    return made


def test_a_valid_program_passes() -> None:
    verify(program())


DAMAGES: list[tuple[str, Callable[[Program], object]]] = [
    ("not declared", lambda p: p.global_block()._remove_var("y")),
    ("not known", lambda p: p.global_block().put(0, TEXT.replaced(type="skale"))),
    ("no slot", lambda p: p.global_block().put(0, TEXT.replaced(inputs={"XX": ["x"]}))),
    ("does not exist", lambda p: p.global_block().put(0, TEXT.with_attrs(sub_block=BlockRef(3)))),
    ("before it is written", lambda p: p.global_block().set_ops(p.global_block().ops[::-1])),
    ("parent", lambda p: setattr(p.add_block(0), "parent_idx", 5)),
]


@pytest.mark.parametrize(("problem", "damage"), DAMAGES, ids=[d[0] for d in DAMAGES])
def test_a_damaged_program_is_refused(problem: str, damage: Callable[[Program], object]) -> None:
    broken = program()
    damage(broken)
    with pytest.raises(ProgramError, match=problem):
        verify(broken)


def test_the_guilty_pass_is_named() -> None:
    broken = program()
    broken.global_block()._remove_var("y")
    with pytest.raises(ProgramError, match="after pass to_trainer") as caught:
        verify(broken, after="to_trainer")
    assert caught.value.index == 0
    assert caught.value.op == TEXT

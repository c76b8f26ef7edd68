"""A resume point belongs to the scope in which its trainer's programs run."""

from pathlib import Path

import numpy as np
import pytest

import bireme as fluid
from bireme.ir import Program
from bireme.recovery.resume_point import ResumePoint
from bireme.runtime.scope import Scope

POINT = ResumePoint(7, Path("kept"), True, 9, (), {"w": np.float32([1, 2])})


@pytest.fixture
def program() -> Program:
    made = Program()
    made.global_block().create_var(name="w", shape=[2], dtype="float32", persistable=True)
    return made


def test_a_trainer_resumes_in_its_scope_and_below_it(program: Program, tmp_path: Path) -> None:
    scope = Scope()
    scope.resume_points[1] = POINT
    inner = scope.new_scope()
    assert fluid.io.load_checkpoint(tmp_path, program, scope=inner, trainer=1) == 7
    assert inner.var("w").get().tolist() == [1, 2]
    assert scope.resumed == {1}
    assert program._runs == 9


@pytest.mark.parametrize("trainer", [0, None])
def test_no_other_trainer_resumes_there(
    trainer: int | None, program: Program, tmp_path: Path
) -> None:
    scope = Scope()
    scope.resume_points[1] = POINT
    assert fluid.io.load_checkpoint(tmp_path, program, scope=scope, trainer=trainer) is None
    assert not scope.resumed


def test_no_other_scope_resumes_with_it(program: Program, tmp_path: Path) -> None:
    Scope().resume_points[1] = POINT
    assert fluid.io.load_checkpoint(tmp_path, program, scope=Scope(), trainer=1) is None

"""What listen_and_serv says, and what is refused in it."""

from typing import Any

import pytest

from bireme.errors import ProgramError
from bireme.ir import BlockRef, Operator, Program
from bireme.pserver.rules.server_spec import Settings, read_settings


def read(names: tuple[str, ...], **attrs: Any) -> Settings:
    program = Program()
    for _ in range(3):
        program.add_block(0)
    given = {"Fanin": 2, "optimize_blocks": (BlockRef(1), BlockRef(2)), **attrs}
    return read_settings(Operator("listen_and_serv", {"X": names}, {}, given), program)


def test_sync_gradients_are_those_of_x_and_belong_to_the_merged_ones_blocks() -> None:
    names = ("w@GRAD.block0.trainer_0", "w@GRAD.block0.trainer_1", "b@GRAD.trainer_0")
    settings = read(names, grad_to_block_id=("w@GRAD.block0:1", "b@GRAD:2"))
    assert settings.gradients == {names[0]: 1, names[1]: 1, names[2]: 2}
    assert settings.owned_by(1) == names[:2]


def test_geo_has_no_x_and_takes_the_names_of_the_blocks() -> None:
    settings = read((), grad_to_block_id=("w.delta:1",), distributed_mode=3)
    assert settings.gradients == {"w.delta": 1}


def test_with_one_trainer_the_plain_name_is_trainer_0s() -> None:
    settings = read(("g.trainer_0",), grad_to_block_id=("g:1",), Fanin=1)
    assert settings.bound("g") == settings.bound("g.trainer_0") == "g.trainer_0"


def test_with_more_trainers_it_is_nobodys() -> None:
    settings = read(("g.trainer_0", "g.trainer_1"), grad_to_block_id=("g:1",))
    assert settings.bound("g") == "g"


def test_sparse_gradients_know_their_parameters() -> None:
    settings = read(("g",), grad_to_block_id=("g:1",), sparse_grad_to_param=("g:w",))
    assert settings.sparse == {"g": "w"}


@pytest.mark.parametrize(
    ("attrs", "problem"),
    [
        ({"grad_to_block_id": ("g:7",)}, "no optimize block"),
        ({"grad_to_block_id": ("g",)}, "not name:value"),
        ({"grad_to_block_id": (), "Fanin": 0}, "cannot wait for 0 trainers"),
    ],
)
def test_contradictions_are_refused(attrs: dict[str, Any], problem: str) -> None:
    with pytest.raises(ProgramError, match=problem):
        read(("g",), **attrs)

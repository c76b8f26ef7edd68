"""A name that cannot be written is refused where it is given, not when a program is sent."""

from collections.abc import Callable
from typing import Any

import pytest

import bireme as fluid
from bireme import layers as L
from bireme.errors import InvalidArgument, WrongType

BAD = "part-\udce9"  # as os.listdir gives a file name that is not UTF-8


def _x() -> fluid.Variable:
    found: fluid.Variable = fluid.data("x", [1, 1])
    return found


def _scoped() -> None:
    with fluid.name_scope(BAD):
        L.fc(_x(), 1)


def _prefixed() -> None:
    with fluid.unique_name.guard(BAD):
        L.fc(_x(), 1)


def _stated() -> None:
    loss = L.mean(L.fc(_x(), 1))
    fluid.optimizer.Momentum(0.1, 0.9, name=BAD).minimize(loss)


def _block() -> Any:
    return fluid.default_main_program().global_block()


NAMED: list[Callable[[], Any]] = [
    lambda: fluid.data(BAD, [1]),
    lambda: L.data(BAD, [1]),
    lambda: fluid.data(BAD.encode(errors="surrogateescape"), [1]),
    lambda: L.create_parameter([1], "float32", name=BAD),
    lambda: L.create_global_var([1], 0.0, "float32", name=BAD),
    lambda: L.fc(_x(), 1, name=BAD),
    lambda: L.fc(_x(), 1, param_attr=BAD),
    lambda: _block().create_var(name=BAD),
    lambda: _block()._rename_var(_x().name, BAD),
    lambda: _block().append_op("relu", {"X": [_x()]}, {"Out": [BAD]}),
    _scoped,
    _prefixed,
    _stated,
]


@pytest.mark.parametrize("named", NAMED)
def test_a_name_with_a_lone_surrogate_is_refused(named: Callable[[], Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"part-\\udce9.* is not Unicode text"):
        named()


def test_names_of_any_script_are_taken_and_bytes_decoded() -> None:
    for name in ("größe", "名", "𝕏"):
        assert fluid.data(name, [1]).name == name
    assert fluid.data("größe".encode(), [1]) is fluid.default_main_program().global_block().var(
        "größe"
    )


def test_what_is_not_text_is_no_name() -> None:
    with pytest.raises(WrongType, match="a name must be text, got int"):
        fluid.data(3, [1])

"""Whose memory an array is, on every CPython: what is held is seen, and what is not is used."""

import numpy as np
import pytest

from bireme.arrays.ownership import (
    any_shared,
    overwritable,
    overwritable_expression,
    references,
    shared,
)

CALLS = 2000  # enough for an interpreter that rewrites what runs often


def test_an_array_that_only_a_variable_holds_is_free() -> None:
    for _ in range(CALLS):
        array = np.empty(3)
        assert not shared(array, 1)
        assert overwritable(array, 1)


def test_a_reference_that_the_caller_does_not_know_of_is_seen() -> None:
    for _ in range(CALLS):
        array = np.empty(3)
        kept = [array]
        assert shared(array, 1)
        assert not overwritable(array, 1)
        assert overwritable(array, 2)
        del kept


class Owner:
    """Something that holds an array as an attribute."""

    def __init__(self) -> None:
        self.array = np.empty(3)


def test_an_attribute_and_an_item_count_as_a_variable_does() -> None:
    # in sets: a rewritten assertion holds the values of what it compares
    owner, items = Owner(), [np.empty(3)]
    assert {overwritable(owner.array, 1) for _ in range(CALLS)} == {True}
    assert {overwritable(items[0], 1) for _ in range(CALLS)} == {True}
    kept = owner.array, items[0]
    assert {shared(owner.array, 1) for _ in range(CALLS)} == {True}
    assert {shared(items[0], 1) for _ in range(CALLS)} == {True}
    del kept


@pytest.mark.parametrize("view", [lambda a: a[1:], lambda a: a.reshape(3, 1), lambda a: a[:1][:1]])
def test_a_view_holds_what_it_is_a_view_of(view) -> None:
    array = np.empty(3)
    taken = view(array)
    for _ in range(CALLS):
        assert shared(array, 1)
        assert not overwritable(taken, 1)
    del taken
    assert not shared(array, 1)


def test_one_of_many_that_is_held_is_seen() -> None:
    arrays = [np.empty(3) for _ in range(5)]
    frame = list(arrays)
    for _ in range(CALLS):
        assert not any_shared(arrays, 2)
    kept = arrays[3]
    for _ in range(CALLS):
        assert any_shared(arrays, 2)
    del kept
    assert not any_shared(tuple(frame), 3)
    assert not any_shared([], 0)


def test_views_that_come_after_the_first_are_seen_and_seen_to_go() -> None:
    owner = Owner()
    first = owner.array[:2]
    known = references(owner.array)
    assert known == 2
    assert {shared(owner.array, known) for _ in range(CALLS)} == {False}
    later = first[:1]  # NumPy refers to the owner of the memory, not to the view in between
    assert {shared(owner.array, known) for _ in range(CALLS)} == {True}
    del later
    assert {shared(owner.array, known) for _ in range(CALLS)} == {False}


def test_generated_code_gives_the_same_answer() -> None:
    constants: list[object] = []

    def const(value: object) -> str:
        constants.append(value)
        return f"c{len(constants) - 1}"

    expression = overwritable_expression("x", 2, const)
    source = f"def step(frame):\n    x = frame[0]\n    return {expression}\n"
    space: dict[str, object] = {f"c{i}": value for i, value in enumerate(constants)}
    exec(source, space)
    step, frame = space["step"], [np.empty(3)]
    assert callable(step)
    assert {step(frame) for _ in range(CALLS)} == {True}
    kept = frame[0]
    assert {step(frame) for _ in range(CALLS)} == {False}
    frame[0] = np.empty(3)[:2]
    assert not step(frame)
    del kept

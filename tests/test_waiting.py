"""Tests do not wait for time to pass, and do not assert how long something took."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time"}
# Fluid's own scripts, and the tools that also run beside it
FILES = [
    path
    for path in TESTS.rglob("*.py")
    if path.parent.name != "oracle" and "scripts" not in path.parts
]


def test_a_sleep_says_why_on_its_line() -> None:
    """What can be waited for by an event, or by `tests.support.waiting.until`, needs no sleep."""
    silent = re.compile(r"\bsleep\((?!0\))[^#]*$")
    found = [
        f"{path.relative_to(TESTS)}:{number}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if silent.search(line) and path.name != "test_waiting.py"
    ]
    assert found == []


def is_span(node: ast.AST) -> bool:
    """Whether an expression subtracts a reading of a clock."""
    return any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and reads_clock(part)
        for part in ast.walk(node)
    )


def reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call) and getattr(part.func, "attr", "") in CLOCKS
        for part in ast.walk(node)
    )


def spans_asserted(tree: ast.Module) -> Iterator[int]:
    """The lines of assertions about the time between two readings of a clock."""
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        spans = {
            part.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and is_span(node.value)
            for target in node.targets
            for part in ast.walk(target)
            if isinstance(part, ast.Name)
        }
        for node in (n for n in ast.walk(function) if isinstance(n, ast.Assert)):
            names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
            if is_span(node.test) or names & spans:
                yield node.lineno


def test_no_test_asserts_elapsed_time() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}"
        for path in FILES
        if any(clock in path.read_text() for clock in CLOCKS)
        for line in spans_asserted(ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "body",
    ["assert time.monotonic() - began < 5", "took = perf.perf_counter() - b; assert took < 1"],
)
def test_an_assertion_about_elapsed_time_is_found(body: str) -> None:
    assert [*spans_asserted(ast.parse(f"def test():\n    {body}"))] == [2]

"""The defaults that layers write into: current programs, name scope, device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .program import Program

_main: "Program | None" = None
_startup: "Program | None" = None
_scopes: list[tuple[str, dict[str, int]]] = [("/", {})]
_device = ""


def default_main_program() -> "Program":
    """The program that layers append to when no `program_guard` is open."""
    global _main
    if _main is None:
        from .program import Program

        _main = Program()
    return _main


def default_startup_program() -> "Program":
    """The program that initialises what `default_main_program` uses."""
    global _startup
    if _startup is None:
        from .program import Program

        _startup = Program()
    return _startup


def switch_main_program(program: "Program") -> "Program":
    global _main
    old, _main = default_main_program(), program
    return old


def switch_startup_program(program: "Program") -> "Program":
    global _startup
    old, _startup = default_startup_program(), program
    return old


@contextmanager
def program_guard(
    main_program: "Program", startup_program: "Program | None" = None
) -> Iterator[None]:
    """Layers inside append to these programs."""
    old_main = switch_main_program(main_program)
    old_startup = switch_startup_program(startup_program) if startup_program is not None else None
    try:
        yield
    finally:
        switch_main_program(old_main)
        if old_startup is not None:
            switch_startup_program(old_startup)


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Operators inside carry the scope's path in `op_namescope`; a repeated prefix is numbered."""
    path, seen = _scopes[-1]
    name = prefix or ""
    count = seen.get(name, 0)
    seen[name] = count + 1
    label = name if count == 0 else f"{name}_{count}"
    _scopes.append((f"{path}{label}/", {}))
    try:
        yield
    finally:
        _scopes.pop()


def current_name_scope() -> str:
    return _scopes[-1][0]


@contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Operators inside carry this device in `op_device`."""
    global _device
    old, _device = _device, device or ""
    try:
        yield
    finally:
        _device = old


def current_device() -> str:
    return _device

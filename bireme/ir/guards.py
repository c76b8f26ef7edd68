"""Context that new operators inherit: name scope and device."""

from collections.abc import Iterator
from contextlib import contextmanager

from .names import checked_name

_scopes: list[tuple[str, dict[str, int]]] = [("/", {})]
_device = ""


@contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Operators built in this context carry the scope's path in `op_namescope`; repeated prefixes
    are numbered.
    """
    path, seen = _scopes[-1]
    name = checked_name(prefix or "")
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
    """Operators built in this context carry this device in `op_device`."""
    global _device
    old, _device = _device, device or ""
    try:
        yield
    finally:
        _device = old


def current_device() -> str:
    return _device

"""Generates unique names; scripts use this module as `fluid.unique_name`."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class UniqueNameGenerator:
    """One counter per key; `prefix` is prepended to every name."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.ids: defaultdict[str, int] = defaultdict(int)

    def __call__(self, key: str) -> str:
        number = self.ids[key]
        self.ids[key] += 1
        return f"{self.prefix}{key}_{number}"


generator = UniqueNameGenerator()


def generate(key: str) -> str:
    """`key_0`, `key_1`, ...: the next name for this key."""
    return generator(key)


def generate_with_ignorable_key(key: str) -> str:
    """The next name for this key, which here is never ignored."""
    return generator(key)


def switch(
    new_generator: UniqueNameGenerator | None = None, new_para_name_checker: object = None
) -> UniqueNameGenerator:
    """Install a generator (a new one by default) and return the previous one; the second argument
    is for imperative mode and ignored.
    """
    global generator
    old, generator = generator, new_generator or UniqueNameGenerator()
    return old


@contextmanager
def guard(new_generator: str | bytes | UniqueNameGenerator | None = None) -> Iterator[None]:
    """Restart the counters inside the block, with an optional prefix."""
    if isinstance(new_generator, bytes):
        new_generator = new_generator.decode()
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    old = switch(new_generator)
    try:
        yield
    finally:
        switch(old)

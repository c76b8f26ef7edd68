"""Output in the format of Paddle's launchers: list of arguments, table of variables, log lines."""

import sys
import time
from collections.abc import Mapping

__all__ = ["arguments_block", "environment_box", "log_line"]

KEY, VALUE = 40, 45  # width of the table
LONGEST = 41  # width of a truncated value


def arguments_block(values: Mapping[str, object]) -> str:
    """One line per argument, sorted by name, between two rules."""
    rows = [f"{name}: {values[name]}" for name in sorted(values)]
    return "\n".join(["-----------  Configuration Arguments -----------", *rows, "-" * 48])


def environment_box(variables: Mapping[str, str]) -> str:
    """The environment of one process, indented by four; long values are truncated to their end."""
    width = KEY + 2 + VALUE
    rule = f"+{'=' * width}+"
    rows = [_row("Distributed Envs", "Value"), f"+{'-' * width}+"]
    for name, value in variables.items():
        shown = value if len(value) < VALUE else f"... {value[-LONGEST:]}"
        rows.append(_row(name, shown))
    return "\n".join(f"    {line}" for line in [rule, *rows, rule])


def _row(key: str, value: str) -> str:
    return f"|{key:>{KEY}}  {value:^{VALUE}}|"


def log_line(level: str, message: str) -> None:
    """Print a log line of the launcher to stderr."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    print(f"{level} {stamp},{int(now * 1000) % 1000:03d} launch.py] {message}", file=sys.stderr)

"""What in a script only Python 2 reads, line by line, and what to write instead.

Works on text: a script that Python 3 cannot parse has no syntax tree.
"""

import io
import re
import tokenize
from collections.abc import Iterator

__all__ = ["old_syntax"]

# patterns over a line whose strings and comments are blanked
_RULES = [
    (r"^\s*(?:.*[:;]\s*)?print\s+>>\s*(?P<to>[\w.]+)", "write print(..., file={to})"),
    (r"^\s*(?:.*[:;]\s*)?print(?:\s+[^\s(=.,)\]]|\s*$|\s*['\"])", "write print(...)"),
    (r"^\s*(?:.*[:;]\s*)?print\s*\(.*\)\s*%", "write print(... % ...) with the % inside"),
    (r"\bexcept\s+(?P<kind>[^:,()]+?)\s*,\s*(?P<name>\w+)\s*:", "write except {kind} as {name}:"),
    (r"\bexcept\s*(?P<kind>\([^)]*\))\s*,\s*(?P<name>\w+)\s*:", "write except {kind} as {name}:"),
    (r"\braise\s+(?P<kind>[\w.]+)\s*,\s*", "write raise {kind}(...)"),
    (r"\bexec\s+[^\s(=.]", "write exec(...)"),
    (r"<>", "write !="),
    (r"`[^`]+`", "write repr(...)"),
    (r"(?<![\w.])0[0-7]+(?![\w.])", "write octal numbers as 0o..."),
    (r"(?<![\w.])\d+[lL]\b", "leave the L away"),
    (r"(?<!\w)[uU][rR](?=['\"])", "write r'...'"),
    (r"\blambda\s*\(\s*\w+\s*,", "write lambda pair: ... pair[0] ..."),
    (r"^\s*def\s+\w+\s*\(.*\((?:\s*\w+\s*,?)+\)", "take one argument and unpack it in the body"),
]


def old_syntax(source: str) -> Iterator[tuple[int, str, str]]:
    """(line number, the line, what to write) for every line that only Python 2 reads."""
    lines = source.splitlines()
    for number, code in enumerate(_blanked(source), 1):
        found: dict[str, str] = {}
        for pattern, advice in _RULES:
            if match := re.search(pattern, code):
                words = {k: v.strip() for k, v in match.groupdict().items()}
                found.setdefault("print" if "print" in advice else pattern, advice.format(**words))
        if found:
            yield number, lines[number - 1].strip(), "; ".join(found.values())
    yield from _mixed(lines)


def _mixed(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Indentation by tabs and by spaces in one file, which Python 2 takes for 8."""
    tabs = [i for i, line in enumerate(lines, 1) if re.match(r" *\t", line)]
    if tabs and any(re.match(r" +\S", line) for line in lines):
        yield (
            tabs[0],
            lines[tabs[0] - 1].strip(),
            "indent by spaces only, not by tabs too",
        )


def _blanked(source: str) -> list[str]:
    """The lines without comments, and with strings emptied."""
    lines = [list(line) for line in source.splitlines()]
    for kind, (row, start), (end_row, end) in _strings(source):
        for at in range(row, end_row + 1):
            line = lines[at - 1]
            first, last = (start if at == row else 0), (end if at == end_row else len(line))
            if kind == tokenize.COMMENT:
                line[first:last] = " " * (last - first)
            else:
                inner = range(first + 1, last - 1) if row == end_row else range(first, last)
                for i in inner:
                    line[i] = "_" if line[i] not in "'\"" else line[i]
    return ["".join(line) for line in lines]


def _strings(source: str) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield token.type, token.start, token.end
    except (tokenize.TokenError, SyntaxError):
        return

"""What to write instead of a name that is not here: one sentence each, for `bireme check` and under
the error that a missing name ends in.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bireme.ir import Operator

from . import names
from .python2 import old_syntax

__all__ = ["BUILTINS", "DEPRECATED", "FIND_VAR", "METHODS", "MODULES", "on_error", "on_name"]

FIND_VAR = (
    "find_var gives None for a name without a value in the scope: a temporary has none, a "
    "parameter has one after the startup program; fetch it, or make it persistable"
)

DEPRECATED = {
    "paddle.fluid.ParallelExecutor": "works; CompiledProgram(...).with_data_parallel(...) is newer",
    "paddle.fluid.average": "works; fluid.metrics is newer",
    "paddle.fluid.evaluator": "works; fluid.metrics is newer",
    "paddle.fluid.layers.py_reader": "works; fluid.io.DataLoader.from_generator is newer",
    "paddle.fluid.memory_optimize": "does nothing, as in 1.8.5",
    "paddle.fluid.release_memory": "does nothing, as in 1.8.5",
    "paddle.fluid.transpiler.memory_optimize": "does nothing, as in 1.8.5",
    "paddle.fluid.transpiler.release_memory": "does nothing, as in 1.8.5",
}

MODULES = {  # of Python 2
    "ConfigParser": "configparser", "HTMLParser": "html.parser", "Queue": "queue",
    "SocketServer": "socketserver", "StringIO": "io.StringIO", "cPickle": "pickle",
    "cStringIO": "io.StringIO", "commands": "subprocess", "httplib": "http.client",
    "itertools.imap": "map", "itertools.izip": "zip", "thread": "threading",
    "urllib2": "urllib.request", "urlparse": "urllib.parse",
}  # fmt: skip
BUILTINS = {  # of Python 2
    "basestring": "str", "cmp": "(a > b) - (a < b)", "execfile": "exec(open(path).read())",
    "file": "open", "long": "int", "raw_input": "input", "reduce": "functools.reduce",
    "reload": "importlib.reload", "unichr": "chr", "unicode": "str", "xrange": "range",
}  # fmt: skip
EDITS = {  # of operators in place, and what makes the new operator
    "_remove_attr": "replaced(attrs=...)", "_rename_input": "renamed({old: new})",
    "_rename_output": "renamed({old: new})", "_set_attr": "with_attrs({name: value})",
    "_update_desc_attr": "with_attrs({name: value})",
}  # fmt: skip
METHODS = {  # of Python 2's dicts, iterators and modules
    "getcwdu": "getcwd", "has_key": "`key in d`", "iteritems": "items", "iterkeys": "keys",
    "itervalues": "values", "letters": "ascii_letters", "maxint": "maxsize",
    "viewitems": "items", "viewkeys": "keys", "viewvalues": "values",
}  # fmt: skip


def on_name(path: str, asked: str = "") -> str:
    """What to do about a dotted name of `paddle` that is not here; `asked` is all of what the
    script asks for.
    """
    for prefix in _prefixes(asked or path):
        if prefix in names.ABSENT:
            return names.ABSENT[prefix]
    module, _, name = path.rpartition(".")
    there = name in names.known(module) or names.is_module(path)
    if there:
        return "Fluid 1.8.5 has it, bireme does not yet; docs/compatibility.md lists what is here"
    close = [f"{module}.{each}" for each in names.nearest(name, module)]
    if close:
        return f"Fluid 1.8.5 has no such name; did you mean {' or '.join(close)}?"
    elsewhere = sorted(m for m in names.modules() if name in names.known(m) and names.home_of(m))
    newer = "" if path.startswith(names.FLUID) else ": is the script written for Paddle 2.x?"
    if elsewhere and not name.startswith("_"):
        return f"Fluid 1.8.5 has it as {min(elsewhere, key=len)}.{name}{newer}"
    return f"Fluid 1.8.5 has no such name{newer}"


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


def on_error(error: BaseException) -> str:
    """A line of advice for an uncaught error about a name; "" if there is none to give."""
    if isinstance(error, AttributeError):
        return _on_attribute(error.obj, error.name or "")
    if isinstance(error, NameError) and error.name in BUILTINS:
        return f"{error.name} is Python 2: write {BUILTINS[error.name]}"
    if isinstance(error, ModuleNotFoundError):
        return _on_module(error.name or "")
    if isinstance(error, ImportError) and error.name:
        name = re.search(r"cannot import name '(\w+)'", str(error))
        return _on_attribute(sys.modules.get(error.name), name[1] if name else "")
    if isinstance(error, SyntaxError):
        return _on_syntax(error)
    return ""


def _on_syntax(error: SyntaxError) -> str:
    """Every line of the file that only Python 2 reads, not only the first."""
    try:
        source = Path(error.filename or "").read_text(errors="replace")
    except OSError:
        return ""
    rows = [f"line {number}: {line}: {what}" for number, line, what in old_syntax(source)]
    if not rows:
        return ""
    more = [f"and {len(rows) - 10} more; `bireme check {error.filename}` lists all"]
    listed = rows[:10] + (more if len(rows) > 10 else [])
    return "\n    ".join(["this script is written for Python 2:", *listed])


def _on_attribute(owner: Any, name: str) -> str:
    if isinstance(owner, ModuleType):
        known = names.namesakes().get(owner.__name__, (owner.__name__,))
        return on_name(f"{known[0]}.{name}") if known[0].startswith("paddle") else ""
    if isinstance(owner, Operator) and name in EDITS:
        return (
            "operators are shared by programs and do not change: "
            f"block.put(block.ops.index(op), op.{EDITS[name]})"
        )
    if owner is None and name in ("get_tensor", "set_tensor"):
        return FIND_VAR
    return f"{name} is Python 2: write {METHODS[name]}" if name in METHODS else ""


def _on_module(name: str) -> str:
    if name.partition(".")[0] == "paddle":
        return on_name(name)
    if name in MODULES:
        return f"{name} is Python 2: write {MODULES[name]}"
    if name in BROUGHT:
        return f"paddlepaddle brought it along: pip install {BROUGHT[name]}"
    return ""


BROUGHT = {  # packages that paddlepaddle 1.8.5 depends on
    "PIL": "pillow", "cv2": "opencv-python", "decorator": "decorator", "gast": "gast",
    "matplotlib": "matplotlib", "nltk": "nltk", "objgraph": "objgraph",
    "prettytable": "prettytable", "rarfile": "rarfile", "requests": "requests",
    "scipy": "scipy",
}  # fmt: skip

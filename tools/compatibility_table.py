"""Write docs/compatibility.md: which public names of Fluid 1.8.5 are here, and whose arguments
differ.

    python tools/compatibility_table.py > docs/compatibility.md

The page is made from the listed signatures (`tests/golden/api.txt`), every name of every module of
1.8.5 (`fleet/scripts/fluid_names.json`), and what our modules export.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bireme.layers  # noqa: E402, F401  # gives variables their operators
from bireme.fleet.scripts import compat, names  # noqa: E402

API = ROOT / "tests" / "golden" / "api.txt"

_INTRODUCTION = """# Public names of Fluid 1.8.5

Made by `python tools/compatibility_table.py`; do not edit. A name is *here* if it can be imported
from the same module under `bireme run`, or from `bireme` under the same path. Methods are written
with their class. Arguments agree if they have the same names in the same order and the same
defaults; further ones may follow.
"""

_ELSEWHERE = """
## Every module of 1.8.5

Scripts take names from the modules that define them (`fluid.layers.nn.conv2d`) and private ones too
(`_decay_step_counter`). Each module of 1.8.5 that defines something stands here, with the names of
its own that are here and those that are not; names that it imports are found as well.
"""

# why arguments differ on purpose
REASONS = {
    "Auc": "the name may be left out",
    "ChunkEvaluator.update": "counts may be left out",
    "Communicator": "mode and settings may be left out: the program says them",
    "DataFeeder": "the place may be left out",
    "DistributedOptimizer.minimize": "the base class leaves the rest to its subclasses",
    "UserDefinedRoleMaker": "the same default, a plain number",
    "DataLoader.from_dataset": "places may be left out",
    "DGCMomentumOptimizer": "defaults cannot be changed by accident",
    "EditDistance": "the name may be left out",
    "MetricBase": "the name may be left out",
    "Program.to_string": "throw_on_error may be left out",
    "PyReader.decorate_sample_generator": "one method under two names",
    "Variable.to_string": "throw_on_error may be left out",
    "anchor_generator": "defaults cannot be changed by accident",
    "deformable_roi_pooling": "defaults cannot be changed by accident",
    "density_prior_box": "defaults cannot be changed by accident",
    "generate_proposal_labels": "defaults cannot be changed by accident",
    "multi_box_head": "defaults cannot be changed by accident",
    "pad2d": "defaults cannot be changed by accident",
    "prior_box": "defaults cannot be changed by accident",
}


@dataclass
class Listed:
    """A module's names as Fluid has them: name -> signature, "" if it is not known."""

    module: str
    names: dict[str, str] = field(default_factory=dict)


def listed() -> Iterator[Listed]:
    """Read the list of signatures."""
    found, owner = Listed(""), ""
    for line in API.read_text().splitlines():
        if line.startswith("## "):
            if found.names:
                yield found
            found, owner = Listed(line[3:]), ""
        elif match := re.match(r"class (\w+)(?:\(.*?\))?(?: init(\(.*\)))?$", line):
            owner = match[1]
            found.names[owner] = match[2] or ""
        elif (match := re.match(r"( *)(\w+) ?(\(.*\))?$", line)) and match[3] != "(property)":
            name = f"{owner}.{match[2]}" if match[1] else match[2]
            found.names[name] = match[3] or ""
    yield found


def resolved(module: str, name: str) -> Any:
    """Ours, or None."""
    home = compat.home_of(module)
    if home is None:
        return None
    value: Any = import_module(home)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def difference(name: str, theirs: str, ours: Any) -> str:
    """How the arguments of a name differ, if they do."""
    if theirs in ("", "(...)") or any(mark in theirs for mark in "/*<"):
        return ""
    try:
        signature = inspect.signature(ours)
    except (TypeError, ValueError):
        return ""
    wanted = _wanted(theirs)
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    given = [p for p in signature.parameters.values() if p.name != "self" and p.kind not in kinds]
    have = [(p.name, _spelled(p.default)) for p in given][: len(wanted)]
    return "" if have == wanted else f"{_written(wanted)}; here {_written(have)}"


def _wanted(text: str) -> list[tuple[str, str]]:
    """(name, default) of each argument, "" for none."""
    (function,) = ast.parse(f"def f{text}: pass").body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args.args
    defaults = [""] * (len(arguments) - len(function.args.defaults))
    defaults += [_evaluated(ast.unparse(each)) for each in function.args.defaults]
    pairs = zip((a.arg for a in arguments), defaults, strict=True)
    return [pair for pair in pairs if pair[0] != "self"]


def _evaluated(text: str) -> str:
    try:
        return _spelled(ast.literal_eval(text))
    except ValueError:
        return text


def _spelled(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, Enum):
        return str(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return repr(float(value)) if is_number else repr(value)


def _written(arguments: list[tuple[str, str]]) -> str:
    return "`(" + ", ".join(f"{n}={d}" if d else n for n, d in arguments) + ")`"


def page() -> str:
    """The whole page."""
    rows, details = [], []
    for module in listed():
        found = {name: resolved(module.module, name) for name in module.names}
        absent = [name for name, value in found.items() if value is None and _matters(name, found)]
        differing = {
            name: text
            for name, value in found.items()
            if value is not None and (text := difference(name, module.names[name], value))
        }
        here = len([name for name, value in found.items() if value is not None])
        rows.append(f"| `{module.module}` | {here} | {len(absent)} | {len(differing)} |")
        if absent or differing:
            details += [f"\n## {module.module}\n"]
        if absent:
            details += [f"Not here: {', '.join(sorted(absent))}."]
        if differing:
            details += [""] if absent else []
            details += ["| name | arguments | why |", "|---|---|---|"]
            details += [f"| {n} | {t} | {REASONS.get(n, '')} |" for n, t in differing.items()]
    head = ["| module | here | not here | other arguments |", "|---|---|---|---|"]
    return "\n".join([_INTRODUCTION, *head, *rows, *details, *elsewhere()])


def elsewhere() -> Iterator[str]:
    """The names that scripts take from any other module of 1.8.5, private ones included."""
    public = {module.module for module in listed()}
    yield _ELSEWHERE
    yield from ("| module | here | not here |", "|---|---|---|")
    for module in names.modules():
        left_out = any(module == each or module.startswith(f"{each}.") for each in names.ABSENT)
        own = [name for name, source in names.known(module).items() if not source]
        if left_out or not own or module in public - {"paddle.fluid.layers"}:
            continue
        absent = [name for name in own if not _found(module, name)]
        text = ", ".join(name.replace("_", r"\_") for name in absent)
        yield f"| `{module}` | {len(own) - len(absent)} | {text or 'none'} |"
    yield "\n## Left out\n"
    yield from (f"* `{name}`: {why}." for name, why in sorted(names.ABSENT.items()))


def _found(module: str, name: str) -> bool:
    home = names.home_of(module)
    if home and hasattr(import_module(home), name):
        return True
    try:
        return names.find(module, name) is not None
    except (AttributeError, ImportError):
        return False


def _matters(name: str, found: dict[str, Any]) -> bool:
    """Whether a name's absence is news: of a class that is not here, only the class is listed."""
    owner, dot, _ = name.partition(".")
    return not dot or found.get(owner) is not None


if __name__ == "__main__":
    print(page())

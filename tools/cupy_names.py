"""Prints what CuPy's namespace offers, as JSON: names, parameters, types of its ufuncs.

Run it with a Python that has CuPy; no device is needed. `tests/support/cupy_names.json` is its
output, which the stand-in for CuPy holds the kernels to:

    python tools/cupy_names.py > tests/support/cupy_names.json
"""

import importlib
import inspect
import json
import re
import warnings
from typing import Any

# Modules whose functions take and return arrays; their names are looked up from `cupy` on.
MODULES = ("", "linalg", "lib.stride_tricks", "random", "fft")


def parameters(function: Any) -> list[str] | None:
    """The parameters as text: "a", "axis=", "*operands", "*" before those by keyword only."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return documented(function)
    found: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        found.append(f"{mark}{p.name}{'' if p.default is p.empty else '='}")
    return found


def documented(function: Any) -> list[str] | None:
    """The same from the first line of the documentation, as compiled functions have it."""
    line = (function.__doc__ or "").partition("\n")[0]
    match = re.match(r"[\w.]+\((.*)\)", line)
    if match is None:
        return None
    parts = [part.strip() for part in match[1].split(",") if part.strip()]
    words = [re.sub(r"^[\w.]+ (?=\w)", "", part) for part in parts]
    return [re.sub(r"=.*", "=", word) for word in words if word != "self"]


def described(value: Any, cupy: Any) -> Any:
    if isinstance(value, cupy.ufunc):
        return {"nin": value.nin, "nout": value.nout, "types": value.types}
    if isinstance(value, type):
        return "type"
    if isinstance(value, int | float | None.__class__):
        return "constant"
    return {"parameters": parameters(value)} if callable(value) else None


def names_of(module: Any, cupy: Any) -> dict[str, Any]:
    found = {n: described(getattr(module, n), cupy) for n in dir(module) if n[0] != "_"}
    return {name: what for name, what in found.items() if what is not None}


def methods_of(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dir(kind):
        value = getattr(kind, name)
        found[name] = parameters(value) if callable(value) and not name.startswith("__") else None
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    cupy = importlib.import_module("cupy")
    table = {"version": cupy.__version__, "ndarray": methods_of(cupy.ndarray), "modules": {}}
    for name in MODULES:
        module = importlib.import_module(f"cupy.{name}" if name else "cupy")
        table["modules"][name] = names_of(module, cupy)
    print(json.dumps(table, indent=0, sort_keys=True))


if __name__ == "__main__":
    main()

"""Record which module of Fluid 1.8.5 has which name, and where each name is defined.

    PYTHON_WITH_1.8.5 tools/fluid_names.py > fleet/scripts/fluid_names.json

Runs in the Python (3.7) that has paddlepaddle 1.8.5; reads names only. For each module:
name -> "" if it is defined there, else "module:name", or "module" if it is itself a module.
"""

import importlib
import json
import pkgutil
import sys
import types
import warnings

import paddle
import paddle.fluid

# starts processes, needs files that the wheel lacks, or is no part of the interface
LEFT_OUT = (".tests", ".proto", "__main__", "fs_wrapper", "core_noavx", "core_avx", "test_", "_pb2")


def modules():
    """Every module of paddle that can be imported."""
    for found in pkgutil.walk_packages(paddle.__path__, "paddle."):
        if not any(part in found.name for part in LEFT_OUT):
            try:
                importlib.import_module(found.name)
            except Exception:
                continue
    return sorted(n for n in sys.modules if n.partition(".")[0] == "paddle" and sys.modules[n])


def home(value, module, name):
    """Where a value is defined: "" if here."""
    if isinstance(value, types.ModuleType):
        return value.__name__
    source = getattr(value, "__module__", None)
    own = getattr(value, "__name__", None)
    if not isinstance(source, str) or not isinstance(own, str) or source == module:
        return "" if own in (name, None) or source != module else "%s:%s" % (module, own)
    there = vars(sys.modules.get(source, paddle)).get(own)
    return "%s:%s" % (source, own) if there is value else ""


def wanted(name):
    return not any(part in name for part in LEFT_OUT)


def table():
    found = {}
    for module in filter(wanted, modules()):
        names = vars(sys.modules[module])
        found[module] = {
            name: home(value, module, name)
            for name, value in sorted(names.items())
            if not name.startswith("__") and type(value).__name__ != "_Feature"
        }
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = table().items()
    lines = ",\n".join("%s: %s" % (json.dumps(m), json.dumps(n, sort_keys=True)) for m, n in rows)
    print("{\n%s\n}" % lines)

"""Which program every small use of a layer makes: run by the tests, and once on Fluid 1.8.5.

    python tests/layers/record.py paddle.fluid OUT.json.gz [USES.py]

(On CPython 3.7 or 3.8 with paddlepaddle 1.8.5.)

Both sides write programs with the functions of `tests/oracle/dump.py`.
"""

import gzip
import importlib
import importlib.util
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
USES = os.path.join(HERE, "uses.py")


def flat(value):
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in flat(item)]
    return [value]


def record(fluid, dump, build):
    """The programs of a use and of its gradient, the names of the results, or the refusal."""
    found = {}
    main, startup = fluid.Program(), fluid.Program()
    try:
        with fluid.unique_name.guard(), fluid.program_guard(main, startup):
            outs = [v for v in flat(build(fluid)) if hasattr(v, "name")]
            found["result"] = [v.name for v in outs]
            found["stopped"] = [bool(v.stop_gradient) for v in outs]
            found["gradients"] = gradients(fluid, dump, main, outs)
    except Exception as refusal:
        return {"error": type(refusal).__name__}
    return dict(found, main=dump.dump_program(main), startup=dump.dump_program(startup))


def gradients(fluid, dump, main, outs):
    """The names of the gradients of the fed variables, where there are any."""
    floats = [v for v in outs if v.dtype is not None and not v.stop_gradient]
    floats = [v for v in floats if dump.dtype_name(v.dtype) in ("float32", "float64")]
    fed = [v for v in main.global_block().vars.values() if v.is_data and not v.stop_gradient]
    if not floats:
        return None
    try:
        found = fluid.backward.gradients(floats, fed)
    except Exception as refusal:
        return type(refusal).__name__
    return [v.name for v in found if v is not None]


def table_of(path):
    """The uses that a file holds."""
    spec = importlib.util.spec_from_file_location("uses_of_layers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.USES


def main(module, path, table=USES):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "oracle"))
    dump, fluid = importlib.import_module("dump"), importlib.import_module(module)
    found = {name: record(fluid, dump, build) for name, build in table_of(table).items()}
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        out.write(text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What every small use of a layer computes: run by the tests, and once on Fluid 1.8.5.

    python tests/layers/record_values.py paddle.fluid OUT.json.gz USES.py

(On CPython 3.7 or 3.8 with paddlepaddle 1.8.5.) Each use is fed twice, from the whole line of
numbers and from (0.05, 0.95); the gradients are those of `loss_of` all results. A use that kills
the process of the original is recorded as an error.
"""

import gzip
import importlib
import json
import os
import sys
import zlib

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
RANGES = ("line", "unit")
BATCH = 3
LENGTHS = {"line": [2, 1, 3], "unit": [1, 4, 1]}
OUTER = {"line": [1, 2], "unit": [2, 1]}
CLASSES = 3  # whole numbers are below


def flat(value):
    if isinstance(value, (list, tuple)):
        return [part for item in value for part in flat(item)]
    return [value]


def draw(name):
    return numpy.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)


def feed_of(fluid, dtype, var, kind):
    """A value for a fed variable: a pure function of its name, its shape and the kind."""
    level = var.lod_level or 0
    shape = [BATCH if d in (-1, None) else int(d) for d in var.shape]
    if level:
        shape[0] = sum(LENGTHS[kind])
    source = draw(var.name + kind)
    if dtype == "bool":
        array = source.rand(*shape) > 0.5
    elif "int" in dtype:
        array = source.randint(0, CLASSES, size=shape)
    elif kind == "line":
        array = source.standard_normal(shape)
    else:
        array = source.uniform(0.05, 0.95, shape)
    array = numpy.asarray(array).astype(dtype)
    if not level:
        return array
    lengths = [OUTER[kind], LENGTHS[kind]][2 - level :]
    return fluid.create_lod_tensor(array, lengths, fluid.CPUPlace())


def parameter(name, shape, dtype):
    return draw(name).uniform(0.1, 0.6, size=shape).astype(dtype)


def plain(value):
    """An array as JSON: dtype, shape, numbers to seven digits, and where its sequences end."""
    array = numpy.asarray(value)
    lod = [list(map(int, level)) for level in value.lod()] if hasattr(value, "lod") else []
    if array.dtype.kind == "f":
        numbers = [float(f"{number:.7g}") for number in array.reshape(-1)]
    else:
        numbers = [int(number) for number in array.reshape(-1)]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "lod": lod, "data": numbers}


def loss_of(fluid, outs):
    """The sum of y^2 (y + 1) over all elements of all results."""
    layers = fluid.layers
    wide = [layers.cast(v, "float32") for v in outs]
    return layers.sums([layers.reduce_sum(layers.square(v) * (v + 1.0)) for v in wide])


def built(fluid, dump, build):
    """The results of a use, and the gradients of whatever they depend on."""
    main = fluid.default_main_program()
    outs = [v for v in flat(build(fluid)) if hasattr(v, "name")]
    sloped = [v for v in outs if v.dtype is not None and not v.stop_gradient]
    sloped = [v for v in sloped if dump.dtype_name(v.dtype) in ("float32", "float64")]
    wrt = [v for v in main.global_block().vars.values() if v.is_data and not v.stop_gradient]
    wrt += [p for p in main.all_parameters() if p.trainable]
    if not sloped or not wrt:
        return outs, {}
    try:
        found = fluid.backward.gradients([loss_of(fluid, sloped)], wrt)
    except Exception:
        return outs, {}
    return outs, {w.name: g for w, g in zip(wrt, found) if g is not None}  # noqa: B905


def record(fluid, dump, build, kind):
    """Values and gradients of a use, or the refusal."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 7
    try:
        with fluid.scope_guard(scope), fluid.unique_name.guard():
            with fluid.program_guard(main, startup):
                outs, slopes = built(fluid, dump, build)
            return run(fluid, dump, main, startup, scope, kind, outs, slopes)
    except Exception as refusal:
        return {"error": type(refusal).__name__}


def run(fluid, dump, main, startup, scope, kind, outs, slopes):
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    exe.run(startup)
    for p in main.all_parameters():
        dtype = dump.dtype_name(p.dtype)
        if p.shape and dtype.startswith("float"):
            tensor = scope.find_var(p.name).get_tensor()
            tensor.set(parameter(p.name, p.shape, dtype), place)
    fed = [v for v in main.global_block().vars.values() if v.is_data]
    feed = {v.name: feed_of(fluid, dump.dtype_name(v.dtype), v, kind) for v in fed}
    names = [v.name for v in outs]

    def fetched(wanted):
        return exe.run(main, feed=feed, fetch_list=wanted, return_numpy=False)

    try:
        found = [plain(v) for v in fetched(names + [g.name for g in slopes.values()])]
    except Exception:  # gradients that are rows, or that the original cannot compute
        found = [plain(v) for v in fetched(names)[: len(names)]]
        return {"values": found, "gradients": None}
    gradients = dict(zip(slopes, found[len(names) :]))  # noqa: B905
    return {"values": found[: len(names)], "gradients": gradients}


def forked(*given):
    """As `record`, in a process of its own: the original may take the interpreter with it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        with os.fdopen(writer, "w") as out:
            json.dump(record(*given), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as given_back:
        text = given_back.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "crash"}


def main(module, path, table):
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "oracle")]
    dump, fluid = importlib.import_module("dump"), importlib.import_module(module)
    table_of = importlib.import_module("record").table_of  # a neighbour, when this is a script
    found = {
        name: {kind: forked(fluid, dump, build, kind) for kind in RANGES}
        for name, build in table_of(table).items()
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        out.write(text.encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

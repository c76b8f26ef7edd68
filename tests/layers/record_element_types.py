"""Which element types the layers take: every use is built and run with every type of its inputs.

    python tests/layers/record_element_types.py paddle.fluid OUT.json.gz USES.py...

(On CPython 3.7 or 3.8 with paddlepaddle 1.8.5; the tests build the same with bireme.) The inputs of
a use get each type in turn: one by one, and together where they share a type. `attempts.py` says
what the letters of the record mean.
"""

import importlib
import os
import sys
from contextlib import contextmanager

HERE = os.path.dirname(os.path.abspath(__file__))


@contextmanager
def declared_as(fluid, types, seen):
    """Data variables get other types, by name; `seen` gets the types that were asked for."""
    kept = fluid.layers.data, fluid.data

    def of_layers(name, shape, append_batch_size=True, dtype="float32", **more):
        seen[name] = str(dtype)
        return kept[0](name, shape, append_batch_size, dtype=types.get(name, dtype), **more)

    def plain(name, shape, dtype="float32", **more):
        seen[name] = str(dtype)
        return kept[1](name, shape, types.get(name, dtype), **more)

    fluid.layers.data, fluid.data = of_layers, plain
    try:
        yield
    finally:
        fluid.layers.data, fluid.data = kept


def built(fluid, build, types, seen):
    """The programs of a use with inputs of these types."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    guarded = fluid.program_guard(main, startup)
    with fluid.unique_name.guard(), guarded, declared_as(fluid, types, seen):
        build(fluid)
    return main, startup


def attempt(fluid, build, types):
    """The letter of one use."""
    attempts = importlib.import_module("attempts")
    try:
        main, startup = built(fluid, build, types, {})
    except Exception as error:
        return attempts.letter_of(error, built=False)
    try:
        run(fluid, main, startup)
    except Exception as error:
        return attempts.letter_of(error)
    return "."


def run(fluid, main, startup):
    dump, values = importlib.import_module("dump"), importlib.import_module("record_values")
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fed = [v for v in main.global_block().vars.values() if v.is_data]
        feed = {v.name: values.feed_of(fluid, dump.dtype_name(v.dtype), v, "unit") for v in fed}
        exe.run(main, feed=feed)


def trials(fluid, build, plan):
    for names, dtype in plan:
        yield attempt(fluid, build, {n: dtype for n in names})


def recorded(fluid, build):
    """The types of a use's inputs and what it takes; None if it does not run as it is."""
    attempts = importlib.import_module("attempts")
    types = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well
    if attempts.forked(trials, fluid, build, [((), "")]) != ["."]:
        return None
    built(fluid, build, {}, types)
    if not types:
        return None
    together = {tuple(sorted(n for n in types if types[n] == kind)) for kind in types.values()}
    changes = sorted(together | {(name,) for name in types})
    return {"types": types, "takes": attempts.rows_of(trials, changes, fluid, build)}


def main(module, out, *tables):
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "oracle")]
    fluid, table_of = importlib.import_module(module), importlib.import_module("record").table_of
    found = {}
    for table in tables:
        for name, build in table_of(table).items():
            known = recorded(fluid, build)
            if known is not None:
                where = os.path.basename(os.path.dirname(os.path.abspath(table)))
                found["/".join([where, os.path.basename(table)[:-3], name])] = known
    importlib.import_module("attempts").write(out, found)


if __name__ == "__main__":
    main(*sys.argv[1:])

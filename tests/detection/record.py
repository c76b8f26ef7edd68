"""Run every use and keep what it computes: by the tests, and once on Fluid 1.8.5.

    python tests/detection/record.py paddle.fluid OUT.npz tests.detection.uses

(On CPython 3.7 with paddlepaddle 1.8.5, from the repository's root.)
"""

import importlib
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def weights(name, shape):
    """Of the elements of a result, in the sum whose gradients are taken."""
    from tests.detection.uses import draw

    return draw("weights of " + name).uniform(0.5, 1.5, shape).astype("float32")


def record(fluid, name, use):
    """NAME/INDEX, and NAME/INDEX.lod, for every result; NAME/grad/VARIABLE for gradients."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        results, feed, (target, *sources) = _parts(use(fluid))
        fetched = list(results)
        if sources:
            loss = fluid.layers.reduce_sum(target * fluid.layers.cast(target > -1e30, "float32"))
            fetched += fluid.gradients([loss], sources)
        with fluid.scope_guard(fluid.Scope()):
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            for parameter in _drawn(main):
                cell = fluid.global_scope().find_var(parameter.name).get_tensor()
                cell.set(weights(parameter.name, parameter.shape) * 0.1, fluid.CPUPlace())
            values = exe.run(main, feed=feed, fetch_list=fetched, return_numpy=False)
    found = {}
    for i, value in enumerate(values):
        source = i - len(results)
        key = "%s/%d" % (name, i) if source < 0 else "%s/grad/%s" % (name, sources[source].name)
        found[key] = np.array(value)
        if value.lod():
            found[key + ".lod"] = np.array(value.lod()[-1], "int64")
    return found


def _drawn(main):
    """The parameters whose values are drawn: all of floats."""
    return [p for p in main.all_parameters() if p.name != "tree"]


def _parts(made):
    results, feed, differentiated = made
    return results, feed, differentiated or [None]


def main(module, path, uses="tests.detection.uses"):
    USES = importlib.import_module(uses).USES
    fluid = importlib.import_module(module)
    found = {}
    for name, use in sorted(USES.items()):
        try:
            found.update(record(fluid, name, use))
        except Exception as error:  # the original refuses; so must the reader of this file
            print(name, str(error)[-300:])
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

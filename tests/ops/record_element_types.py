"""Which element types operators take: each is run with every type of its inputs, on Fluid 1.8.5.

    python tests/ops/record_element_types.py cases CASES.json                      (with bireme)
    python tests/ops/record_element_types.py record CASES.json OUT.json.gz USES.py...

(On CPython 3.7 or 3.8 with paddlepaddle 1.8.5.) An operator is run as the cases of this suite give
it, or as it occurs in uses of layers: once for every type that these give to a slot, with what they
compute. Then the inputs of a slot, and those of all slots that share a type, get each type in turn;
`X[-1]` is the last variable of a slot X. `attempts.py` says what the letters of the record mean.
"""

import importlib
import json
import os
import sys

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))


# -- cases of this suite, written down by bireme -------------------------------------------------
def write_cases(path):
    sys.path.insert(0, os.path.dirname(os.path.dirname(HERE)))
    rig = importlib.import_module("tests.ops.rig")
    found = []
    for case in rig.cases():
        made = rig.Rig(case)
        op = made.program.global_block().ops[-1]
        values = dict(made.feed, **made.held)
        try:
            tensors = {name: plain(values[name]) for name in op.input_arg_names}
        except (AttributeError, TypeError, ValueError):
            continue
        attrs = {k: v for k, v in op.attrs.items() if not k.startswith(("op_", "bireme"))}
        try:
            json.dumps(attrs)
        except TypeError:
            continue
        slots = [
            {s: list(names) for s, names in p.items() if names} for p in (op.inputs, op.outputs)
        ]
        found.append(case_of(op.type, slots[0], slots[1], attrs, tensors))
    with open(path, "w") as out:
        json.dump(found, out)


def case_of(op, inputs, outputs, attrs, tensors):
    return {"op": op, "inputs": inputs, "outputs": outputs, "attrs": attrs, "tensors": tensors}


def plain(value):
    rows = getattr(value, "rows", None)
    array = numpy.asarray(value.value if rows is not None else value)
    if array.dtype == object:
        raise TypeError(array)
    lod = value.recursive_sequence_lengths() if hasattr(value, "offsets") else []
    found = {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.ravel().tolist()}
    if rows is not None:
        found.update(rows=numpy.asarray(rows).tolist(), height=value.height)
    return dict(found, lod=[list(map(int, level)) for level in lod])


# -- cases from uses of layers, run by Fluid -----------------------------------------------------
def cases_of_use(fluid, build):
    """Every operator of the main block of a use, with what it reads in one run."""
    values = importlib.import_module("record_values")
    dump = importlib.import_module("dump")
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        with fluid.program_guard(main, startup):
            made = build(fluid)
        block, exe = main.global_block(), fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fed = [v for v in block.vars.values() if v.is_data]
        brought = isinstance(made, tuple) and len(made) == 3 and isinstance(made[1], dict)
        for kind in values.RANGES[: 1 if brought else 2]:
            feed = (
                made[1]
                if brought
                else {v.name: values.feed_of(fluid, dump.dtype_name(v.dtype), v, kind) for v in fed}
            )
            for op in list(block.ops):
                found = one_case(fluid, exe, main, op, feed)
                if found:
                    yield found


def one_case(fluid, exe, main, op, feed):
    names = sorted(set(op.input_arg_names))
    if not names or any("@GRAD" in n for n in names) or op.has_attr("sub_block"):
        return None
    try:
        fetched = exe.run(main, feed=feed, fetch_list=names, return_numpy=False)
        tensors = {}
        for name, value in zip(names, fetched):  # noqa: B905
            array = numpy.asarray(value)
            tensors[name] = {
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "data": array.ravel().tolist(),
                "lod": value.recursive_sequence_lengths(),
            }
    except Exception:
        return None
    attrs = {}
    for name in op.attr_names:
        if not name.startswith("op_"):
            attrs[name] = op.attr(name)
    try:
        json.dumps(attrs)
    except TypeError:
        return None
    inputs = {s: op.input(s) for s in op.input_names if op.input(s)}
    outputs = {s: op.output(s) for s in op.output_names if op.output(s)}
    return case_of(op.type, inputs, outputs, attrs, tensors)


# -- trying --------------------------------------------------------------------------------------
def converted(array, dtype):
    """Values of another type that an operator can still use: no zeros to divide by."""
    if array.dtype.kind == "f" and dtype[0] in "uib" and dtype != "bool":
        return numpy.ceil(numpy.abs(array) * 3).clip(1, 100).astype(dtype)
    return array.astype(dtype)


def attempt(fluid, case, changed):
    """The letter of one run of a case, with the types of some variables changed."""
    main, scope = fluid.Program(), fluid.Scope()
    block = main.global_block()
    with fluid.scope_guard(scope), fluid.program_guard(main, fluid.Program()):
        try:
            for name, told in case["tensors"].items():
                array = numpy.array(told["data"], told["dtype"]).reshape(told["shape"])
                array = converted(array, changed.get(name, told["dtype"]))
                declare(fluid, block, name, told, array)
                hold(fluid, scope.var(name), told, array)
            for name in [n for names in case["outputs"].values() for n in names]:
                if not block.has_var(name):
                    block.create_var(name=name, dtype="float32")
            slots = [variables(block, case[part]) for part in ("inputs", "outputs")]
            attrs = dict(case["attrs"])
            block.append_op(type=case["op"], inputs=slots[0], outputs=slots[1], attrs=attrs)
            fluid.Executor(fluid.CPUPlace()).run(main)
        except Exception as error:
            return importlib.import_module("attempts").letter_of(error)
    return "."


def declare(fluid, block, name, told, array):
    kinds, rows = fluid.core.VarDesc.VarType, "rows" in told
    block.create_var(
        name=name,
        type=kinds.SELECTED_ROWS if rows else kinds.LOD_TENSOR,
        shape=[told["height"], *array.shape[1:]] if rows else list(array.shape),
        dtype=str(array.dtype),
        persistable=True,
        lod_level=len(told["lod"]),
    )


def hold(fluid, cell, told, array):
    """Put the value into the scope."""
    if "rows" in told:
        rows = cell.get_selected_rows()
        rows.set_rows(told["rows"])
        rows.set_height(told["height"])
        rows.get_tensor().set(array, fluid.CPUPlace())
        return
    cell.get_tensor().set(array, fluid.CPUPlace())
    if told["lod"]:
        cell.get_tensor().set_recursive_sequence_lengths(told["lod"])


def variables(block, slots):
    return {slot: [block.var(n) for n in names] for slot, names in slots.items()}


def in_place(case):
    """The case with outputs such as ParamOut and out_sum in the variables of Param and in_sum."""
    outputs = {}
    for slot, names in case["outputs"].items():
        source = slot[:-3] if slot.endswith("Out") else slot.replace("out_", "in_", 1)
        outputs[slot] = case["inputs"].get(source, names)
    return dict(case, outputs=outputs)


def columns(case):
    """The case with tensors of one column, as some losses want them."""
    tensors = {
        name: dict(told, shape=[len(told["data"]), 1]) for name, told in case["tensors"].items()
    }
    return dict(case, tensors=tensors)


def slot_types(case):
    """The type of every slot whose variables have one."""
    found = {}
    for slot, names in case["inputs"].items():
        kinds = {case["tensors"][n]["dtype"] for n in names}
        if len(kinds) == 1:
            found[slot] = kinds.pop()
    return found


def changes(case, types):
    """Slots that are changed together: each alone, all that share a type, and all; and the last
    variable of a slot.
    """
    together = {tuple(sorted(s for s in types if types[s] == kind)) for kind in types.values()}
    found = {(slot,) for slot in types} | together | {tuple(sorted(types))}
    return sorted(found | {(s + "[-1]",) for s in types if len(set(case["inputs"][s])) > 1})


def trials(fluid, case, plan):
    for slots, dtype in plan:
        names = {n: dtype for slot in slots for n in named(case, slot)}
        yield attempt(fluid, case, names)


def named(case, slot):
    """The variables of a slot; `X[-1]` is the last one of X."""
    return case["inputs"][slot[:-4]][-1:] if slot.endswith("[-1]") else case["inputs"][slot]


def recorded(fluid, cases):
    """What was found out about one operator, for every type that cases give to a slot."""
    attempts, found = importlib.import_module("attempts"), []
    known = set()  # type: ignore[var-annotated]  # read by Python 3.7 as well
    for case in cases:
        types = slot_types(case)
        if set(types.items()) <= known:
            continue
        for shaped in (case, in_place(case), columns(case)):
            if attempts.forked(trials, fluid, shaped, [((), "")]) == ["."]:
                takes = attempts.rows_of(trials, changes(shaped, types), fluid, shaped)
                attrs = {k: v for k, v in case["attrs"].items() if len(json.dumps(v)) < 20}
                found.append({"types": types, "takes": takes, "attrs": attrs})
                known |= set(types.items())
                break
    return found


def drawn():
    """Cases of operators that draw: no case of the suite compares what they give."""
    size = {"dtype": "int32", "shape": [1], "data": [2], "lod": []}
    for op in ("uniform_random", "gaussian_random", "randint"):
        attrs = {"dtype": 3 if op == "randint" else 5, "shape": [2, 2]}
        for slot, names in (("ShapeTensor", ["n"]), ("ShapeTensorList", ["n", "m"])):
            tensors = {name: size for name in names}
            yield case_of(op, {slot: names}, {"Out": ["out"]}, attrs, tensors)


def record(path, out, *tables):
    """Write what is found out; operators that the file has already are kept."""
    sys.path[:0] = [os.path.join(os.path.dirname(HERE), d) for d in ("oracle", "layers")]
    sys.path.append(os.path.dirname(os.path.dirname(HERE)))
    fluid, uses = importlib.import_module("paddle.fluid"), importlib.import_module("record")
    attempts = importlib.import_module("attempts")
    with open(path) as given:
        cases = json.load(given) + list(drawn())
    for table in tables:
        for build in uses.table_of(table).values():
            cases += attempts.forked(cases_of_use, fluid, build)
    found = attempts.read(out) if os.path.exists(out) else {}
    of = {}  # type: ignore[var-annotated]
    for case in cases:
        if case["inputs"] and case["op"] not in found:
            of.setdefault(case["op"], []).append(case)
    for op in sorted(of):
        known = recorded(fluid, sorted(of[op], key=lambda c: -len(c["inputs"]))[:60])
        if known:
            found[op] = known
    attempts.write(out, found)


if __name__ == "__main__":
    write_cases(sys.argv[2]) if sys.argv[1] == "cases" else record(*sys.argv[2:])

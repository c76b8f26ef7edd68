"""The defaults of the attributes of all operators, as Fluid 1.8.5 fills them in.

    python tests/ops/record_attributes.py OUT.json

(On CPython 3.7 or 3.8 with paddlepaddle 1.8.5.) A required attribute is given a value that the
operator accepts, and recorded as null. Each operator is asked in a process of its own: some end it.
"""

import importlib
import json
import os
import re
import sys

VALUES = {
    "BOOLEAN": True, "INT": 1, "LONG": 1, "FLOAT": 0.5, "STRING": "", "INTS": [1], "LONGS": [1],
    "FLOATS": [0.5], "STRINGS": ["a"],
}  # fmt: skip
ACCEPTED = {
    "variances": [0.1] * 4, "win_size": 2, "pooling_type": "max", "unpooling_type": "max",
    "functor_list": ["elementwise_add", "relu"], "dtype": 3,
}  # fmt: skip
COMMON = ("op_role", "op_role_var", "op_namescope", "op_callstack", "op_device")


def filled(fluid, type, given):
    """The operator's description after the defaults are filled in."""
    program = fluid.Program()
    op = program.global_block().desc.append_op()
    op.set_type(type)
    for name, value in given.items():
        if value == "BLOCK":
            op.set_block_attr(name, program.global_block().desc)
        else:
            op._set_attr(name, value)
    op.check_attrs()
    return op


def defaults(fluid, type, types):
    """Attribute to default; None for one that must be given."""
    given = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well
    while True:
        try:
            op = filled(fluid, type, given)
        except Exception as error:
            (name,) = re.findall(r"Attribute '(\w+)' is required", str(error))
            given[name] = ACCEPTED.get(name, VALUES.get(types[name], "BLOCK"))
            continue
        found = {n: op.attr(n) for n in op.attr_names() if n not in COMMON and n not in given}
        return dict(found, **dict.fromkeys(given))


def asked_apart(function):
    """What a function returns, run in a child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(function()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text)


def main(path):
    fluid = importlib.import_module("paddle.fluid")
    messages = importlib.import_module("paddle.fluid.proto.framework_pb2")
    found = {}
    for described in fluid.core.get_all_op_protos():
        op = messages.OpProto.FromString(bytes(described))
        types = {a.name: messages.AttrType.Name(a.type) for a in op.attrs}
        found[op.type] = asked_apart(lambda t=op.type, k=types: defaults(fluid, t, k))
    lines = [json.dumps(t) + ": " + json.dumps(found[t], sort_keys=True) for t in sorted(found)]
    with open(path, "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])

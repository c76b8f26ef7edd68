"""Programs recorded from Fluid 1.8.5, read back as bireme programs: the transpiler is tested
without layers.
"""

from typing import Any

from bireme.ir import Block, BlockRef, Operator, Parameter, Program, VarType

DTYPES = {
    "float32": VarType.FP32,
    "float64": VarType.FP64,
    "float16": VarType.FP16,
    "int64": VarType.INT64,
    "int32": VarType.INT32,
    "bool": VarType.BOOL,
    "uint8": VarType.UINT8,
}
Recorded = dict[str, Any]


def program_of(recorded: Recorded) -> Program:
    """The bireme program that a recorded one describes.

    Variables were recorded by name; those that operators initialise are declared in the order of
    their creation, which is the reverse of the operators' order (initialisers are prepended).
    """
    program = Program()
    program.random_seed = recorded["random_seed"]
    for entry in recorded["blocks"][1:]:
        program.add_block(entry["parent"])
    for entry, block in zip(recorded["blocks"], program.blocks, strict=True):
        written = [
            n for op in reversed(entry["ops"]) for names in op["outputs"].values() for n in names
        ]
        created = {name: i for i, name in reversed(list(enumerate(written)))}
        for var in sorted(entry["vars"], key=lambda v: created.get(v["name"], -1)):
            _declare(block, var)
        for op in entry["ops"]:
            block.append(_operator(op))
    return program


def _declare(block: Block, var: Recorded) -> None:
    fields = {
        "name": var["name"],
        "type": VarType[var["type"]],
        "shape": var["shape"],
        "dtype": DTYPES.get(var["dtype"] or ""),
        "lod_level": var["lod_level"],
        "persistable": var["persistable"],
    }
    if not var.get("param"):
        block.create_var(**fields)
        return
    rate = {"learning_rate": var["lr"]}
    param = Parameter(block, trainable=var["trainable"], optimize_attr=rate, **fields)
    block.vars[param.name] = param


def _operator(op: Recorded) -> Operator:
    attrs = {name: _attr(value) for name, value in op["attrs"].items()}
    inputs = {slot: tuple(names) for slot, names in op["inputs"].items()}
    outputs = {slot: tuple(names) for slot, names in op["outputs"].items()}
    return Operator(op["type"], inputs, outputs, attrs)


def _attr(value: Any) -> Any:
    if isinstance(value, dict):
        one = value.get("block")
        return BlockRef(one) if one is not None else tuple(map(BlockRef, value["blocks"]))
    return tuple(value) if isinstance(value, list) else value

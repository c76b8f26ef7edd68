"""A saved model, or a program with a scope, as an ONNX model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.places import CPUPlace
from bireme.arrays.values import LoDTensor
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.extras import library
from bireme.io import load_inference_model
from bireme.io.files import written
from bireme.io.inference import inference_program, without_feed_fetch
from bireme.io.variables import is_persistable
from bireme.ir import Block, Operator, Program, Variable, several_names
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope, global_scope, scope_guard
from bireme.version import __version__

from . import crf, losses, matrices, recurrent, sequences, shapes, unary, vision  # noqa: F401  # rows
from .graph import OPSET, Graph
from .table import CONVERSIONS, Call, place_of

__all__ = ["save_onnx", "to_onnx"]

IR_VERSION = 8  # of ONNX 1.12 and later
MOST = 2**31 - 1  # bytes of a protobuf message


def save_onnx(
    dirname: str,
    path: str | Path,
    model_filename: str | None = None,
    params_filename: str | None = None,
) -> Any:
    """Write what `save_inference_model` saved in `dirname` as an ONNX model; the ModelProto.

    Inputs and outputs have the names of feeds and targets. A feed `x` with a LoD level has a second
    input `x.offsets`, int64 [sequences + 1], and so has an output.

    Raises:
        ConfigError: onnx is not installed.
        FormatError: the saved model is missing or damaged.
        UnsupportedError: operators have no conversion; the message names each, with its place.
    """
    scope = Scope()
    with scope_guard(scope):
        executor = Executor(CPUPlace())
        loaded = load_inference_model(dirname, executor, model_filename, params_filename)
    program, feeds, targets = loaded
    model = _converted(program, feeds, [v.name for v in targets], scope)
    data = model.SerializeToString()
    with written(path) as file:
        file.write(data)
    return model


def to_onnx(
    program: Program,
    feeded_var_names: Sequence[str] | str,
    target_vars: Sequence[Variable] | Variable,
    scope: Scope | None = None,
) -> Any:
    """The ModelProto that computes `target_vars` from the fed variables, with the parameters of
    `scope`; see `save_onnx`.
    """
    feeds, names = several_names(feeded_var_names), several_names(target_vars)
    model = without_feed_fetch(inference_program(program, feeds, names))
    return _converted(*model, scope or global_scope())


def _without_copies(block: Block, targets: list[str]) -> list[str]:
    """Remove the `scale` that `save_inference_model` puts behind each target; returns the targets
    before them.
    """
    copies = {
        op.output("Out")[0]: op
        for op in block.ops
        if op.type == "scale" and op.output("Out")[0].startswith("save_infer_model/")
    }
    block.set_ops([op for op in block.ops if op not in copies.values()])
    return [copies[name].input("X")[0] if name in copies else name for name in targets]


def _converted(program: Program, feeds: list[str], targets: list[str], scope: Scope) -> Any:
    block = program.global_block()
    targets = _without_copies(block, targets)
    _refuse_missing(block)
    graph, arrays = Graph(), _arrays(block, scope)
    values: dict[str, str] = {}
    offsets: dict[str, str] = {}
    inputs = [_input(graph, block.var(name), values, offsets) for name in feeds]
    for name, array in arrays.items():
        values[name] = graph.constant(array, array.dtype.name, name)
    for index, op in enumerate(block.ops):
        CONVERSIONS[op.type](Call(op, index, block, graph, values, offsets, arrays))
        _pass_offsets_on(op, block, offsets)
    outputs = [_output(graph, block.var(name), values, offsets) for name in targets]
    return _model(graph, list(chain(*inputs)), list(chain(*outputs)))


def _refuse_missing(block: Block) -> None:
    """Name every operator without a conversion, each with its first place."""
    missing: dict[str, str] = {}
    for index, op in enumerate(block.ops):
        if op.type not in CONVERSIONS:
            missing.setdefault(op.type, place_of(op, index))
    if missing:
        raise UnsupportedError(
            f"no conversion to ONNX for {', '.join(missing)}",
            where="\n  ".join(missing.values()),
            hint="leave them out of the model, or add rows: see bireme.export.table",
        )


def _arrays(block: Block, scope: Scope) -> dict[str, Array]:
    """The persistable variables that operators read."""
    read = {name for op in block.ops for name in op.input_arg_names}
    found: dict[str, Array] = {}
    for name in sorted(read):
        var = block.var(name)
        if not is_persistable(var):
            continue
        cell = scope.find_var(name)
        value = None if cell is None else cell.get()
        if value is None:
            raise InvalidArgument(
                f"variable {name!r} has no value", hint="run the startup program in this scope"
            )
        value = value.array if isinstance(value, LoDTensor) else value
        if not hasattr(value, "__array__"):
            raise UnsupportedError(
                f"table {name!r} has rows by id, which ONNX does not have",
                hint="export a model whose tables declare their rows",
            )
        found[name] = np.asarray(to_host(value))
    return found


def _input(
    graph: Graph, var: Variable, values: dict[str, str], offsets: dict[str, str]
) -> list[Any]:
    values[var.name] = graph.name(var.name)
    found = [_described(graph, var, values[var.name])]
    if var.lod_level > 1:
        raise UnsupportedError(
            f"feed {var.name!r} has {var.lod_level} LoD levels, and ONNX inputs take one",
            hint="export a model of feeds with one level",
        )
    if var.lod_level:
        name = offsets[var.name] = graph.name(f"{var.name}.offsets")
        kind = graph.type_of("int64")
        found.append(graph.helper.make_tensor_value_info(name, kind, [f"{var.name}_offsets"]))
    return found


def _output(
    graph: Graph, var: Variable, values: Mapping[str, str], offsets: Mapping[str, str]
) -> list[Any]:
    if var.name not in values:
        raise UnsupportedError(
            f"target {var.name!r} is not computed by any conversion",
            hint="choose another target, or add rows: see bireme.export.table",
        )
    wanted = [(var.name, values[var.name])]
    if var.lod_level and var.name in offsets:
        wanted.append((f"{var.name}.offsets", offsets[var.name]))
    found = []
    for (name, value), dtype in zip(wanted, (str(var.numpy_dtype), "int64"), strict=False):
        computed = value in {out for node in graph.nodes for out in node.output}
        if name != value or not computed:
            value = graph.add("Identity", value, out=name)
        sizes = _sizes(var) if dtype != "int64" or name == var.name else [f"{name}_0"]
        found.append(graph.helper.make_tensor_value_info(value, graph.type_of(dtype), sizes))
    return found


def _described(graph: Graph, var: Variable, name: str) -> Any:
    kind = graph.type_of(str(var.numpy_dtype))
    return graph.helper.make_tensor_value_info(name, kind, _sizes(var))


def _sizes(var: Variable) -> list[int | str]:
    """The sizes of the dimensions, and names for those that are not known."""
    return [n if n >= 0 else f"{var.name}_{i}" for i, n in enumerate(var.shape)]


def _pass_offsets_on(op: Operator, block: Block, offsets: dict[str, str]) -> None:
    """Outputs with a LoD have that of the first input with one, unless a conversion said more."""
    given = next((offsets[name] for name in op.input_arg_names if name in offsets), None)
    for name in op.output_arg_names:
        if given is not None and block.has_var(name) and block.var(name).lod_level:
            offsets.setdefault(name, given)


def _read(nodes: Iterable[Any]) -> Iterator[str]:
    """The values that nodes and their sub-graphs read."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            yield from _read(attribute.g.node)


def _model(graph: Graph, inputs: list[Any], outputs: list[Any]) -> Any:
    read = set(_read(graph.nodes))
    constants = {name: array for name, array in graph.constants.items() if name in read}
    size = sum(array.nbytes for array in constants.values())
    if size > MOST - 2**20:
        raise UnsupportedError(
            f"the parameters are {size} bytes, and one ONNX file holds {MOST}",
            hint=f"export a part of the model: it takes {math.ceil(size / MOST)} files",
        )
    onnx = library("onnx", "onnx", "exporting to ONNX")
    from_array = library("onnx.numpy_helper", "onnx", "exporting to ONNX").from_array
    tensors = [from_array(array, name) for name, array in constants.items()]
    helper = graph.helper
    made = helper.make_graph(graph.nodes, "bireme", inputs, outputs, tensors)
    model = helper.make_model(
        made,
        producer_name="bireme",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(model)
    return model

"""Inference models: a pruned program and its parameters in one directory, compatible with Fluid
1.8.
"""

import warnings
from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import to_host
from bireme.errors import FormatError, UnsupportedError, WrongType
from bireme.ir import (
    Operator,
    Program,
    Variable,
    VarType,
    default_main_program,
    several,
    several_names,
    unique_name,
)
from bireme.ir.proto import from_bytes, to_bytes
from bireme.passes.pipeline import for_serving
from bireme.passes.prune import prune
from bireme.paths import joined, path_of, reported
from bireme.runtime.scope import Scope, global_scope, scope_guard

from .files import read_bytes, written
from .remote import elsewhere, whole_model
from .variables import is_persistable, load_vars, plain, save_job, save_persistables

__all__ = ["load_inference_model", "save_inference_model"]

_MODEL = "__model__"
_WRITING = frozenset(("recv_save", "checkpoint_notify"))
_ASKING = frozenset(("split_ids", "prefetch", "merge_ids", "distributed_lookup_table"))


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str] | str | None,
    target_vars: Sequence[Variable] | Variable | None,
    executor: Any,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
    optimize: bool = False,
) -> list[str]:
    """Save what is needed to compute `target_vars` from the fed variables; returns the names of the
    targets.

    A model of a trainer's program does not need servers: trainer 0 fetches the tables it uses.

    With `export_for_deployment=False` the whole program and all persistable variables are saved.
    With `optimize` batch_norm is folded into convolutions, dropout and other operators that change
    nothing are left out, and what is constant is computed; results differ by rounding only. The
    scope keeps its values.

    Raises:
        UnknownName: a feed or target is not in the program.
        UnsupportedError: the model looks tables up at servers.
    """
    feeds, targets = several_names(feeded_var_names), several(target_vars)
    missing = not targets and export_for_deployment
    if missing or not all(isinstance(t, Variable) for t in targets):
        raise WrongType("target_vars must be variables of the program")
    program = plain(main_program or default_main_program())
    _warn_of_counts(program)
    names = [t.name for t in targets]
    if not export_for_deployment:
        with written(joined(dirname, (model_filename or _MODEL) + ".main_program")) as file:
            file.write(to_bytes(program))
        if not program_only:
            save_persistables(executor, dirname, program, params_filename)
        return names
    whole = whole_model(program, {*feeds, *names})
    scope = global_scope()
    if optimize:
        model, scope = _optimized(executor, program, whole, feeds, names)
    else:
        model = inference_program(whole, feeds, names)
    _refuse_servers(model)
    _warn_of_unfed(model, feeds)
    with written(joined(dirname, model_filename or _MODEL)) as file:
        file.write(to_bytes(model))
    if not program_only:
        with scope_guard(scope):
            save_job(executor, dirname, program, model, is_persistable, params_filename)
    return names


def _optimized(
    executor: Any, program: Program, whole: Program, feeds: list[str], names: list[str]
) -> tuple[Program, Scope]:
    """The model after the passes for serving, and a scope with its values."""
    if elsewhere(program):
        raise UnsupportedError(
            "optimize=True for a model whose parameters servers hold",
            hint="save it, load it in one process, and save it again with optimize=True",
        )
    served = pruned(whole, feeds, names)
    scope = Scope(global_scope())
    values = {}
    for var in served.list_vars():
        cell = scope.find_var(var.name)
        dense = is_persistable(var) and var.type == VarType.LOD_TENSOR
        if dense and cell is not None and cell.value is not None:
            values[var.name] = to_host(cell.value)
    made = for_serving(served, {*feeds, *names}, values)
    for name in values.keys() & {v.name for v in made.program.list_vars()}:
        scope.var(name).put(values[name])
    return with_feed_fetch(made.program, feeds, names), scope


def _warn_of_counts(program: Program) -> None:
    """Warn that the counts of an AUC are saved like parameters."""
    if any(op.type == "auc" for op in program.global_block().ops):
        warnings.warn(
            "please ensure that you have set the auc states to zeros before saving inference model",
            stacklevel=3,
        )


def _warn_of_unfed(model: Program, feeds: Sequence[str]) -> None:
    """Warn of data that the targets need and that is not among the feeds."""
    block = model.global_block()
    written = {name for op in block.ops for name in op.output_arg_names}
    unfed = [v.name for v in block.vars.values() if v.is_data and v.name not in written]
    if unfed:
        warnings.warn(
            f"the targets need {unfed}, not among the feeds {list(feeds)}: the model cannot be run "
            "without them; add them to feeded_var_names",
            stacklevel=3,
        )


def _refuse_servers(model: Program) -> None:
    """Reject lookups on servers, which the loader of a model does not have."""
    for op in model.global_block().ops:
        if op.type in _ASKING:
            raise UnsupportedError(
                "an inference model that looks tables up at servers",
                where=f"op: {op}",
                hint="save the targets of a clone(for_test=True) made before transpile, in one "
                "process, after load_persistables of what the job saved",
            )


def _refuse_files(program: Program, where: str) -> None:
    """Reject a model that would write files, at paths of its own choice."""
    for op in (op for block in program.blocks for op in block.ops):
        if op.type in _WRITING:
            raise FormatError(
                f"a model for inference with an operator that writes files, {op.type}",
                where=where,
                hint="save it with save_inference_model",
            )


def load_inference_model(
    dirname: str,
    executor: Any,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> list[Any]:
    """Load a model into the current scope: [program, feed names, target variables].

    Raises:
        FormatError: the directory, the model or a parameter file is missing or damaged.
    """
    with reported():
        if not path_of(dirname).is_dir():
            raise FormatError(
                "there is no such directory", where=str(dirname), hint="check dirname"
            )
    path = joined(dirname, model_filename or _MODEL)
    try:
        program = from_bytes(read_bytes(path, "the model"))
    except FormatError as error:
        error.where = f"{path}" + (f": {error.where}" if error.where != str(path) else "")
        raise
    _refuse_files(program, str(path))
    program, feeds, targets = without_feed_fetch(program)
    load_vars(executor, dirname, program, predicate=is_persistable, filename=params_filename)
    return [program, feeds, [program.global_block().var(n) for n in targets]]


def inference_program(program: Program, feeds: Sequence[str], targets: Sequence[str]) -> Program:
    """The pruned test program with `feed` and `fetch` operators, as stored in `__model__`."""
    return with_feed_fetch(pruned(program, feeds, targets), feeds, targets)


def pruned(program: Program, feeds: Sequence[str], targets: Sequence[str]) -> Program:
    """The part of the test program that computes `targets`."""
    block = program.global_block()
    for name in feeds:
        block.var(name)
    return prune(program.clone(for_test=True), feeds, targets)


def with_feed_fetch(model: Program, feeds: Sequence[str], targets: Sequence[str]) -> Program:
    """`model`, with `feed` and `fetch` operators added in place."""
    block = model.global_block()
    block.create_var(name="feed", type=VarType.FEED_MINIBATCH, persistable=True)
    block.create_var(name="fetch", type=VarType.FETCH_LIST, persistable=True)
    for col, name in enumerate(feeds):
        block.insert(col, Operator("feed", {"X": ("feed",)}, {"Out": (name,)}, {"col": col}))
    with unique_name.guard():
        for col, name in enumerate(targets):
            out = unique_name.generate("save_infer_model/scale") + ".tmp_0"
            var = block.var(name)
            block.create_var(name=out, shape=var.shape, dtype=var.dtype, lod_level=var.lod_level)
            block.append_op(
                type="scale", inputs={"X": [name]}, outputs={"Out": [out]}, attrs={"scale": 1.0}
            )
            block.append(Operator("fetch", {"X": (out,)}, {"Out": ("fetch",)}, {"col": col}))
    return model


def without_feed_fetch(program: Program) -> tuple[Program, list[str], list[str]]:
    """The program without its `feed` and `fetch` operators, and the names of feeds and fetches."""
    block = program.global_block()
    feeds: dict[int, str] = {}
    fetches: dict[int, str] = {}
    kept = []
    for op in block.ops:
        if op.type == "feed":
            feeds[int(op.attrs.get("col", 0))] = op.output("Out")[0]
        elif op.type == "fetch":
            fetches[int(op.attrs.get("col", 0))] = op.input("X")[0]
        else:
            kept.append(op)
    block.set_ops(kept)
    for name in ("feed", "fetch"):
        if block.has_var(name):
            block._remove_var(name)
    for name in feeds.values():
        block.var(name).is_data = True
    return program, [feeds[c] for c in sorted(feeds)], [fetches[c] for c in sorted(fetches)]

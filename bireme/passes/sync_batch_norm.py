"""batch_norm with the statistics of all ranks' batches."""

from collections.abc import Iterator
from typing import Any

from bireme.ir import Operator, Program, VarType
from bireme.ir.names import grad_name
from bireme.ops.table import ROWS

from .fuse_bn_act import trains
from .notes import Notes

__all__ = ["sync_batch_norm"]

_NAME = "sync_batch_norm_pass"
_DX, _DY = grad_name("X"), grad_name("Y")


def sync_batch_norm(program: Program, notes: Notes) -> Program:
    """Each batch_norm in training becomes: sums of the batch, their sum over the ranks, and what
    follows from it; so does its gradient. Ranks then train as one with all their batches would.
    """
    if len(program._trainers_endpoints) <= 1:
        reason = "one rank has the whole batch; replicas of a process keep statistics of their own"
        notes.applied(_NAME, 0, reason)
        return program
    made = program.clone()
    block = made.global_block()
    ops: list[Operator] = []
    found = 0
    for op in block.ops:
        parts = list(_parts(op, f"sync_batch_norm_{found}.sums"))
        if len(parts) > 1:
            found += 1
            (sums,) = parts[1].output_arg_names
            block.create_var(name=sums, dtype=VarType.FP64, shape=_size(program, op))
        ops += parts
    block.set_ops(ops)
    notes.applied(_NAME, found, "" if found else "no batch_norm in training")
    return made if found else program


def _size(program: Program, op: Operator) -> tuple[int]:
    (channels,) = program.global_block().var(op.input("Scale")[0]).shape
    return (2 * channels + 1,)


def _parts(op: Operator, sums: str) -> Iterator[Operator]:
    if op.type == "batch_norm" and trains(op):
        given, outs = ("Scale", "Bias", "Mean", "Variance"), dict(op.outputs)
        outs.pop("ReserveSpace", None)
        yield _op(op, "bireme_batch_norm_sums", ("X",), {"Sums": (sums,)})
        yield _all_reduce(op, sums)
        yield _op(op, "bireme_batch_norm_of_sums", ("X", *given), outs, sums)
    elif op.type == "batch_norm_grad" and trains(op):
        own = {s: op.outputs[s] for s in (grad_name("Scale"), grad_name("Bias")) if s in op.outputs}
        saved = ("X", "SavedMean", "SavedVariance", _DY)
        yield _op(op, "bireme_batch_norm_grad_sums", saved, {"Sums": (sums,), **own})
        yield _all_reduce(op, sums)
        if op.output(_DX):
            outs = {_DX: op.outputs[_DX]}
            kind = "bireme_batch_norm_grad_of_sums"
            yield _op(op, kind, (*saved, "Scale"), outs, sums, op_role_var=())
    else:
        yield op


def _op(
    like: Operator, kind: str, slots: tuple[str, ...], outputs: Any, sums: str = "", **more: Any
) -> Operator:
    known = ROWS[kind].defaults
    kept = {k: v for k, v in like.attrs.items() if k in known or k.startswith("op_")}
    inputs = {slot: like.inputs[slot] for slot in slots}
    if sums:
        inputs["Sums"] = (sums,)
    return like.replaced(type=kind, inputs=inputs, outputs=outputs, attrs={**known, **kept, **more})


def _all_reduce(like: Operator, sums: str) -> Operator:
    kind = "c_allreduce_sum"
    attrs = {**ROWS[kind].defaults, "op_role": like.role, "ring_id": 0, "use_calc_stream": True}
    slots = {"X": (sums,)}, {"Out": (sums,)}
    return like.replaced(type=kind, inputs=slots[0], outputs=slots[1], attrs=attrs)

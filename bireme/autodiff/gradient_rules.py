"""The gradient operators that the rows' rules answer for a path of forward operators."""

from collections.abc import Collection, Sequence

from bireme.errors import UnsupportedError
from bireme.ir import EMPTY, Block, Operator, OpRole, grad_name
from bireme.ops.table import ROWS, GradOp, OpSpec, Row

from .gradient_list import add_repeated, as_value, values_read, without_stopped

__all__ = ["gradient_operators", "passes_gradient"]


def gradient_operators(
    block: Block,
    path: Sequence[Operator],
    stopped: Collection[str],
    begun: Collection[str],
    target: Block | None = None,
) -> list[Operator]:
    """What the rules of the operators answer, last operator first, without gradients of stopped
    variables.

    `begun` names the gradients that flow into the path from behind its end. `target` is the block
    that the operators are meant for, where it is not the block of the forward operators. The rule
    of a control-flow operator is asked with the gradient block of its sub-block.
    """
    dropped = {grad_name(n) for n in stopped}
    ops: list[Operator] = []
    flowing = set(begun)
    for op in reversed(path):
        row = ROWS.get(op.type)
        if row is None or row.grad is None:
            if row is not None and not passes_gradient(block, op, stopped):
                continue
            raise UnsupportedError(
                f"operator {op.type!r} has no gradient",
                where=f"op: {op}" + (f"\n  at {op.site}" if op.site else ""),
                hint="set stop_gradient=True on its output if none is meant",
            )
        asked = gradient_block(op, target or block, stopped) if op.block_refs() else block
        specs = (_without_idle(spec, row, flowing) for spec in row.grad(op, asked))
        own = {*op.input_arg_names, *op.output_arg_names}
        made = [_operator(spec, op, own, dropped) for spec in specs]
        flowing.update(n for gradient in made for n in gradient.output_arg_names)
        ops += made
    return [op for op in ops if any(n != EMPTY for n in op.output_arg_names)]


def gradient_block(op: Operator, parent: Block, stopped: Collection[str]) -> Block:
    """A new block below `parent` with the gradient operators of the block that `op` runs.

    Its variables are declared with those of `parent`.
    """
    program = parent.program
    forward = program.block(op.block_refs()[0].idx)
    block = program.add_block(parent.idx)
    block.forward_block_idx = forward.idx
    begun = {grad_name(n) for n in op.output_arg_names}
    made = gradient_operators(forward, forward.ops, stopped, begun, block)
    ops = add_repeated(made, forward.idx)
    block.set_ops(values_read(without_stopped(ops, {grad_name(n) for n in stopped}, ())))
    return block


def passes_gradient(block: Block, op: Operator, stopped: Collection[str]) -> bool:
    """Whether a gradient is expected to flow through an operator that has no rule for it."""
    inputs = (block._find_var_recursive(n) for n in op.input_arg_names if n not in stopped)
    floats = [v for v in inputs if v is not None and v.dtype is not None and 4 <= v.dtype <= 6]
    outputs = (block._find_var_recursive(n) for n in op.output_arg_names if n not in stopped)
    return bool(floats) and any(
        v is not None and v.dtype is not None and 4 <= v.dtype <= 6 for v in outputs
    )


def _without_idle(spec: OpSpec, row: Row, flowing: set[str]) -> OpSpec:
    """The spec without the gradients that its operator reads only where one flows back."""
    if not isinstance(row.grad, GradOp) or not row.grad.also:
        return spec
    also = {grad_name(s) for s in row.grad.also}
    inputs = {
        s: names
        for s, names in spec.inputs.items()
        if s not in also or not flowing.isdisjoint(names)
    }
    return spec._replace(inputs=inputs)


def _operator(
    spec: OpSpec, forward: Operator, own: Collection[str], dropped: Collection[str]
) -> Operator:
    """The operator of a spec; a gradient that is not wanted leaves a hole, or nothing in a single
    slot. `own` are the names of the forward operator.
    """
    outputs: dict[str, tuple[str, ...]] = {}
    for slot, names in spec.outputs.items():
        kept = tuple(EMPTY if n in dropped else n for n in names)
        outputs[slot] = () if all(n == EMPTY for n in kept) else kept
    attrs = {**spec.attrs, "op_role": OpRole.Backward, "op_role_var": ()}
    inputs = {s: tuple(as_value(n) if n in own else n for n in ns) for s, ns in spec.inputs.items()}
    return Operator(spec.type, inputs, outputs, attrs, forward.site)

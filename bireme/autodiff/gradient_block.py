"""Gradient operators written into a block: appended, declared, seeded with ones, given their roles.

Which operators these are is decided elsewhere.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from bireme.errors import ProgramError
from bireme.ir import EMPTY, Block, Operator, OpRole, Variable, VarType, grad_name
from bireme.ir.names import is_grad, without_grad
from bireme.ops.table import ROWS

__all__ = ["append_declared", "append_ones", "append_ones_like", "mark_loss", "set_role_vars"]

Callback = Callable[[Block, Operator, Mapping[str, str]], None]


def append_declared(
    block: Block,
    ops: Sequence[Operator],
    origin: Mapping[str, str],
    callbacks: Sequence[Callback],
    given: Collection[str] = (),
) -> None:
    """Append the operators, declare what they write, and infer shapes; readers of nothing are
    dropped.

    `given` are gradients that the operator which runs `block` brings along.
    """
    _declare_carried(block, ops, given)
    for op in ops:
        grads = [n for n in op.input_arg_names if is_grad(n)]
        missing = [n for n in grads if not (block._has_var_recursive(n) or n in given)]
        if grads and len(missing) == len(grads):
            continue
        if missing and op.type == "sum":
            op = op.replaced(inputs={"X": [n for n in grads if n not in missing]})
        for ref in op.block_refs():
            _declare_inner(block.program.block(ref.idx), op, origin, callbacks)
        for name in op.output_arg_names:
            if name != EMPTY and not block._has_var_recursive(name):
                block.create_var(name=name)
        block.append(op)
        _infer(block, op)
        for name in op.output_arg_names:
            if name != EMPTY:
                block._var_recursive(name).op = op
        for callback in callbacks:
            callback(block, op, origin)


def _declare_inner(
    block: Block, op: Operator, origin: Mapping[str, str], callbacks: Sequence[Callback]
) -> None:
    """Declare what the gradient block that `op` runs computes.

    A gradient that `op` brings along counts if a step leaves it for the next one, or if it belongs
    to a state.
    """
    made, block.ops = block.ops, []
    written = {n for inner in made for n in inner.output_arg_names}
    given = [n for n in op.input_arg_names + op.output_arg_names if is_grad(n) and n in written]
    given += [grad_name(state) for state in op.attrs.get("states", ())]
    append_declared(block, made, origin, callbacks, given)


def _declare_carried(block: Block, ops: Sequence[Operator], given: Collection[str]) -> None:
    """Declare the given gradients that are read first and written later."""
    carried = {n for op in ops for n in op.output_arg_names}.intersection(given)
    for op in ops:
        for name in carried.intersection(op.input_arg_names):
            var = block._find_var_recursive(without_grad(name))
            if var is not None and not block._has_var_recursive(name):
                block.create_var(
                    name=name,
                    type=var.type,
                    shape=var.shape,
                    dtype=var.dtype,
                    lod_level=var.lod_level,
                )
        carried.difference_update(op.output_arg_names)


def _infer(block: Block, op: Operator) -> None:
    row = ROWS.get(op.type)
    if row is not None and row.infer is not None:
        row.infer(op, block)


def append_ones(block: Block, target: str, callbacks: Sequence[Callback]) -> None:
    var = block._var_recursive(target)
    grad = block.create_var(name=grad_name(target), shape=var.shape, dtype=var.dtype)
    op = Operator(
        "fill_constant", {}, {"Out": (grad.name,)}, _ones(var, OpRole.Backward | OpRole.Loss)
    )
    grad.op = block.append(op)
    for callback in callbacks:
        callback(block, op, {grad.name: target})


def append_ones_like(block: Block, target: str, callbacks: Sequence[Callback]) -> None:
    """Ones in the shape that the target has when the program runs."""
    var = block._var_recursive(target)
    # Fluid leaves the dtype of this variable unset, which reads as bool
    shape = block.create_var(
        name=f"{target}_shape", shape=[len(var.shape) or 1], dtype=VarType.BOOL
    )
    grad = block.create_var(name=grad_name(target), shape=var.shape, dtype=var.dtype)
    role = {"op_role": OpRole.Backward}
    shape.op = block.append(Operator("shape", {"Input": (target,)}, {"Out": (shape.name,)}, role))
    inputs, outputs = {"ShapeTensor": (shape.name,)}, {"Out": (grad.name,)}
    grad.op = block.append(Operator("fill_constant", inputs, outputs, _ones(var, OpRole.Backward)))


def _ones(var: Variable, role: int) -> dict[str, object]:
    """The attributes of a fill_constant that makes ones like `var`."""
    dtype = VarType.FP32 if var.dtype is None else var.dtype
    return {
        "shape": var.shape,
        "value": 1.0,
        "dtype": int(dtype),
        "force_cpu": False,
        "op_role": role,
    }


def mark_loss(block: Block, name: str) -> None:
    """Give the operator that computes the loss its role.

    Raises:
        ProgramError: no operator writes this variable.
    """
    for index in range(len(block.ops) - 1, -1, -1):
        op = block.ops[index]
        if name in op.output_arg_names:
            block.put(index, op.with_attrs(op_role=op.role | OpRole.Loss))
            return
    raise ProgramError(
        f"no operator of block {block.idx} computes the loss {name!r}",
        block=block.idx,
        hint="call minimize under the program_guard of the program that holds the loss",
    )


def set_role_vars(block: Block, pairs: Sequence[tuple[str, str]]) -> None:
    """Note on the last writer of each gradient which parameter it belongs to."""
    last = {n: i for i, op in enumerate(block.ops) for n in op.output_arg_names}
    for param, grad in pairs:
        index = last.get(grad)
        if index is None:
            continue
        op = block.ops[index]
        if op.role & OpRole.Backward:
            block.put(index, op.with_attrs(op_role_var=(param, grad, *op.role_var)))

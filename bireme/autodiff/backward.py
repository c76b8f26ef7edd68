"""Automatic differentiation on programs: operators in, operators out.

The steps are pure functions over lists of operators; only the last one, `gradient_block`, writes to
a block. The rule of each operator stands in its row of the op table.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import (
    EMPTY,
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    grad_name,
    several,
    several_names,
)
from bireme.ops.table import ROWS, no_gradient

from .gradient_block import (
    append_declared,
    append_ones,
    append_ones_like,
    mark_loss,
    set_role_vars,
)
from .gradient_list import add_repeated, rename_taken, values_read, without_stale, without_stopped
from .gradient_rules import gradient_operators, passes_gradient
from .recompute import recomputing

__all__ = ["append_backward", "calc_gradient", "gradients"]

Callback = Callable[[Block, Operator, Mapping[str, str]], None]
Derive = Callable[[Block, Sequence[Operator], Collection[str], Collection[str]], list[Operator]]


def append_backward(
    loss: Variable,
    parameter_list: Iterable[Variable | str] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
    callbacks: Sequence[Callback] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Append the operators that compute d loss / d parameter, and return (parameter, gradient)
    pairs.

    `loss` is a variable with one element. `no_grad_set` names variables through which no gradient
    flows.

    Raises:
        InvalidArgument: the loss is not a scalar, or a listed parameter does not exist.
        ProgramError: nothing computes the loss.
        UnsupportedError: an operator between a parameter and the loss has no gradient.
    """
    block = loss.block
    program = block.program
    if loss.shape not in ((1,), ()):
        raise InvalidArgument(
            f"the loss {loss.name!r} has shape {list(loss.shape)}, not [1]",
            hint="reduce it with layers.mean or layers.reduce_sum",
        )
    mark_loss(block, loss.name)
    derive: Derive | None = None
    if checkpoints:
        derive = recomputing(several_names(checkpoints))
    stopped = several_names(no_grad_set)
    made = differentiate(block, {loss.name: None}, (), stopped, callbacks or (), derive)
    pairs = []
    for param in _parameters(program, parameter_list):
        name = made.get(param.name)
        if name is not None:
            pairs.append((param, block._var_recursive(name)))
    set_role_vars(block, [(p.name, g.name) for p, g in pairs])
    return pairs


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Iterable[Variable | str] | None = None,
) -> list[Variable | None]:
    """The gradients of `targets` with respect to `inputs`; None where an input does not matter.

    `target_gradients` weight the targets (default: ones). Shapes are those of the inputs.
    """
    outs, ins = several(targets), several(inputs)
    weights = several(target_gradients) if target_gradients is not None else [None] * len(outs)
    if len(weights) != len(outs):
        raise InvalidArgument(f"{len(outs)} targets but {len(weights)} target gradients")
    block = outs[0].block
    seeds = {t.name: None if w is None else w.name for t, w in zip(outs, weights, strict=True)}
    stopped = several_names(no_grad_set)
    made = differentiate(block, seeds, [v.name for v in ins], stopped, (), seed=append_ones_like)
    found = [made.get(v.name) for v in ins]
    return [None if name is None else block._var_recursive(name) for name in found]


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Any = None,
    no_grad_set: Any = None,
) -> Any:
    """`gradients` as it was called before 1.5: a variable for one input, a list for several."""
    found = gradients(targets, inputs, target_gradients, no_grad_set)
    return found[0] if len(found) == 1 else found


def differentiate(
    block: Block,
    targets: Mapping[str, str | None],
    inputs: Collection[str],
    no_grad: Collection[str],
    callbacks: Sequence[Callback],
    derive: Derive | None = None,
    seed: Callable[[Block, str, Sequence[Callback]], None] | None = None,
) -> dict[str, str]:
    """Append the backward operators; the result maps each variable to the name of its gradient.

    `targets` maps a target to the variable that holds its gradient, or None for ones. `derive`
    makes the operators from the path (default: `gradient_operators`), `seed` the ones.
    """
    stopped = stopped_variables(block.program, no_grad) - set(inputs)
    path = operators_between(block, targets, inputs, stopped)
    stopped |= without_use(path, targets, inputs, stopped, block)
    start = len(block.ops)
    renames = {}
    for target, weight in targets.items():
        if weight is None:
            (seed or append_ones)(block, target, callbacks)
        else:
            renames[grad_name(target)] = weight
    begun = set(map(grad_name, targets))
    ops = (derive or gradient_operators)(block, path, stopped, begun)
    seeds = {name for op in block.ops[start:] for name in op.output_arg_names}
    taken = set(block.vars) - seeds
    ops, unmade = without_stale(ops, taken, {*seeds, *renames})
    ops = add_repeated(ops, block.idx)
    dead = {grad_name(n) for n in stopped} | unmade
    ops = without_stopped(ops, dead, set(map(grad_name, inputs)))
    ops, renames = rename_taken(ops, taken, renames)
    ops = values_read(ops)
    origin = {renames.get(grad_name(n), grad_name(n)): n for n in _forward_names(path, inputs)}
    append_declared(block, ops, origin, callbacks)
    made = {n: g for g, n in origin.items() if block._has_var_recursive(g)}
    produced = {n for op in block.ops[start:] for n in op.output_arg_names} | set(renames.values())
    return {n: g for n, g in made.items() if g in produced}


# -- which operators matter --------------------------------------------------------------------
def stopped_variables(program: Program, no_grad: Collection[str]) -> set[str]:
    """The variables through which no gradient flows."""
    stopped = {v.name for v in program.list_vars() if v.stop_gradient}
    stopped |= {p.name for p in program.all_parameters() if not p.trainable}
    return stopped | set(no_grad)


def operators_between(
    block: Block, targets: Collection[str], inputs: Collection[str], stopped: Collection[str]
) -> list[Operator]:
    """The operators on a path from an input (or from anywhere) to a target, in program order."""
    path = list(block.ops)
    if inputs:
        reached = set(inputs)
        forward = []
        for op in path:
            if reached.intersection(op.input_arg_names) and _carries_gradient(block, op, stopped):
                forward.append(op)
                reached.update(n for n in op.output_arg_names if n not in stopped)
        path = forward
    wanted = set(targets)
    kept = []
    for op in reversed(path):
        if wanted.intersection(op.output_arg_names) and _carries_gradient(block, op, stopped):
            kept.append(op)
            wanted.update(n for n in op.input_arg_names if n not in stopped)
    return kept[::-1]


def _carries_gradient(block: Block, op: Operator, stopped: Collection[str]) -> bool:
    """Whether what flows into an operator matters; one that lacks its rule does, to be refused."""
    row = ROWS.get(op.type)
    if row is None or row.grad is None:
        return row is None or passes_gradient(block, op, stopped)
    return row.grad is not no_gradient


def without_use(
    path: Sequence[Operator],
    targets: Collection[str],
    inputs: Collection[str],
    stopped: Collection[str],
    block: Block,
) -> set[str]:
    """Outputs that no operator of the path uses: their gradient is zero, not missing."""
    used, idle = set(targets), set()
    for op in reversed(path):
        if not op.block_refs():
            idle |= {
                n
                for n in op.output_arg_names
                if n not in used and n not in op.input_arg_names and n not in inputs
            }
        used.update(n for n in op.input_arg_names if n not in stopped)
    return {n for n in idle if n != EMPTY and block._has_var_recursive(n)}


# -- names ------------------------------------------------------------------------------------
def _parameters(program: Program, wanted: Iterable[Variable | str] | None) -> list[Parameter]:
    if wanted is None:
        return [p for p in program.all_parameters() if p.trainable]
    block = program.global_block()
    found = [block._var_recursive(n) for n in several_names(wanted)]
    for var in found:
        if not isinstance(var, Parameter):
            raise InvalidArgument(f"{var.name!r} in parameter_list is not a parameter")
    return [p for p in found if isinstance(p, Parameter)]


def _forward_names(path: Sequence[Operator], inputs: Collection[str]) -> list[str]:
    names = dict.fromkeys(inputs)
    for op in path:
        names.update(
            dict.fromkeys(n for n in op.input_arg_names + op.output_arg_names if n != EMPTY)
        )
    return list(names)

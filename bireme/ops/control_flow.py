"""Control flow: conditional blocks, loops, recurrences, and choosing between variables.

The kernels run sub-blocks through the control context and know nothing else of the runtime. A
finished step keeps what its gradient block reads; steps of a loop also remember what the loop's
variables were when the step ran.
"""

from typing import Any

from bireme.arrays.namespaces import to_host
from bireme.arrays.values import LoDTensorArray
from bireme.ir import EMPTY, Block, Operator, grad_name

from .carried import (
    Ran,
    added,
    gradients_like_inputs,
    outer_seeds,
    pairs,
    plain,
    set_total,
    size,
    with_gradient_block,
    zeros_like,
)
from .table import Infer, OpSpec, op


# -- conditional_block ------------------------------------------------------------------------
def conditional_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    """`block` already holds the gradient operators of the branch."""
    attrs = with_gradient_block(operator, block)
    attrs.pop("skip_eager_deletion_vars", None)
    outs = operator.output("Out")
    return [
        OpSpec(
            "conditional_block_grad",
            {
                "Cond": operator.input("Cond"),
                "Input": operator.input("Input"),
                "Out": outs,
                "Out@GRAD": [grad_name(n) for n in outs],
                "Scope": operator.output("Scope"),
            },
            {"Cond@GRAD": [], "Input@GRAD": [grad_name(n) for n in operator.input("Input")]},
            attrs,
        )
    ]


@op("conditional_block", grad=conditional_gradient, control=True, returns="Out Scope")
def conditional_block(control: Any, is_scalar_condition: bool) -> None:
    if is_scalar_condition:
        taken = control.truth("Cond")
    else:
        taken = all(size(value) != 0 for value in control.read_all("Cond"))
    control.write("Scope", [Ran(control.run(), {}, {})] if taken else [])


@op("conditional_block_infer", control=True, returns="Out Scope")
def conditional_block_infer(control: Any, is_scalar_condition: bool) -> None:
    conditional_block(control, is_scalar_condition)


@op(
    "conditional_block_grad",
    infer=gradients_like_inputs,
    control=True,
    ins={"Cond": "*", "Input": "*", "Out": "*", "Out@GRAD": "*", "Scope": ""},
    outs={"Cond@GRAD": "*", "Input@GRAD": "*"},
    attrs={"is_scalar_condition": False, "sub_block": None},
    returns="Cond@GRAD Input@GRAD",
)
def conditional_block_grad(control: Any) -> None:
    """A branch that was not taken has zero gradients."""
    steps = control.read("Scope")
    env = None
    if steps:
        seeds = outer_seeds(control, control.op.input("Out"), control.op.input("Out@GRAD"))
        env = control.run(inside=steps[0].env, given=seeds)
    for name, target in pairs(control.op, "Input", "Input@GRAD"):
        grad = None if env is None else env.get(grad_name(name))
        if grad is None:
            grad = zeros_like(control.get(name))
        if grad is not None:
            control.set(target, grad)


# -- while ------------------------------------------------------------------------------------
def while_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    """`block` already holds the gradient operators of the body."""
    seeds = _read_before_written(block)
    written = {name for o in block.ops for name in o.output_arg_names}
    grads = [grad_name(n) for n in operator.output("Out") if grad_name(n) in seeds]
    return [
        OpSpec(
            "while_grad",
            {
                "X": operator.input("X"),
                "Out": operator.output("Out"),
                "Out@GRAD": grads,
                "StepScopes": operator.output("StepScopes"),
            },
            {
                "X@GRAD": [
                    grad_name(n) if grad_name(n) in written else EMPTY for n in operator.input("X")
                ]
            },
            {
                **with_gradient_block(operator, block),
                "original_output_grad": tuple(grads),
                "bireme.counters": _counters(block.program.block(block.forward_block_idx)),
            },
        )
    ]


def _counters(body: Block) -> tuple[str, ...]:
    """Variables that the body counts up and its gradient counts down again."""
    counting = (o for o in body.ops if o.type == "increment")
    return tuple(o.output("Out")[0] for o in counting if o.input("X") == o.output("Out"))


def _read_before_written(block: Block) -> set[str]:
    found: set[str] = set()
    written: set[str] = set()
    for operator in block.ops:
        found.update(n for n in operator.input_arg_names if n not in written)
        written.update(operator.output_arg_names)
    return found


@op("while", grad=while_gradient, control=True, returns="Out StepScopes")
def while_(control: Any, need: frozenset[str]) -> None:
    steps: list[Ran] = []
    carried = _carried(control.op)
    keep = "StepScopes" in need
    while control.truth("Condition"):
        before = {name: control.get(name) for name in carried} if keep else {}
        env = control.run()
        if keep:
            steps.append(Ran(env, before, {name: env.get(name) for name in carried}))
    control.write("StepScopes", steps)


def _carried(operator: Operator) -> list[str]:
    """Variables that the body both reads and writes."""
    reads = set(operator.input("X"))
    return [name for name in operator.output("Out") if name in reads]


def _seen(step: Ran, counters: Any) -> dict[str, Any]:
    """The loop's variables as the gradient of a step must see them: as the step did.

    Counters start from their value after the step, because the gradient block counts them down.
    """
    return {n: step.after[n] if n in counters else v for n, v in step.before.items()}


@op(
    "while_grad",
    infer=gradients_like_inputs,
    control=True,
    ins={"X": "*", "Out": "*", "Out@GRAD": "*", "StepScopes": ""},
    outs={"X@GRAD": "*"},
    attrs={"is_test": False, "original_output_grad": (), "bireme.counters": (), "sub_block": None},
)
def while_grad(control: Any) -> None:
    operator = control.op
    flowing = dict(
        zip(operator.attrs["original_output_grad"], operator.input("Out@GRAD"), strict=True)
    )
    seeds = {inner: control.get(outer) for inner, outer in flowing.items()}
    for name in operator.input("Out"):  # what nobody reads after the loop has a gradient of zero
        if seeds.get(grad_name(name), 0) is None:
            seeds[grad_name(name)] = zeros_like(control.get(name))
    arrays = _array_gradients(control, seeds)
    counters = operator.attrs.get("bireme.counters", ())
    totals: dict[str, Any] = {}
    inner_of = {grad_name(n): target for n, target in pairs(operator, "X", "X@GRAD")}
    outs = {grad_name(n) for n in operator.input("Out")}
    env: Any = None
    for step in reversed(control.read("StepScopes") or []):
        given = {**_seen(step, counters), **seeds, **arrays}
        env = control.run(inside=step.env, given={k: v for k, v in given.items() if v is not None})
        for inner in inner_of:
            if inner in arrays:
                continue
            grad = env.get(inner)
            totals[inner] = grad if inner in outs else added(totals.get(inner), grad)
        seeds = {n: totals.get(n) if n in inner_of else zeros_like(v) for n, v in seeds.items()}
    for name, target in pairs(operator, "X", "X@GRAD"):
        set_total(control, name, target, {**totals, **arrays}, seeds)
    for name in counters if env is not None else ():
        control.set(name, env.get(name))


def _array_gradients(control: Any, seeds: dict[str, Any]) -> dict[str, LoDTensorArray]:
    """One gradient array for all steps, for every array that the body reads or writes."""
    operator = control.op
    found: dict[str, LoDTensorArray] = {}
    wanted = {n for n, _ in pairs(operator, "X", "X@GRAD")}
    wanted |= {n for n in operator.input("Out") if grad_name(n) in seeds}
    for name in [*operator.input("X"), *operator.input("Out")]:
        inner = grad_name(name)
        if name in wanted and isinstance(control.get(name), LoDTensorArray):
            given = seeds.get(inner)
            found[inner] = given if given is not None else LoDTensorArray()
    return found


# -- choosing ---------------------------------------------------------------------------------
def _select_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": [grad_name(n) for n in operator.output("Out")], "Mask": operator.input("Mask")}
    return [
        OpSpec("select_output", inputs, {"Out": [grad_name(n) for n in operator.input("X")]}, {})
    ]


def _first_of(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


@op("select_input", infer=_first_of, grad=_select_gradient, control=True)
def select_input(control: Any) -> None:
    names = control.op.input("X")
    control.write("Out", control.get(names[_chosen(control)]))


def _unselect_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    inputs = {"X": [grad_name(n) for n in operator.output("Out")], "Mask": operator.input("Mask")}
    return [
        OpSpec("select_input", inputs, {"Out": [grad_name(n) for n in operator.input("X")]}, {})
    ]


def _each_like_input(ctx: Infer) -> None:
    for i in range(len(ctx.op.output("Out"))):
        ctx.set("Out", like=ctx.x("X"), index=i)


@op("select_output", infer=_each_like_input, grad=_unselect_gradient, control=True)
def select_output(control: Any) -> None:
    """Only the chosen output gets the value; what reads the others was not taken either."""
    names = control.op.output("Out")
    control.set(names[_chosen(control)], control.read("X"))


def _chosen(control: Any) -> int:
    return int(to_host(plain(control.read("Mask"))).reshape(-1)[0])

"""Control flow: conditional blocks, loops, recurrences, and choosing between variables.

The kernels run sub-blocks through the control context and know nothing else of the runtime. A
finished step keeps what its gradient block reads; steps of a loop also remember what the loop's
variables were when the step ran.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from bireme.ir import EMPTY, Block, BlockRef, Operator, grad_name
from bireme.runtime.arrays import Array, namespace_of, to_host
from bireme.runtime.values import LoDTensor, LoDTensorArray, SelectedRows

from .table import Infer, OpSpec, op


class Ran(NamedTuple):
    """A step that has run: its values, and what the variables it changes were before and after."""

    env: Any
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def gradients_like_inputs(ctx: Infer) -> None:
    """A gradient has shape, dtype and kind of its variable."""
    for slot, names in ctx.op.outputs.items():
        for i, name in enumerate(names):
            origin = ctx.block._find_var_recursive(name.partition("@GRAD")[0])
            if origin is not None:
                ctx.set(slot, like=origin, type=origin.type, index=i)


def _with_gradient_block(operator: Operator, block: Block) -> dict[str, Any]:
    return {**operator.attrs, "sub_block": BlockRef(block.idx)}


# -- conditional_block ------------------------------------------------------------------------
def conditional_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    """`block` already holds the gradient operators of the branch."""
    attrs = _with_gradient_block(operator, block)
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
        taken = all(_size(value) != 0 for value in control.read_all("Input"))
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
        seeds = _outer_seeds(control, control.op.input("Out"), control.op.input("Out@GRAD"))
        env = control.run(inside=steps[0].env, given=seeds)
    for name, target in _pairs(control.op, "Input", "Input@GRAD"):
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
                **_with_gradient_block(operator, block),
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
    arrays = _array_gradients(control, seeds)
    counters = operator.attrs.get("bireme.counters", ())
    totals: dict[str, Any] = {}
    inner_of = {grad_name(n): target for n, target in _pairs(operator, "X", "X@GRAD")}
    outs = {grad_name(n) for n in operator.input("Out")}
    env = None
    for step in reversed(control.read("StepScopes") or []):
        given = {**_seen(step, counters), **seeds, **arrays}
        env = control.run(inside=step.env, given={k: v for k, v in given.items() if v is not None})
        for inner in inner_of:
            if inner in arrays:
                continue
            grad = env.get(inner)
            totals[inner] = grad if inner in outs else added(totals.get(inner), grad)
        seeds = {n: totals.get(n) if n in inner_of else zeros_like(v) for n, v in seeds.items()}
    for name, target in _pairs(operator, "X", "X@GRAD"):
        _set_total(control, name, target, {**totals, **arrays}, seeds)
    for name in counters if env is not None else ():
        control.set(name, env.get(name))


def _set_total(control: Any, name: str, target: str, totals: Any, seeds: Any) -> None:
    inner = grad_name(name)
    value = totals.get(inner)
    if value is None:
        value = seeds.get(inner)
    if value is None:
        value = zeros_like(control.get(name))
    if value is not None:
        control.set(target, value)


def _array_gradients(control: Any, seeds: dict[str, Any]) -> dict[str, LoDTensorArray]:
    """One gradient array for all steps, for every array that the body reads or writes."""
    operator = control.op
    found: dict[str, LoDTensorArray] = {}
    wanted = {n for n, _ in _pairs(operator, "X", "X@GRAD")}
    wanted |= {n for n in operator.input("Out") if grad_name(n) in seeds}
    for name in [*operator.input("X"), *operator.input("Out")]:
        inner = grad_name(name)
        if name in wanted and isinstance(control.get(name), LoDTensorArray):
            given = seeds.get(inner)
            found[inner] = given if given is not None else LoDTensorArray()
    return found


# -- recurrent --------------------------------------------------------------------------------
def recurrent_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    """`block` already holds the gradient operators of one step."""
    forward = {s: operator.input(s) for s in ("inputs", "initial_states", "parameters")}
    outputs = operator.output("outputs")
    return [
        OpSpec(
            "recurrent_grad",
            {
                **forward,
                "outputs": outputs,
                "outputs@GRAD": [grad_name(n) for n in outputs],
                "step_scopes": operator.output("step_scopes"),
                "step_scopes@GRAD": operator.output("step_scopes"),
            },
            {grad_name(s): [grad_name(n) for n in names] for s, names in forward.items()},
            _with_gradient_block(operator, block),
        )
    ]


def _times(control: Any, reverse: bool) -> Iterator[int]:
    length = len(control.get(control.op.input("inputs")[0]))
    return iter(range(length - 1, -1, -1) if reverse else range(length))


@op("recurrent", grad=recurrent_gradient, control=True, returns="outputs step_scopes")
def recurrent(xp: Array, control: Any, reverse: bool, need: frozenset[str]) -> None:
    operator = control.op
    inputs = {name: control.get(name) for name in operator.input("inputs")}
    ex_states, states = operator.attrs["ex_states"], operator.attrs["states"]
    memory = dict(zip(ex_states, control.read_all("initial_states"), strict=True))
    steps: list[Ran] = []
    results: dict[str, list[Any]] = {name: [] for name in operator.output("outputs")}
    for t in _times(control, reverse):
        given = {name: value[t] for name, value in inputs.items()}
        env = control.run(given={**given, **memory})
        memory = {ex: env.get(new) for ex, new in zip(ex_states, states, strict=True)}
        for name, kept in results.items():
            kept.append(_plain(env.get(name)))
        steps.append(Ran(env, {}, {}))
    for name, kept in results.items():
        control.set(name, xp.stack(kept[::-1] if reverse else kept))
    control.write("step_scopes", steps if "step_scopes" in need else [])


@op(
    "recurrent_grad",
    infer=gradients_like_inputs,
    control=True,
    ins={
        "inputs": "*",
        "initial_states": "*",
        "parameters": "*",
        "outputs": "*",
        "outputs@GRAD": "*",
        "step_scopes": "",
        "step_scopes@GRAD": "",
    },
    outs={"inputs@GRAD": "*", "initial_states@GRAD": "*", "parameters@GRAD": "*"},
    attrs={"ex_states": (), "states": (), "reverse": False, "has_states": False, "is_train": True},
    returns="inputs@GRAD initial_states@GRAD parameters@GRAD",
)
def recurrent_grad(xp: Array, control: Any, reverse: bool) -> None:
    operator = control.op
    ex_states, states = operator.attrs["ex_states"], operator.attrs["states"]
    seeds = _outer_seeds(control, operator.input("outputs"), operator.input("outputs@GRAD"))
    parts: dict[str, list[Any]] = {name: [] for name in operator.input("inputs")}
    totals: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    steps = control.read("step_scopes")
    for t, step in zip(_times(control, not reverse), reversed(steps), strict=True):
        given = {name: value[t] for name, value in seeds.items()}
        env = control.run(inside=step.env, given={**given, **memory})
        found = zip(states, ex_states, strict=True)
        memory = {grad_name(s): env.get(grad_name(ex)) for s, ex in found}
        memory = {name: value for name, value in memory.items() if value is not None}
        for name, kept in parts.items():
            kept.append(env.get(grad_name(name)))
        for name in operator.input("parameters"):
            totals[name] = added(totals.get(name), env.get(grad_name(name)))
    for name, state in zip(operator.input("initial_states"), states, strict=True):
        totals[name] = memory.get(grad_name(state))
    for name, kept in parts.items():
        totals[name] = _stacked(xp, kept if reverse else kept[::-1])
    for slot in ("inputs", "initial_states", "parameters"):
        for name, target in _pairs(operator, slot, grad_name(slot)):
            _set_total(control, name, target, {grad_name(n): v for n, v in totals.items()}, {})


def _stacked(xp: Array, parts: list[Any]) -> Any:
    return None if any(p is None for p in parts) else xp.stack([_plain(p) for p in parts])


def _like_input(ctx: Infer) -> None:
    ctx.set("Out", like=ctx.x("X"))


def _memory_gradient(operator: Operator, block: Block) -> list[OpSpec]:
    x, out = operator.input("X"), operator.output("Out")
    inputs = {"X": x, "Out": out, "Out@GRAD": [grad_name(n) for n in out]}
    return [
        OpSpec(
            "rnn_memory_helper_grad", inputs, {"X@GRAD": [grad_name(n) for n in x]}, operator.attrs
        )
    ]


@op("rnn_memory_helper", infer=_like_input, grad=_memory_gradient)
def rnn_memory_helper(xp: Array, X: Array) -> Array:
    return X


@op(
    "rnn_memory_helper_grad",
    infer=gradients_like_inputs,
    ins={"X": "", "Out": "", "Out@GRAD": ""},
    outs={"X@GRAD": ""},
    attrs={"dtype": 5},
)
def rnn_memory_helper_grad(xp: Array, X: Array, dOut: Array) -> Array:
    """The last step has no later step that would give it a gradient."""
    return xp.zeros_like(X) if dOut is None else dOut


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
    return int(to_host(_plain(control.read("Mask"))).reshape(-1)[0])


# -- values -----------------------------------------------------------------------------------
def _pairs(operator: Operator, slot: str, grad_slot: str) -> list[tuple[str, str]]:
    """(variable, its gradient) for every wanted gradient of a slot."""
    found = zip(operator.input(slot), operator.output(grad_slot), strict=False)
    return [(name, target) for name, target in found if target != EMPTY]


def _outer_seeds(control: Any, names: list[str], grads: list[str]) -> dict[str, Any]:
    """Gradients of outputs under the names by which the gradient block reads them."""
    found = {grad_name(n): control.get(g) for n, g in zip(names, grads, strict=False) if g != EMPTY}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> Array:
    return value.array if isinstance(value, LoDTensor) else value


def _size(value: Any) -> int:
    if value is None or isinstance(value, LoDTensorArray | SelectedRows):
        return 1
    return int(getattr(_plain(value), "size", 1))


def zeros_like(value: Any) -> Any:
    """Zeros in the shape of a floating tensor; None for anything else."""
    if isinstance(value, LoDTensor):
        return LoDTensor(zeros_like(value.array), value.offsets)
    if value is None or getattr(value, "dtype", None) is None or value.dtype.kind != "f":
        return None
    return namespace_of(value).zeros_like(value)


def added(total: Any, part: Any) -> Any:
    """The sum of two gradients, either of which may be missing."""
    if part is None or total is None:
        return total if part is None else part
    if isinstance(total, SelectedRows) and isinstance(part, SelectedRows):
        xp = namespace_of(total.value)
        rows = xp.concatenate([total.rows, part.rows])
        return SelectedRows(rows, xp.concatenate([total.value, part.value]), total.height)
    total, part = (v.to_dense() if isinstance(v, SelectedRows) else v for v in (total, part))
    if isinstance(total, LoDTensor):
        return LoDTensor(total.array + _plain(part), total.offsets)
    return total + _plain(part)

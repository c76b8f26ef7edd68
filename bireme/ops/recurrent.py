"""Recurrences over dimension 0: one run of a block per step, states carried from step to step."""

from collections.abc import Iterator
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.ir import Block, Operator, grad_name

from .carried import (
    Ran,
    added,
    gradients_like_inputs,
    outer_seeds,
    pairs,
    plain,
    set_total,
    with_gradient_block,
)
from .table import Infer, OpSpec, op


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
            with_gradient_block(operator, block),
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
            kept.append(plain(env.get(name)))
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
    seeds = outer_seeds(control, operator.input("outputs"), operator.input("outputs@GRAD"))
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
        for name, target in pairs(operator, slot, grad_name(slot)):
            set_total(control, name, target, {grad_name(n): v for n, v in totals.items()}, {})


def _stacked(xp: Array, parts: list[Any]) -> Any:
    return None if any(p is None for p in parts) else xp.stack([plain(p) for p in parts])


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

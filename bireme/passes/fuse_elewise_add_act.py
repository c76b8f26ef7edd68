"""`act(add(x, y))` and `add(x, act(y))` as one operator, and their gradients."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from bireme.ir import Operator, Program
from bireme.ir.names import grad_name
from bireme.ops.table import ROWS

from .notes import Notes, log
from .uses import Uses, rewritten

__all__ = ["fuse_elewise_add_act"]

_NAME = "fuse_elewise_add_act_pass"
_ADD = "elementwise_add"
_FORWARD = ("relu", "scale", "tanh")
_BACKWARD = ("relu_grad",)
_DOUT = grad_name("Out")
EQUAL = "bireme.equal"  # attribute: refuse operands of different shapes


def fuse_elewise_add_act(program: Program, notes: Notes) -> Program:
    """Sums with the relu, scale or tanh that follows them, or that comes before their second
    operand; in the backward pass relu only. The value in between must have no other reader.
    """
    program, forward = _fused(program, notes, _Forward)
    program, backward = _fused(program, notes, _Backward)
    remark = f"{forward} forward, {backward} backward" if forward + backward else ""
    notes.applied(_NAME, forward + backward, remark or "no sum whose only reader is a relu")
    return program


def _fused(program: Program, notes: Notes, match: "type[_Match]") -> tuple[Program, int]:
    found = match(program, notes)
    if not found.pairs:
        return program, 0
    log.warning("---  detected %d subgraphs", found.pairs)
    return rewritten(program, found.changes, notes), found.pairs


class _Match(ABC):
    """Pairs of adjacent operators, and the operator for each pair at the second one's position."""

    first: tuple[str, ...] = ()

    def __init__(self, program: Program, notes: Notes) -> None:
        self.uses = Uses(program, notes)
        self.changes: dict[int, Operator | None] = {}
        self.pairs = 0
        for i, op in enumerate(self.uses.ops):
            if i in self.changes or op.type not in self.first:
                continue
            for name in op.output_arg_names:
                j = self.uses.reader(name)
                if j is None or j in self.changes:
                    continue
                made = self.together(op, self.uses.ops[j], name)
                if made is not None and self.uses.steady(op.input_arg_names, i, j):
                    self.changes[i], self.changes[j] = None, made
                    self.pairs += 1

    @abstractmethod
    def together(self, first: Operator, second: Operator, between: str) -> Operator | None:
        """One operator for a pair that shares the value `between`, or None."""


class _Forward(_Match):
    first = (_ADD, *_FORWARD)

    def together(self, first: Operator, second: Operator, between: str) -> Operator | None:
        if first.type == _ADD and second.type in _FORWARD:
            return _one(first, second, [second.type, _ADD], first.inputs, second.output("Out"))
        inner = second.inputs.get("Y") == (between,) and second.inputs.get("X") != (between,)
        if first.type in _FORWARD and second.type == _ADD and inner:
            inputs = {"X": second.inputs["X"], "Y": first.inputs["X"]}
            return _one(second, first, [_ADD, first.type], inputs, second.output("Out"))
        return None


def _one(
    add: Operator,
    act: Operator,
    functors: list[str],
    inputs: Mapping[str, tuple[str, ...]],
    out: list[str],
) -> Operator | None:
    if act.attrs.get("bias") or act.inputs.get("ScaleTensor"):
        return None  # a scale that adds, or whose factor is a variable
    later = add if functors[0] == _ADD else act
    attrs = {
        **ROWS["fused_elemwise_activation"].defaults,
        **{k: v for k, v in later.attrs.items() if k.startswith("op_")},
        "axis": add.attrs.get("axis", -1),
        "functor_list": tuple(functors),
        "scale": float(act.attrs.get("scale", 0.0)),
    }
    return later.replaced(
        type="fused_elemwise_activation",
        inputs={"X": inputs["X"], "Y": inputs["Y"]},
        outputs={"Out": out},
        attrs=attrs,
    )


class _Backward(_Match):
    """The gradient reads an operand only for its shape, so only if that may differ from the sum's;
    where this depends on the batch, the forward operator checks it.
    """

    first = _BACKWARD

    def together(self, first: Operator, second: Operator, between: str) -> Operator | None:
        if second.type != f"{_ADD}_grad" or second.inputs.get(_DOUT) != (between,):
            return None
        x, y = second.inputs["X"][0], second.inputs["Y"][0]
        if self._checked(x, y, first.input("Out")[0]):
            operands = {}
        elif self.uses.whole(x, y, second.attrs.get("axis", -1)):
            operands = {"Y": (y,)}
        else:
            operands = {"X": (x,), "Y": (y,)}
        return second.replaced(
            type="fused_elemwise_activation_grad",
            inputs={**operands, "Out": first.inputs["Out"], _DOUT: first.inputs[_DOUT]},
            outputs=second.outputs,
            attrs={
                **ROWS["fused_elemwise_activation"].defaults,
                **second.attrs,
                "functor_list": (second.type, first.type),
            },
        )

    def _checked(self, x: str, y: str, out: str) -> bool:
        """Let the forward operator check that operands declared alike are alike."""
        if self.uses.shape(x) != self.uses.shape(y):
            return False
        for i in self.uses.writers.get(out, ()):
            op = self.uses.ops[i]
            if op.type == "fused_elemwise_activation" and op.input_arg_names == [x, y]:
                self.changes[i] = op.with_attrs({EQUAL: True})
                return True
        return False

"""The op table: one row per operator type, with its slots, attributes, shape rule, kernel and
gradient rule.

Slots and attribute defaults come from `signatures.json`; a family file adds what the operator
computes:

    @op("tanh", infer=same_as("X"), grad=GradOp(uses=("Out",)))
    def tanh(xp, X, out=None):
        return xp.tanh(X, out=out)

    @op("tanh_grad")
    def tanh_grad(xp, Out, dOut):
        return dOut * (1 - Out * Out)

A kernel's parameters are bound by name, once, when a program is compiled (see `Role`). It returns
one value, or a tuple in the order of `returns`. Kernels know no scopes, no flags and no variable
names.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar, cast

from bireme.errors import InvalidArgument
from bireme.ir import SCHEMAS, Block, Operator, grad_name
from bireme.ir.names import without_grad

from . import element_types
from .infer import Infer as Infer
from .infer import described

Kernel = Callable[..., Any]
F = TypeVar("F", bound=Kernel)


class Slot(NamedTuple):
    """A slot of an operator: `many` takes a list of variables, `hidden` is computed only for the
    gradient.
    """

    name: str
    many: bool = False
    optional: bool = False
    hidden: bool = False


class Role(Enum):
    """What a kernel parameter is bound to."""

    XP = auto()  # the array namespace
    INPUT = auto()  # value of the slot; a list where the slot takes many, None where absent
    ATTR = auto()  # an attribute
    OUT = auto()  # offered output buffers: None, an array, or a tuple in `returns` order
    NEED = auto()  # frozenset of the output slots that exist in this operator
    LOD = auto()  # LoD of an input slot: a tuple of int64 offset arrays, outermost first
    KEY = auto()  # random key of the output variable
    PLACE = auto()
    OUT_SHAPE = auto()  # declared shape of the first output
    OUT_DTYPE = auto()  # NumPy name of the declared dtype of the first output
    CONTROL = auto()  # a context that can run sub-blocks


_SPECIAL = {
    "xp": Role.XP,
    "out": Role.OUT,
    "need": Role.NEED,
    "key": Role.KEY,
    "place": Role.PLACE,
    "out_shape": Role.OUT_SHAPE,
    "out_dtype": Role.OUT_DTYPE,
    "control": Role.CONTROL,
}


class Parameter(NamedTuple):
    """A kernel parameter: its Python name, what it is bound to, and the slot or attribute meant."""

    name: str
    role: Role
    source: str


class OpSpec(NamedTuple):
    """An operator that a gradient rule asks for."""

    type: str
    inputs: Mapping[str, Iterable[str]]
    outputs: Mapping[str, Iterable[str]]
    attrs: Mapping[str, Any]


GradRule = Callable[[Operator, Block], list[OpSpec]]
LodRule = Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GradOp:
    """The usual gradient rule: one operator that reads `uses` and the gradients of the outputs
    `of`.

    `uses` are forward slots, inputs or outputs; `wrt` the input slots that get a gradient (default:
    all that are not optional); `of` defaults to the outputs that are not hidden; `type` to
    `<forward>_grad`. The gradients of the outputs `also` are read only where one flows back; the
    kernel gets None for them elsewhere.
    """

    uses: tuple[str, ...] = ()
    wrt: tuple[str, ...] | None = None
    of: tuple[str, ...] | None = None
    type: str | None = None
    also: tuple[str, ...] = ()

    def slots(self, row: "Row") -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`wrt` and `of` with their defaults filled in."""
        wrt = self.wrt or tuple(s.name for s in row.in_slots.values() if not s.optional)
        of = self.of or tuple(s.name for s in row.out_slots.values() if not s.hidden)
        return wrt, of

    def type_of(self, row: "Row") -> str:
        return self.type or row.type + "_grad"

    def __call__(self, op: Operator, block: Block) -> list[OpSpec]:
        row = ROWS[op.type]
        wrt, of = self.slots(row)
        inputs = {s: op.input(s) if s in row.in_slots else op.output(s) for s in self.uses}
        inputs.update({grad_name(s): [grad_name(n) for n in op.output(s)] for s in of})
        inputs.update({grad_name(s): [grad_name(n) for n in op.output(s)] for s in self.also})
        outputs = {grad_name(s): [grad_name(n) for n in op.input(s)] for s in wrt}
        return [OpSpec(self.type_of(row), inputs, outputs, op.attrs)]


@functools.cache
def _draws(kernel: Kernel) -> bool:
    return "key" in inspect.signature(kernel).parameters


def no_gradient(op: Operator, block: Block) -> list[OpSpec]:
    """The rule of operators through which no gradient flows, though they take and give floats."""
    return []


@dataclass(slots=True, eq=False)
class Row:
    """Everything known about one operator type."""

    type: str
    in_slots: dict[str, Slot]
    out_slots: dict[str, Slot]
    attr_types: dict[str, str]
    defaults: dict[str, Any]
    rule: "Callable[[Infer], None] | None" = None
    kernel: Kernel | None = None
    returns: tuple[str, ...] = ()
    grad: GradRule | None = None
    lod: "str | LodRule | None" = ""
    inplace: Mapping[str, str] = field(default_factory=dict)
    flat: tuple[str, ...] | None = None  # see `op`; None: it looks at a parameter as a whole
    out: tuple[str, ...] = ()  # outputs that are computed in the buffer offered for them
    effect: str = ""
    control: bool = False
    stateful: bool = False
    variants: dict[str, Kernel] = field(default_factory=dict)
    compiled: str = ""  # module of `bireme.ops.compiled` with a form of the kernel for the host
    forward: "Row | None" = None
    dtypes: tuple[element_types.Rule, ...] = ()  # which element types its inputs have

    @property
    def inputs(self) -> Iterable[str]:
        return self.in_slots

    @property
    def outputs(self) -> Iterable[str]:
        return self.out_slots

    @property
    def draws(self) -> bool:
        return self.kernel is not None and _draws(self.kernel)

    @property
    def infer(self) -> Callable[[Operator, Block], None] | None:
        return self._infer if self.rule or self.dtypes else None

    def _infer(self, op: Operator, block: Block) -> None:
        try:
            element_types.check(self.dtypes, op, block)
            if self.rule is not None:
                self.rule(Infer(op, block, self.default_of))
        except InvalidArgument as error:
            if error.where is None:
                shapes = ", ".join(described(block, n) for n in op.input_arg_names)
                error.where = f"op: {op}\n  with {shapes}" + (
                    f"\n  at {op.site}" if op.site else ""
                )
            raise

    def parameters(self, kernel: Kernel) -> list[Parameter]:
        """How each parameter of a kernel of this row is bound; one that can only be given by name
        is left at its default, see `bireme.ops.compiled`.

        Raises:
            TypeError: a parameter is neither a slot, an attribute, nor one of the special names.
        """
        found = inspect.signature(kernel).parameters.values()
        return [self._parameter(p.name) for p in found if p.kind is not p.KEYWORD_ONLY]

    def _parameter(self, name: str) -> Parameter:
        if name in self.in_slots:
            return Parameter(name, Role.INPUT, name)
        if name in _SPECIAL:
            return Parameter(name, _SPECIAL[name], name)
        if name[0] == "d" and grad_name(name[1:]) in self.in_slots:
            return Parameter(name, Role.INPUT, grad_name(name[1:]))
        if name[:2] == "dd" and grad_name(grad_name(name[2:])) in self.in_slots:
            return Parameter(name, Role.INPUT, grad_name(grad_name(name[2:])))
        if name.endswith("_lod") and name[:-4] in self.in_slots:
            return Parameter(name, Role.LOD, name[:-4])
        if name.endswith("_lod") and grad_name(name[1:-4]) in self.in_slots:
            return Parameter(name, Role.LOD, grad_name(name[1:-4]))
        # `lambda_` stands for the attribute `lambda`, `bireme_count` for `bireme.count`
        attr = name.rstrip("_").replace("bireme_", "bireme.")
        if attr in self.attr_types or self.forward is None or attr.startswith("bireme."):
            return Parameter(name, Role.ATTR, attr)
        raise TypeError(f"kernel of {self.type!r} has a parameter {name!r} that nothing provides")

    def default_of(self, attr: str) -> Any:
        """The default of an attribute; gradient rows look at their forward row."""
        if attr in self.defaults or self.forward is None:
            return self.defaults.get(attr)
        return self.forward.default_of(attr)


ROWS: dict[str, Row] = {}
_SIGNATURES: dict[str, Any] = json.loads(
    (files(__package__) / "signatures.json").read_text("utf-8")
)


def op(
    type: str,
    *,
    infer: Callable[[Infer], None] | None = None,
    grad: GradRule | None = None,
    returns: str = "",
    lod: str | LodRule | None = "",
    inplace: Mapping[str, str] | None = None,
    out: str = "",
    flat: str | None = None,
    control: bool = False,
    stateful: bool = False,
    compiled: str = "",
    ins: Mapping[str, str] | None = None,
    outs: Mapping[str, str] | None = None,
    attrs: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Register the kernel of an operator type, and its row where that does not stand yet.

    `returns` lists the output slots in the order of the returned tuple; `lod` says how the outputs
    get their LoD (`""`: from X or Input, else from the first input; a slot name; None: they have
    none; or a function);
    `inplace` maps an output slot to the input slot whose memory it may take; `out` lists the output
    slots that the kernel computes in its parameter `out` when that brings a buffer, as far as its
    algorithm allows. `flat` says that an update works on parameters that stand end to end as on
    each by itself, and lists the states that are one number for a whole parameter.

    `ins`, `outs`, `attrs` and `dtypes` (see `element_types`) describe operators that
    `signatures.json` does not have. A `stateful` kernel is never folded or skipped; `compiled`
    names the module of `bireme.ops.compiled` that has a form for the host.
    """

    def register(kernel: F) -> F:
        row = declare(type, infer=infer, grad=grad, ins=ins, outs=outs, attrs=attrs, dtypes=dtypes)
        row.kernel = kernel
        row.returns = tuple(returns.split()) or _default_returns(row)
        row.lod, row.control, row.stateful = lod, control, stateful
        row.inplace, row.out, row.compiled = inplace or {}, tuple(out.split()), compiled
        row.flat = None if flat is None else tuple(flat.split())
        takes = any(p.role is Role.OUT for p in row.parameters(kernel))
        if (row.out and not takes) or not set(row.out) <= set(row.returns):
            raise TypeError(f"the kernel of {type!r} takes no buffer for {out}")
        return kernel

    return register


def selected_rows(type: str, slot: str, merged: bool = False) -> Callable[[F], F]:
    """Register the kernel that runs where the variable in `slot` is SELECTED_ROWS.

    A kernel that needs each row once, in rising order, says `merged` and is given no others.
    """

    def register(kernel: F) -> F:
        variant = _of_merged(kernel, slot) if merged else kernel
        ROWS[type].variants[slot] = variant
        return variant

    return register


def _of_merged(kernel: F, slot: str) -> F:
    position = list(inspect.signature(kernel).parameters).index(slot)

    @functools.wraps(kernel)
    def run(*given: Any) -> Any:
        return kernel(*given[:position], given[position].merged(), *given[position + 1 :])

    return cast(F, run)


def declare(
    type: str,
    *,
    infer: Callable[[Infer], None] | None = None,
    grad: GradRule | None = None,
    ins: Mapping[str, str] | None = None,
    outs: Mapping[str, str] | None = None,
    attrs: Mapping[str, Any] | None = None,
    dtypes: Mapping[str, str] | None = None,
    effect: str = "",
) -> Row:
    """The row of a type, made if need be; one with an `effect` is run by that provider."""
    row = ROWS.get(type)
    if row is None:
        known = _SIGNATURES.get(type, {"in": {}, "out": {}, "attrs": {}})
        given = {k: ("", v) for k, v in (attrs or {}).items()}
        types = {**known["attrs"], **given}
        row = _add(
            Row(
                type,
                _slots(known["in"] if ins is None else ins),
                _slots(known["out"] if outs is None else outs),
                {k: v[0] for k, v in types.items()},
                {k: _default(v[1]) for k, v in types.items() if v[1] is not None},
                dtypes=element_types.rules_of(dtypes or known.get("dtypes", {})),
            )
        )
    if infer is not None:
        row.rule = infer
    row.effect = effect or row.effect
    if grad is not None:
        row.grad = grad
        if isinstance(grad, GradOp):
            _declare_gradient(row, grad)
    return row


def signatures() -> Mapping[str, Any]:
    """Every operator signature that is known, built or not."""
    return _SIGNATURES


def _declare_gradient(row: Row, rule: GradOp) -> None:
    wrt, of = rule.slots(row)
    every = {**row.in_slots, **row.out_slots}
    ins = {s: every[s] for s in rule.uses}
    ins.update({grad_name(s): every[s]._replace(name=grad_name(s)) for s in of})
    ins.update({grad_name(s): Slot(grad_name(s), optional=True) for s in rule.also})
    outs = {grad_name(s): every[s]._replace(name=grad_name(s)) for s in wrt}
    kind = rule.type_of(row)
    if kind not in ROWS:
        _add(Row(kind, ins, outs, row.attr_types, {}, rule=gradient_shapes, forward=row))


def gradient_shapes(ctx: Infer) -> None:
    """A gradient looks like the variable it is a gradient of."""
    for slot, names in ctx.op.outputs.items():
        for i, name in enumerate(names):
            origin = ctx.block._find_var_recursive(without_grad(name))
            if origin is not None:
                ctx.set(slot, like=origin, index=i)


def _add(row: Row) -> Row:
    ROWS[row.type] = SCHEMAS[row.type] = row
    return row


def _slots(part: Mapping[str, str]) -> dict[str, Slot]:
    return {
        name: Slot(name, "*" in marks, "?" in marks, "~" in marks) for name, marks in part.items()
    }


def _default(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _default_returns(row: Row) -> tuple[str, ...]:
    shown = tuple(s.name for s in row.out_slots.values() if not s.hidden)
    if len(shown) > 1 and row.forward is None:
        raise TypeError(f"operator {row.type!r} has outputs {shown}: say returns='...'")
    return shown

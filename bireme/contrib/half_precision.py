"""Casts that let a program compute in half precision: which operators, and where.

Parameters stay in float32 (master weights) and are cast where an operator computes in float16 or
bfloat16.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import HALVES, Block, Operator, OpRole, Program, Variable, VarType
from bireme.ops.table import ROWS

__all__ = [
    "AutoMixedPrecisionLists",
    "black_list",
    "cast_program",
    "exchange_in_half",
    "gray_list",
    "white_list",
]

white_list = {"conv2d", "matmul", "mul"}
black_list = {
    "cos_sim", "cross_entropy", "cross_entropy2", "exp", "log", "mean",
    "sigmoid_cross_entropy_with_logits", "softmax", "softmax_with_cross_entropy", "square", "sum",
}  # fmt: skip
gray_list = {
    "batch_norm", "cast", "dropout", "elementwise_add", "elementwise_div", "elementwise_floordiv",
    "elementwise_max", "elementwise_min", "elementwise_mod", "elementwise_mul", "elementwise_pow",
    "elementwise_sub", "fill_constant", "flatten2", "gather", "gaussian_random",
    "gaussian_random_batch_size_like", "get_tensor_from_selected_rows", "leaky_relu",
    "lookup_table", "pool2d", "pool3d", "rank", "relu", "relu6", "reshape2", "scale", "sigmoid",
    "sign", "slice", "soft_relu", "stack", "tanh", "top_k", "transpose2",
    "uniform_random_batch_size_like", "unstack",
}  # fmt: skip

_SUFFIX = {VarType.FP16: "cast_fp16", VarType.BF16: "cast_bf16", VarType.FP32: "cast_fp32"}
_ONLY = {"batch_norm": ("X", "Y")}  # the slots whose values are in half precision


class AutoMixedPrecisionLists:
    """Operators in half precision (white), in float32 (black), and as their inputs are (gray); all
    others are in float32, and so is whatever touches a variable of `custom_black_varnames`.
    """

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ) -> None:
        white, black = set(custom_white_list or ()), set(custom_black_list or ())
        if both := white & black:
            raise InvalidArgument(f"{sorted(both)} are in the white list and in the black list")
        self.white_list = (white_list - black) | white
        self.black_list = (black_list - white) | black
        self.gray_list = gray_list - white - black
        self.black_varnames = set(custom_black_varnames or ())


def cast_program(program: Program, lists: AutoMixedPrecisionLists, half: VarType) -> None:
    """Insert casts into the global block, in place, before its gradients are built."""
    _Casts(program, lists, half).insert()


class _Casts:
    def __init__(self, program: Program, lists: AutoMixedPrecisionLists, half: VarType) -> None:
        self._type = half
        self._block = program.global_block()
        self._lists = lists
        inner = (op for block in program.blocks[1:] for op in block.ops)
        # A sub-block reads names as they are, so that their values keep their type.
        self._fixed = {n for op in inner for n in (*op.input_arg_names, *op.output_arg_names)}
        self._made: dict[str, VarType] = {}  # what operators of either list have computed
        self._half: set[str] = set()  # names that are now in half precision
        self._cast: set[str] = set()

    def insert(self) -> None:
        ops: list[Operator] = []
        for op in self._block.ops:
            to = self._precision(op)
            if to is None:
                ops.append(op)
                continue
            casts, op = self._with_casts(op, to)
            ops += [*casts, op]
            for name in op.output_arg_names:
                self._made[name] = to
                self._half.discard(name)
            if to == self._type:
                self._lower(op)
        self._block.set_ops(ops)

    def _precision(self, op: Operator) -> VarType | None:
        """The type that an operator computes in; None for one whose inputs nobody has cast."""
        names = {*op.input_arg_names, *op.output_arg_names}
        if op.block_refs() or not names.isdisjoint(self._lists.black_varnames):
            return VarType.FP32
        if not self._fixed.isdisjoint(op.output_arg_names):
            return VarType.FP32
        if op.type in self._lists.white_list:
            return self._type
        if op.type not in self._lists.gray_list or op.type == "cast":
            return VarType.FP32
        given = {self._made.get(name) for name in op.input_arg_names}
        return VarType.FP32 if VarType.FP32 in given else next(iter(given - {None}), None)

    def _with_casts(self, op: Operator, to: VarType) -> tuple[list[Operator], Operator]:
        if op.type == "cast":
            half = op.input("X")[0] in self._half
            return [], op.with_attrs({"in_dtype": int(self._type)}) if half else op
        casts: list[Operator] = []
        inputs = dict(op.inputs)
        for slot in sorted(op.inputs):
            if self._has_half(op, slot):
                made = [self._cast_of(name, to) for name in op.inputs[slot]]
                inputs[slot] = tuple(name for name, _ in made)
                casts = [cast for _, cast in made if cast is not None] + casts
        return casts, op.replaced(inputs=inputs) if inputs != op.inputs else op

    def _has_half(self, op: Operator, slot: str) -> bool:
        return slot in _ONLY.get(op.type, (slot,))

    def _cast_of(self, name: str, to: VarType) -> tuple[str, Operator | None]:
        """The name that holds a value in a type, and the cast that makes it, if it is needed."""
        var = self._block.vars.get(name)
        given = self._type if name in self._half else VarType.FP32
        if var is None or given == to or not _is_number(var):
            return name, None
        cast = f"{name}.{_SUFFIX[to]}"
        if cast in self._cast:
            return cast, None
        self._cast.add(cast)
        self._block.create_var(
            name=cast, dtype=to, shape=var.shape, lod_level=var.lod_level, persistable=False
        )
        return cast, _cast(name, cast, given, to)

    def _lower(self, op: Operator) -> None:
        """Declare the results of an operator as half precision."""
        for slot, names in op.outputs.items():
            for name in names if self._has_half(op, slot) else ():
                var = self._block.vars.get(name)
                if var is not None and not var.persistable and _is_number(var):
                    var.dtype = self._type
                    self._half.add(name)


def _is_number(var: Variable) -> bool:
    return var.type == VarType.LOD_TENSOR and var.dtype in (VarType.FP32, *HALVES)


def _cast(x: str, out: str, given: VarType, to: VarType) -> Operator:
    attrs = {**ROWS["cast"].defaults, "in_dtype": int(given), "out_dtype": int(to)}
    return Operator("cast", {"X": (x,)}, {"Out": (out,)}, {**attrs, "op_role": 0})


def exchange_in_half(block: Block, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Move the casts of finished gradients behind the backward pass, so that what ranks exchange is
    float16: the operators before them are said to finish the parameters' gradients.
    """
    ops = list(block.ops)
    moved: list[Operator] = []
    for param, grad in pairs:
        made = [i for i, op in enumerate(ops) if grad.name in op.output_arg_names]
        if len(made) != 1 or ops[made[0]].type != "cast":
            continue
        cast = ops.pop(made[0])
        half = cast.input("X")[0]
        last = max(i for i, op in enumerate(ops) if half in op.output_arg_names)
        ops[last] = _finishing(ops[last], param.name, half)
        attrs = {k: v for k, v in cast.attrs.items() if k != "op_role_var"}
        moved.append(cast.replaced(attrs={**attrs, "op_role": int(OpRole.Optimize)}))
    block.set_ops([*ops, *moved])


def _finishing(op: Operator, param: str, grad: str) -> Operator:
    pairs = list(_pairs(op.role_var))
    return op.with_attrs({"op_role_var": tuple(n for p in [*pairs, (param, grad)] for n in p)})


def _pairs(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    given = iter(names)
    return zip(given, given, strict=True)

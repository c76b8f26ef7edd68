"""Layers for order, ranges and patterns, and the newer names that Fluid 1.8 gave to older
layers.
"""

from collections.abc import Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, to_dtype

from .elementwise import elementwise_add, elementwise_mul
from .helper import LayerHelper
from .shaping import stack
from .single import append, checked
from .tensor import assign, fill_constant

__all__ = [
    "addcmul",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "clamp",
    "cross",
    "diag",
    "diag_embed",
    "dist",
    "eye",
    "full",
    "full_like",
    "kron",
    "linspace",
    "range",
    "trace",
    "tril",
    "triu",
    "unique",
    "unique_with_counts",
]


# -- order -------------------------------------------------------------------------------------
def argmax(x: Variable, axis: int = 0) -> Variable:
    """Where the greatest elements along `axis` stand."""
    return _place("arg_max", x, axis)


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Where the least elements along `axis` stand."""
    return _place("arg_min", x, axis)


def _place(type: str, x: Variable, axis: int) -> Variable:
    attrs = {"axis": axis, "dtype": -1, "keepdims": False}
    return append(type, {"X": x}, attrs, dtype="int64", stop_gradient=True)


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """The elements in order along `axis`, and where they stood."""
    helper = LayerHelper("argsort", name=name)
    x = checked(input, "argsort", "input")
    out = helper.create_variable_for_type_inference(x.dtype, stop_gradient=True)
    places = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    helper.append_op(
        type="argsort",
        inputs={"X": x},
        outputs={"Out": out, "Indices": places},
        attrs={"axis": axis, "descending": descending},
    )
    return out, places


def unique(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable]:
    """The distinct elements of a vector in the order they first come, and where each one's
    stands.
    """
    out, index, _ = _unique("unique", x, dtype, ("Out", "Index"))
    return out, index


def unique_with_counts(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable, Variable]:
    """As `unique`, and how often each distinct element comes."""
    return _unique("unique_with_counts", x, dtype, ("Out", "Index", "Count"))


def _unique(
    type: str, x: Variable, dtype: Any, slots: Sequence[str]
) -> tuple[Variable, Variable, Variable]:
    if len(checked(x, type, "x").shape) != 1:
        raise InvalidArgument(f"{type} takes a vector, got {list(x.shape)}")
    helper = LayerHelper(type)
    kinds = (x.dtype, to_dtype(dtype), to_dtype(dtype))
    made = [helper.create_variable_for_type_inference(k) for k in kinds[: len(slots)]]
    helper.append_op(
        type=type,
        inputs={"X": x},
        outputs=dict(zip(slots, made, strict=True)),
        attrs={"dtype": int(to_dtype(dtype))},
    )
    return made[0], made[1], made[-1]


# -- ranges and patterns -----------------------------------------------------------------------
def _as_variable(value: Any, dtype: Any) -> Variable:
    return value if isinstance(value, Variable) else fill_constant([1], dtype, value)


def range(start: Any, end: Any, step: Any, dtype: Any) -> Variable:
    """Numbers from `start` to `end`, without `end`, in steps of `step`."""
    values = [_as_variable(value, dtype) for value in (start, end, step)]
    inputs = dict(zip(("Start", "End", "Step"), values, strict=True))
    return append("range", inputs, dtype=to_dtype(dtype), stop_gradient=True)


def arange(
    start: Any, end: Any, step: Any = 1, dtype: Any = None, name: str | None = None
) -> Variable:
    """Numbers from `start` to `end`, without `end`, in steps of `step`."""
    return range(start, end, step, "float32" if dtype is None else dtype)


def linspace(start: Any, stop: Any, num: Any, dtype: Any) -> Variable:
    """`num` numbers from `start` to `stop`, both included, equally far apart."""
    first, last = (_as_variable(value, dtype) for value in (start, stop))
    inputs = {"Start": first, "Stop": last, "Num": _as_variable(num, "int32")}
    return append("linspace", inputs, dtype=to_dtype(dtype))


def eye(
    num_rows: int,
    num_columns: int | None = None,
    batch_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
) -> Variable:
    """Ones on the diagonal, zeros elsewhere; `batch_shape` repeats the matrix."""
    kind = to_dtype(dtype)
    attrs = {
        "num_rows": num_rows,
        "num_columns": num_rows if num_columns is None else num_columns,
        "dtype": int(kind),
    }
    helper = LayerHelper("eye")
    out = helper.create_variable_for_type_inference(kind, stop_gradient=True)
    helper.append_op(type="eye", inputs={}, outputs={"Out": out}, attrs=attrs)
    for size in reversed(batch_shape or ()):
        out = stack([out] * size, axis=0)
    return out


def diag(diagonal: Any) -> Variable:
    """A matrix with this vector, or array, on its diagonal."""
    if not isinstance(diagonal, Variable):
        diagonal = assign(diagonal)
    return append("diag", {"Diagonal": diagonal}, stop_gradient=True)


def diag_embed(input: Variable, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Matrices with the rows of input on a diagonal."""
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    return append("diag_embed", {"Input": input}, attrs, stop_gradient=True)


def trace(
    input: Variable,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """The sums of diagonals."""
    attrs = {"offset": offset, "dim1": dim1, "dim2": dim2}
    return append("trace", {"Input": input}, attrs, out=out, name=name)


def tril(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The lower triangle of matrices, zeros elsewhere."""
    return _triangle("tril", input, diagonal, name)


def triu(input: Variable, diagonal: int = 0, name: str | None = None) -> Variable:
    """The upper triangle of matrices, zeros elsewhere."""
    return _triangle("triu", input, diagonal, name)


def _triangle(layer: str, input: Variable, diagonal: int, name: str | None) -> Variable:
    helper = LayerHelper(layer, name=name)
    out = helper.create_variable(name=helper.name, dtype=input.dtype)
    helper.append_op(
        type="tril_triu",
        inputs={"X": input},
        outputs={"Out": out},
        attrs={"diagonal": diagonal, "lower": layer == "tril"},
    )
    return out


# -- newer names -------------------------------------------------------------------------------
def full(
    shape: Any,
    fill_value: Any,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """A tensor full of one value."""
    helper = LayerHelper("full", name=name)
    kind = to_dtype("float32" if dtype is None else dtype)
    if out is None:
        out = helper.create_variable_for_type_inference(kind)
    out.stop_gradient = stop_gradient
    return fill_constant(shape, kind, fill_value, out=out)


def full_like(
    input: Variable,
    fill_value: Any,
    out: Variable | None = None,
    dtype: Any = None,
    device: str | None = None,
    stop_gradient: bool = True,
    name: str | None = None,
) -> Variable:
    """One value in the shape of input."""
    kind = to_dtype("float32" if dtype is None else dtype)
    attrs = {"value": float(fill_value), "dtype": int(kind)}
    made = append(
        "fill_any_like", {"X": input}, attrs, layer="full_like", out=out, dtype=kind, name=name
    )
    made.stop_gradient = stop_gradient
    return made


def clamp(
    input: Variable,
    min: Any = None,
    max: Any = None,
    output: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """input kept between `min` and `max`, numbers or variables."""
    if min is None and max is None:
        raise InvalidArgument("clamp needs min or max")
    inputs: dict[str, Any] = {"X": input}
    attrs: dict[str, Any] = {"min": -3.4028235e38, "max": 3.4028235e38}
    for slot, attr, value in (("Min", "min", min), ("Max", "max", max)):
        if isinstance(value, Variable):
            inputs[slot] = value
        elif value is not None:
            attrs[attr] = float(value)
    return append("clip", inputs, attrs, layer="clamp", out=output, name=name)


def addcmul(
    input: Variable,
    tensor1: Variable,
    tensor2: Variable,
    value: float = 1.0,
    out: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """input + value * tensor1 * tensor2."""
    product = elementwise_mul(tensor1, tensor2) * value
    if out is None:
        return elementwise_add(input, product, name=name)
    return append("elementwise_add", {"X": input, "Y": product}, {"axis": -1}, out=out, name=name)


def cross(input: Variable, other: Variable, dim: int | None = None) -> Variable:
    """Cross products along a dimension of size 3 (default: the first such one)."""
    return append("cross", {"X": input, "Y": other}, {"dim": dim})


def dist(x: Variable, y: Variable, p: float = 2) -> Variable:
    """The p-norm of x - y."""
    return append("dist", {"X": x, "Y": y}, {"p": float(p)})


def kron(
    x: Variable, y: Variable, out: Variable | None = None, name: str | None = None
) -> Variable:
    """Every element of x times the whole of y, laid out as blocks."""
    return append("kron", {"X": x, "Y": y}, out=out, name=name)

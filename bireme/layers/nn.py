"""Layers of networks: fully connected, products, softmax, dropout, similarities."""

from collections.abc import Sequence
from typing import Any

from bireme.ir import Variable, default_main_program

from .helper import LayerHelper
from .single import append, checked
from .tensor import cast_attrs

__all__ = [
    "addmm",
    "bilinear_tensor_product",
    "bmm",
    "clip",
    "clip_by_norm",
    "cos_sim",
    "dot",
    "dropout",
    "fc",
    "l2_normalize",
    "log_softmax",
    "matmul",
    "mul",
    "softmax",
    "topk",
]


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Variable:
    """act(input * W + b); several inputs have a W each and are summed.

    The first `num_flatten_dims` dimensions of an input are kept (-1: all but the last), the
    others become one.
    """
    helper = LayerHelper("fc", **locals())
    dtype = helper.input_dtype()
    products = []
    for x, attr in helper.iter_inputs_and_params():
        kept = len(x.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
        weight = helper.create_parameter(attr, [_product(x.shape[kept:]), size], dtype)
        products.append(helper.create_variable_for_type_inference(dtype))
        helper.append_op(
            type="mul",
            inputs={"X": x, "Y": weight},
            outputs={"Out": products[-1]},
            attrs={"x_num_col_dims": kept, "y_num_col_dims": 1},
        )
    total = products[0]
    if len(products) > 1:
        total = helper.create_variable_for_type_inference(dtype)
        helper.append_op(type="sum", inputs={"X": products}, outputs={"Out": total})
    start = len(total.shape) - 1 if num_flatten_dims == -1 else num_flatten_dims
    return helper.append_activation(helper.append_bias_op(total, dim_start=start))


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total


def mul(
    x: Variable,
    y: Variable,
    x_num_col_dims: int = 1,
    y_num_col_dims: int = 1,
    name: str | None = None,
) -> Variable:
    """The product of two tensors, seen as matrices that split after so many dimensions."""
    inputs = {"X": checked(x, "mul", "x"), "Y": checked(y, "mul", "y")}
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    return append("mul", inputs, attrs, name=name)


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """alpha times the product of matrices, or of each pair of a batch of them."""
    inputs = {"X": checked(x, "matmul", "x"), "Y": checked(y, "matmul", "y")}
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": float(alpha)}
    return append("matmul", inputs, attrs, name=name)


def bmm(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The products of two batches of matrices."""
    return append("bmm", {"X": x, "Y": checked(y, "bmm", "y")}, name=name)


def dot(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """The inner product of two vectors, or of each pair of rows."""
    return append("dot", {"X": x, "Y": checked(y, "dot", "y")}, name=name)


def addmm(
    input: Variable,
    x: Variable,
    y: Variable,
    alpha: float = 1.0,
    beta: float = 1.0,
    name: str | None = None,
) -> Variable:
    """alpha * x y + beta * input."""
    inputs = {"Input": checked(input, "addmm", "input"), "X": x, "Y": y}
    return append("addmm", inputs, {"Alpha": alpha, "Beta": beta}, name=name)


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: Any = None,
    name: str | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
) -> Variable:
    """x W_k y for each of `size` matrices W_k, plus a bias."""
    helper = LayerHelper("bilinear_tensor_product", **locals())
    dtype = x.dtype
    shape = [size, x.shape[1], y.shape[1]]
    weight = helper.create_parameter(helper.param_attr, shape, dtype)
    out = helper.create_variable_for_type_inference(dtype)
    inputs = {"X": x, "Y": y, "Weight": weight}
    if helper.bias_attr is not False:
        inputs["Bias"] = helper.create_parameter(helper.bias_attr, [1, size], dtype, is_bias=True)
    helper.append_op(type="bilinear_tensor_product", inputs=inputs, outputs={"Out": out})
    return helper.append_activation(out)


def softmax(
    input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1
) -> Variable:
    """exp(input), normalised to a sum of 1 along `axis`."""
    return append("softmax", {"X": input}, {"axis": axis, "use_cudnn": use_cudnn}, name=name)


def log_softmax(
    input: Variable, axis: int | None = None, dtype: Any = None, name: str | None = None
) -> Variable:
    """The logarithm of softmax along `axis` (default: the last), computed in `dtype`."""
    helper = LayerHelper("log_softmax", name=name)
    x = input
    if dtype is not None:
        x = helper.create_variable_for_type_inference(dtype)
        helper.append_op(
            type="cast", inputs={"X": input}, outputs={"Out": x}, attrs=cast_attrs(input, dtype)
        )
    soft = helper.create_variable_for_type_inference(x.dtype)
    attrs = {"axis": -1 if axis is None else axis, "use_cudnn": False}
    helper.append_op(type="softmax", inputs={"X": x}, outputs={"Out": soft}, attrs=attrs)
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(type="log", inputs={"X": soft}, outputs={"Out": out})
    return out


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """x with elements set to zero, each with probability `dropout_prob`; all of x when testing.

    `upscale_in_train` divides what is left by the probability to stay; `downgrade_in_infer`
    multiplies by it when testing.
    """
    if seed is None:
        seed = default_main_program().random_seed or None
    attrs = {
        "dropout_prob": dropout_prob,
        "is_test": is_test,
        "fix_seed": seed is not None,
        "seed": seed or 0,
        "dropout_implementation": dropout_implementation,
    }
    return append(
        "dropout", {"X": checked(x, "dropout", "x")}, attrs, name=name, extra={"Mask": "uint8"}
    )


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between rows of X and of Y; Y may be a single row."""
    inputs = {"X": checked(X, "cos_sim", "X"), "Y": checked(Y, "cos_sim", "Y")}
    return append("cos_sim", inputs, extra={"XNorm": None, "YNorm": None})


def l2_normalize(
    x: Variable, axis: int | None, epsilon: float = 1e-12, name: str | None = None
) -> Variable:
    """x divided by its Euclidean length along `axis`."""
    if len(checked(x, "l2_normalize", "x").shape) == 1:
        axis = 0
    attrs = {"axis": 1 if axis is None else axis, "epsilon": epsilon}
    return append("norm", {"X": x}, attrs, layer="l2_normalize", name=name, extra={"Norm": None})


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """x kept between `min` and `max`."""
    return append(
        "clip", {"X": checked(x, "clip", "x")}, {"min": float(min), "max": float(max)}, name=name
    )


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """x, scaled down to a Euclidean length of `max_norm` where it is longer."""
    return append("clip_by_norm", {"X": x}, {"max_norm": float(max_norm)}, name=name)


def topk(input: Variable, k: Any, name: str | None = None) -> tuple[Variable, Variable]:
    """The `k` largest elements of each row, largest first, and where they stand."""
    helper = LayerHelper("top_k", name=name)
    inputs = {"X": checked(input, "topk", "input")}
    attrs = {}
    if isinstance(k, Variable):
        inputs["K"] = k
    else:
        attrs["k"] = k
    values = helper.create_variable_for_type_inference(input.dtype, stop_gradient=True)
    indices = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    outputs = {"Out": values, "Indices": indices}
    helper.append_op(type="top_k", inputs=inputs, outputs=outputs, attrs=attrs)
    return values, indices

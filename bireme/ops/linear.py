"""Products of matrices and vectors."""

from bireme.arrays.namespaces import Array
from bireme.errors import InvalidArgument

from . import products
from .elementwise import pair
from .shapes import product, same_as
from .table import GradOp, Infer, op

Pair = tuple[Array, Array]


# -- mul: the product of two tensors seen as matrices ------------------------------------------
def _mul_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    m, n = ctx.attr("x_num_col_dims"), ctx.attr("y_num_col_dims")
    if not (0 < m < len(x.shape) and 0 < n < len(y.shape)):
        raise InvalidArgument(
            f"mul: {list(x.shape)} and {list(y.shape)} cannot be split after {m} and {n} dimensions"
        )
    _must_meet(ctx, product(x.shape[m:]), product(y.shape[:n]))
    ctx.set("Out", x.shape[:m] + y.shape[n:], like=x)


def _must_meet(ctx: Infer, columns: int, rows: int) -> None:
    if columns != rows and columns >= 0 and rows >= 0:
        raise InvalidArgument(
            f"{ctx.op.type}: {columns} columns of X {list(ctx.x('X').shape)} meet {rows} rows of "
            f"Y {list(ctx.x('Y').shape)}"
        )


def matrix(a: Array, columns: int) -> Array:
    """`a` as a matrix: the first `columns` dimensions are its rows."""
    if a.ndim == 2 and columns == 1:
        return a
    rows = 1
    for n in a.shape[:columns]:
        rows *= n
    return a.reshape(rows, -1) if rows else a.reshape(0, product(a.shape[columns:]))


@op("mul", infer=_mul_rule, grad=GradOp(uses=("X", "Y")))
def mul(
    xp: Array, X: Array, Y: Array, x_num_col_dims: int, y_num_col_dims: int, out: Array = None
) -> Array:
    if X.ndim == 2 and Y.ndim == 2:
        return products.dot(xp, X, Y, out)
    flat = products.dot(xp, matrix(X, x_num_col_dims), matrix(Y, y_num_col_dims))
    return flat.reshape(X.shape[:x_num_col_dims] + Y.shape[y_num_col_dims:])


@op("mul_grad", out="X@GRAD Y@GRAD")
def mul_grad(
    xp: Array,
    X: Array,
    Y: Array,
    dOut: Array,
    x_num_col_dims: int,
    y_num_col_dims: int,
    need: frozenset[str],
    out: Array = None,
) -> Pair:
    dx, dy = pair(out)
    if X.ndim == Y.ndim == dOut.ndim == 2:
        return _matrix_grads(xp, X, Y, dOut, need, dx, dy)
    x, y = matrix(X, x_num_col_dims), matrix(Y, y_num_col_dims)
    dx = None if dx is None else dx.reshape(x.shape)
    dy = None if dy is None else dy.reshape(y.shape)
    g = dOut.reshape(x.shape[0], y.shape[1])
    dx, dy = _matrix_grads(xp, x, y, g, need, dx, dy)
    return (
        None if dx is None else dx.reshape(X.shape),
        None if dy is None else dy.reshape(Y.shape),
    )


def _matrix_grads(
    xp: Array, x: Array, y: Array, g: Array, need: frozenset[str], dx: Array, dy: Array
) -> Pair:
    """The gradients of a product of two matrices, into `dx` and `dy` where they are offered."""
    pairs = []
    if "X@GRAD" in need:
        pairs.append((g, y.T, dx))
    if "Y@GRAD" in need and x.shape[0] != 1:
        pairs.append((x.T, g, dy))
    found = products.dots(xp, *pairs)
    dx = found[0] if "X@GRAD" in need else None
    if "Y@GRAD" not in need:
        return dx, None
    if x.shape[0] == 1:  # a product of one row and one column, in a tenth of the time
        found.append(xp.multiply(x.T, g, out=dy))
    return dx, found[-1]


# -- matmul: batches of matrices, vectors allowed ----------------------------------------------
def _matmul_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    xs = list(x.shape) if len(x.shape) > 1 else [1, *x.shape]
    ys = list(y.shape) if len(y.shape) > 1 else [*y.shape, 1]
    turned = ctx.attr("transpose_X"), ctx.attr("transpose_Y")
    for sizes, turn in zip((xs, ys), turned, strict=True):
        sizes[-2:] = sizes[:-3:-1] if turn else sizes[-2:]
    _must_meet(ctx, xs[-1], ys[-2])
    batch = _batch(ctx, xs[:-2], ys[:-2])
    rows = [xs[-2]] if len(x.shape) > 1 or turned[0] else []
    columns = [ys[-1]] if len(y.shape) > 1 or turned[1] else []
    ctx.set("Out", [*batch, *rows, *columns] or [1], like=x)


def _batch(ctx: Infer, xs: list[int], ys: list[int]) -> list[int]:
    """Batch dimensions are equal, or one operand is a single matrix."""
    if not xs or not ys:
        return xs or ys
    if len(xs) != len(ys) or any(m != n and m > 0 and n > 0 for m, n in zip(xs, ys, strict=True)):
        raise InvalidArgument(f"{ctx.op.type}: batches {xs} and {ys} differ")
    return [max(m, n) for m, n in zip(xs, ys, strict=True)]


def _operands(x: Array, y: Array, turn_x: bool, turn_y: bool) -> Pair:
    """The factors; a vector that is transposed is a matrix of one column (x) or one row (y)."""
    if turn_x:
        x = x[:, None] if x.ndim == 1 else x.swapaxes(-1, -2)
    if turn_y:
        y = y[None] if y.ndim == 1 else y.swapaxes(-1, -2)
    return x, y


@op("matmul", infer=_matmul_rule, grad=GradOp(uses=("X", "Y")))
def matmul(
    xp: Array,
    X: Array,
    Y: Array,
    transpose_X: bool,
    transpose_Y: bool,
    alpha: float,
    out: Array = None,
) -> Array:
    x, y = _operands(X, Y, transpose_X, transpose_Y)
    if x.ndim == 1 and y.ndim == 1:
        return (xp.dot(x, y) * x.dtype.type(alpha)).reshape(1)
    found = products.matmul(xp, x, y, out)
    if alpha != 1.0:
        found *= found.dtype.type(alpha)
    return found


@op("matmul_grad", out="X@GRAD Y@GRAD")
def matmul_grad(
    xp: Array,
    X: Array,
    Y: Array,
    dOut: Array,
    transpose_X: bool,
    transpose_Y: bool,
    alpha: float,
    need: frozenset[str],
    out: Array = None,
) -> Pair:
    ox, oy = pair(out)
    x, y = _operands(X, Y, transpose_X, transpose_Y)
    g = dOut if alpha == 1.0 else dOut * dOut.dtype.type(alpha)
    if y.ndim == 1:
        g = g[..., None] if x.ndim > 1 else g
    if x.ndim == 1:
        g = g.reshape(1, 1) if y.ndim == 1 else g[..., None, :]
    x = x[None] if x.ndim == 1 else x
    y = y[:, None] if y.ndim == 1 else y
    dx = dy = None
    if "X@GRAD" in need:
        dx = _slope(xp, g, y.swapaxes(-1, -2), x, X, transpose_X, ox)
    if "Y@GRAD" in need:
        dy = _slope(xp, x.swapaxes(-1, -2), g, y, Y, transpose_Y, oy)
    return dx, dy


def _slope(
    xp: Array, a: Array, b: Array, operand: Array, given: Array, swapped: bool, out: Array
) -> Array:
    """The gradient a x b of an operand, in the layout of the array that was given for it."""
    if swapped and given.ndim > 1:
        a, b, operand = b.swapaxes(-1, -2), a.swapaxes(-1, -2), operand.swapaxes(-1, -2)
    out = None if out is None else out.reshape(operand.shape)
    return _product_over(xp, a, b, operand.ndim, out).reshape(given.shape)


def _product_over(xp: Array, a: Array, b: Array, ndim: int, out: Array) -> Array:
    """The product, summed over the batch dimensions that the operand did not have."""
    if ndim == 2 and a.ndim > 2 and b.ndim > 2:
        rows = a.swapaxes(-1, -2)
        flat = b.reshape(-1, b.shape[-1])
        return products.dot(xp, rows.reshape(-1, rows.shape[-1]).T, flat, out)
    extra = max(a.ndim, b.ndim) - ndim
    if extra <= 0:
        return products.matmul(xp, a, b, out)
    return xp.add.reduce(products.matmul(xp, a, b), axis=tuple(range(extra)), out=out)


# -- bmm, dot, addmm, bilinear -----------------------------------------------------------------
def _bmm_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if len(x.shape) != 3 or len(y.shape) != 3:
        raise InvalidArgument(f"bmm takes 3-D tensors, got {list(x.shape)} and {list(y.shape)}")
    _must_meet(ctx, x.shape[2], y.shape[1])
    ctx.set("Out", [*_batch(ctx, [x.shape[0]], [y.shape[0]]), x.shape[1], y.shape[2]], like=x)


@op("bmm", infer=_bmm_rule, grad=GradOp(uses=("X", "Y")))
def bmm(xp: Array, X: Array, Y: Array, out: Array = None) -> Array:
    return products.matmul(xp, X, Y, out)


@op("bmm_grad")
def bmm_grad(xp: Array, X: Array, Y: Array, dOut: Array, need: frozenset[str]) -> Pair:
    dx = products.matmul(xp, dOut, Y.swapaxes(1, 2)) if "X@GRAD" in need else None
    return dx, products.matmul(xp, X.swapaxes(1, 2), dOut) if "Y@GRAD" in need else None


def _dot_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    if len(x.shape) != len(ctx.x("Y").shape) or len(x.shape) > 2:
        raise InvalidArgument(f"dot takes two vectors or two matrices, got {list(x.shape)}")
    ctx.set("Out", [*x.shape[:-1], 1], like=x)


@op("dot", infer=_dot_rule, grad=GradOp(uses=("X", "Y")))
def dot(xp: Array, X: Array, Y: Array) -> Array:
    return (X * Y).sum(-1, keepdims=True)


@op("dot_grad")
def dot_grad(xp: Array, X: Array, Y: Array, dOut: Array, need: frozenset[str]) -> Pair:
    return dOut * Y if "X@GRAD" in need else None, dOut * X if "Y@GRAD" in need else None


def _addmm_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    _must_meet(ctx, x.shape[-1], y.shape[0])
    ctx.set("Out", (x.shape[0], y.shape[1]), like=x)


@op("addmm", infer=_addmm_rule, grad=GradOp(uses=("Input", "X", "Y")))
def addmm(xp: Array, Input: Array, X: Array, Y: Array, Alpha: float, Beta: float) -> Array:
    found = products.dot(xp, X, Y)
    found *= found.dtype.type(Alpha)
    found += Input * found.dtype.type(Beta)
    return found


@op("addmm_grad")
def addmm_grad(
    xp: Array,
    Input: Array,
    X: Array,
    Y: Array,
    dOut: Array,
    Alpha: float,
    Beta: float,
    need: frozenset[str],
) -> tuple[Array, Array, Array]:
    kind = dOut.dtype.type
    over = tuple(i for i, n in enumerate(Input.shape) if n == 1 and dOut.shape[i] != 1)
    base = (dOut.sum(over, keepdims=True) if over else dOut) * kind(Beta)
    dx = products.dot(xp, dOut, Y.T) * kind(Alpha) if "X@GRAD" in need else None
    dy = products.dot(xp, X.T, dOut) * kind(Alpha) if "Y@GRAD" in need else None
    return base, dx, dy


def _bilinear_rule(ctx: Infer) -> None:
    x, y, w = ctx.x("X"), ctx.x("Y"), ctx.x("Weight")
    if w.shape[1:] != (x.shape[1], y.shape[1]):
        raise InvalidArgument(
            f"bilinear_tensor_product: Weight {list(w.shape)} does not fit X {list(x.shape)}"
        )
    ctx.set("Out", (x.shape[0], w.shape[0]), like=x)


@op(
    "bilinear_tensor_product",
    infer=_bilinear_rule,
    grad=GradOp(uses=("X", "Y", "Weight"), wrt=("X", "Y", "Weight", "Bias")),
)
def bilinear_tensor_product(xp: Array, X: Array, Y: Array, Weight: Array, Bias: Array) -> Array:
    found = xp.einsum("bi,kij,bj->bk", X, Weight, Y, optimize=True)
    return found if Bias is None else found + Bias


@op("bilinear_tensor_product_grad")
def bilinear_tensor_product_grad(
    xp: Array, X: Array, Y: Array, Weight: Array, dOut: Array, need: frozenset[str]
) -> tuple[Array, Array, Array, Array]:
    mixed = xp.tensordot(dOut, Weight, 1)
    return (
        xp.matmul(mixed, Y[:, :, None])[:, :, 0] if "X@GRAD" in need else None,
        xp.matmul(X[:, None, :], mixed)[:, 0] if "Y@GRAD" in need else None,
        xp.einsum("bk,bi,bj->kij", dOut, X, Y, optimize=True) if "Weight@GRAD" in need else None,
        dOut.sum(0, keepdims=True) if "Bias@GRAD" in need else None,
    )


# -- cos_sim -----------------------------------------------------------------------------------
def _cos_rule(ctx: Infer) -> None:
    x, y = ctx.x("X"), ctx.x("Y")
    if x.shape[1:] != y.shape[1:] or (y.shape[0] not in (1, x.shape[0], -1) and x.shape[0] != -1):
        raise InvalidArgument(
            f"cos_sim: {list(y.shape)} is neither like {list(x.shape)} nor one row of it"
        )
    ctx.set("Out", (x.shape[0], 1), like=x)
    ctx.set("XNorm", (x.shape[0], 1), x.dtype)
    ctx.set("YNorm", (y.shape[0], 1), x.dtype)


@op(
    "cos_sim",
    infer=_cos_rule,
    grad=GradOp(uses=("X", "Y", "Out", "XNorm", "YNorm")),
    returns="Out XNorm YNorm",
)
def cos_sim(xp: Array, X: Array, Y: Array) -> tuple[Array, Array, Array]:
    x, y = X.reshape(len(X), -1), Y.reshape(len(Y), -1)
    x_norm = xp.sqrt((x * x).sum(1, keepdims=True))
    y_norm = xp.sqrt((y * y).sum(1, keepdims=True))
    return (x * y).sum(1, keepdims=True) / (x_norm * y_norm), x_norm, y_norm


@op("cos_sim_grad")
def cos_sim_grad(
    xp: Array,
    X: Array,
    Y: Array,
    Out: Array,
    XNorm: Array,
    YNorm: Array,
    dOut: Array,
    need: frozenset[str],
) -> Pair:
    x, y = X.reshape(len(X), -1), Y.reshape(len(Y), -1)
    share = dOut / (XNorm * YNorm)
    dx = dy = None
    if "X@GRAD" in need:
        dx = (share * y - dOut * Out / (XNorm * XNorm) * x).reshape(X.shape)
    if "Y@GRAD" in need:
        dy = share * x - dOut * Out / (YNorm * YNorm) * y
        dy = (dy.sum(0, keepdims=True) if len(Y) < len(X) else dy).reshape(Y.shape)
    return dx, dy


def _kron_rule(ctx: Infer) -> None:
    x, y = list(ctx.x("X").shape), list(ctx.x("Y").shape)
    rank = max(len(x), len(y))
    x, y = [1] * (rank - len(x)) + x, [1] * (rank - len(y)) + y
    ctx.set(
        "Out", [-1 if m < 0 or n < 0 else m * n for m, n in zip(x, y, strict=True)], like=ctx.x("X")
    )


@op("kron", infer=_kron_rule, grad=GradOp(uses=("X", "Y")))
def kron(xp: Array, X: Array, Y: Array) -> Array:
    return xp.kron(X, Y)


@op("kron_grad")
def kron_grad(xp: Array, X: Array, Y: Array, dOut: Array, need: frozenset[str]) -> Pair:
    rank = max(X.ndim, Y.ndim)
    x = X.reshape((1,) * (rank - X.ndim) + X.shape)
    y = Y.reshape((1,) * (rank - Y.ndim) + Y.shape)
    parts = dOut.reshape([n for m in zip(x.shape, y.shape, strict=True) for n in m])
    inner, outer = tuple(range(1, 2 * rank, 2)), tuple(range(0, 2 * rank, 2))
    wide_y = y.reshape([n for m in y.shape for n in (1, m)])
    wide_x = x.reshape([n for m in x.shape for n in (m, 1)])
    dx = (parts * wide_y).sum(inner).reshape(X.shape) if "X@GRAD" in need else None
    return dx, (parts * wide_x).sum(outer).reshape(Y.shape) if "Y@GRAD" in need else None


@op("cross", infer=same_as("X"), grad=GradOp(uses=("X", "Y")))
def cross(xp: Array, X: Array, Y: Array, dim: int) -> Array:
    return xp.cross(X, Y, axis=_cross_axis(X, dim))


@op("cross_grad")
def cross_grad(xp: Array, X: Array, Y: Array, dOut: Array, dim: int, need: frozenset[str]) -> Pair:
    axis = _cross_axis(X, dim)
    dx = xp.cross(Y, dOut, axis=axis) if "X@GRAD" in need else None
    return dx, xp.cross(dOut, X, axis=axis) if "Y@GRAD" in need else None


def _cross_axis(x: Array, dim: int) -> int:
    """The dimension given, or the first of size 3."""
    return dim if dim != 9 else x.shape.index(3)

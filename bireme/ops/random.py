"""Operators that draw random numbers. Which numbers is the key's business: kernels here only ask
for a distribution.

A `key` names seed, variable and position, so a slice of a parameter draws what the whole would
have at its place.
"""

from collections.abc import Sequence
from typing import Any

from bireme.arrays.namespaces import Array, to_host
from bireme.arrays.random import Key
from bireme.errors import InvalidArgument
from bireme.ir import VarType, numpy_name

from .table import GradOp, Infer, no_gradient, op


def _shape_rule(ctx: Infer) -> None:
    """Out has the attribute's shape; where the shape is a tensor, only its rank is known."""
    shape = list(ctx.attr("shape") or ())
    tensor = ctx.input("ShapeTensor")
    if tensor is not None and not shape:
        shape = [-1] * (tensor.shape[0] if tensor.shape else 1)
    ctx.set("Out", shape, VarType(ctx.attr("dtype")), lod_level=0)


def _batch_rule(ctx: Infer) -> None:
    """Out has the attribute's shape, but for one dimension that is the input's."""
    like = ctx.x("Input")
    shape = list(ctx.attr("shape"))
    shape[ctx.attr("output_dim_idx") or 0] = like.shape[ctx.attr("input_dim_idx") or 0]
    ctx.set("Out", shape, VarType(_dtype(ctx.attr("dtype"))), lod_level=0)


def _permutation_rule(ctx: Infer) -> None:
    ctx.set("Out", (ctx.attr("n"),), VarType(_dtype(ctx.attr("dtype"), VarType.INT64)), lod_level=0)


def _shuffle_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", like=x)
    ctx.set("ShuffleIdx", (-1,), VarType.INT64)
    ctx.set("SeedOut", like=ctx.x("Seed"))


def _crop_rule(ctx: Infer) -> None:
    x, inner = ctx.x("X"), tuple(ctx.attr("shape"))
    whole = x.shape[len(x.shape) - len(inner) :]
    if len(whole) != len(inner) or any(m >= 0 and n > m for n, m in zip(inner, whole, strict=True)):
        raise InvalidArgument(f"random_crop: {list(inner)} does not fit into {list(x.shape)}")
    ctx.set("Out", (*x.shape[: len(x.shape) - len(inner)], *inner), x.dtype)
    ctx.set("SeedOut", like=ctx.x("Seed"))


def _seed_rule(ctx: Infer) -> None:
    ctx.set("Out", (1,), VarType.INT32, lod_level=0)


def _ids_rule(ctx: Infer) -> None:
    x = ctx.x("X")
    ctx.set("Out", x.shape[:-1], lod_level=x.lod_level)


def _dtype(given: int | None, default: VarType = VarType.FP32) -> int:
    return default if given is None or given < 0 else given


def _size(shape: Sequence[int], tensor: Array, parts: Sequence[Array] | None) -> list[int]:
    """The shape to draw: a list of tensors wins over one tensor, that over the attribute."""
    if parts:
        return [int(to_host(part).reshape(-1)[0]) for part in parts]
    if tensor is not None:
        return [int(n) for n in to_host(tensor)]
    return [int(n) for n in shape]


def _batched(
    shape: Sequence[int], like: Array, source: int | None, target: int | None
) -> list[int]:
    size = list(shape)
    size[target or 0] = like.shape[source or 0]
    return size


def _diagonal(out: Array, number: int | None, step: int | None, value: float | None) -> Array:
    """Set `number` elements, `step + 1` apart, to `value`."""
    if number:
        flat = out.reshape(-1)
        stride = (step or 0) + 1
        flat[: (number - 1) * stride + 1 : stride] = value
    return out


@op("uniform_random", infer=_shape_rule, lod=None, stateful=True)
def uniform_random(
    xp: Any,
    key: Key,
    ShapeTensor: Array,
    ShapeTensorList: list[Array],
    shape: Sequence[int],
    min: float,
    max: float,
    dtype: int,
    diag_num: int,
    diag_step: int,
    diag_val: float,
) -> Array:
    size = _size(shape, ShapeTensor, ShapeTensorList)
    out = key.uniform(xp, size, min, max, numpy_name(VarType(dtype)))
    return _diagonal(out, diag_num, diag_step, diag_val)


@op("gaussian_random", infer=_shape_rule, lod=None, stateful=True)
def gaussian_random(
    xp: Any,
    key: Key,
    ShapeTensor: Array,
    ShapeTensorList: list[Array],
    shape: Sequence[int],
    mean: float,
    std: float,
    dtype: int,
) -> Array:
    size = _size(shape, ShapeTensor, ShapeTensorList)
    return key.normal(xp, size, mean, std, numpy_name(VarType(dtype)))


@op("truncated_gaussian_random", infer=_shape_rule, lod=None, stateful=True)
def truncated_gaussian_random(
    xp: Any, key: Key, shape: Sequence[int], mean: float, std: float, dtype: int
) -> Array:
    moments = (0.0 if mean is None else mean, 1.0 if std is None else std)
    return key.truncated_normal(xp, list(shape), *moments, numpy_name(VarType(_dtype(dtype))))


@op(
    "uniform_random_batch_size_like",
    infer=_batch_rule,
    grad=no_gradient,
    lod=None,
    stateful=True,
)
def uniform_random_batch_size_like(
    xp: Any,
    key: Key,
    Input: Array,
    shape: Sequence[int],
    input_dim_idx: int,
    output_dim_idx: int,
    min: float,
    max: float,
    dtype: int,
    diag_num: int,
    diag_step: int,
    diag_val: float,
) -> Array:
    size = _batched(shape, Input, input_dim_idx, output_dim_idx)
    limits = (-1.0 if min is None else min, 1.0 if max is None else max)
    out = key.uniform(xp, size, *limits, numpy_name(VarType(_dtype(dtype))))
    return _diagonal(out, diag_num, diag_step, diag_val)


@op(
    "gaussian_random_batch_size_like",
    infer=_batch_rule,
    grad=no_gradient,
    lod=None,
    stateful=True,
)
def gaussian_random_batch_size_like(
    xp: Any,
    key: Key,
    Input: Array,
    shape: Sequence[int],
    input_dim_idx: int,
    output_dim_idx: int,
    mean: float,
    std: float,
    dtype: int,
) -> Array:
    size = _batched(shape, Input, input_dim_idx, output_dim_idx)
    moments = (0.0 if mean is None else mean, 1.0 if std is None else std)
    return key.normal(xp, size, *moments, numpy_name(VarType(_dtype(dtype))))


@op("randint", infer=_shape_rule, lod=None, stateful=True)
def randint(
    xp: Any,
    key: Key,
    ShapeTensor: Array,
    ShapeTensorList: list[Array],
    shape: Sequence[int],
    low: int,
    high: int,
    dtype: int,
) -> Array:
    size = _size(shape, ShapeTensor, ShapeTensorList)
    return key.randint(xp, size, low, high, numpy_name(VarType(dtype)))


@op("randperm", infer=_permutation_rule, lod=None, stateful=True)
def randperm(xp: Any, key: Key, n: int, dtype: int) -> Array:
    return key.permutation(xp, n).astype(numpy_name(VarType(_dtype(dtype, VarType.INT64))))


@op(
    "shuffle_batch",
    infer=_shuffle_rule,
    grad=GradOp(uses=("ShuffleIdx",), wrt=("X",), of=("Out",)),
    returns="Out ShuffleIdx SeedOut",
    stateful=True,
)
def shuffle_batch(xp: Any, key: Key, X: Array, Seed: Array) -> tuple[Array, Array, Array]:
    """Rows (all but the last dimension) in random order, the order, and the seed of the next
    call.
    """
    rows = X.reshape(-1, X.shape[-1])
    order = key.permutation(xp, len(rows))
    return rows[order].reshape(X.shape), order, Seed + 1


@op("shuffle_batch_grad")
def shuffle_batch_grad(xp: Any, ShuffleIdx: Array, dOut: Array) -> Array:
    rows = dOut.reshape(-1, dOut.shape[-1])
    back = xp.empty_like(rows)
    back[ShuffleIdx] = rows
    return back.reshape(dOut.shape)


@op("sampling_id", infer=_ids_rule, grad=no_gradient, stateful=True)
def sampling_id(xp: Any, key: Key, X: Array, min: float, max: float) -> Array:
    """One column per row of X, drawn with the row's probabilities; int64, whatever dtype the
    layer declares.
    """
    bounds = xp.cumsum(X, axis=-1)
    drawn = key.uniform(xp, X.shape[:-1], min, max).astype(X.dtype)
    found = (bounds < drawn[..., None]).sum(axis=-1)
    return xp.minimum(found, X.shape[-1] - 1).astype(xp.int64)


@op("random_crop", infer=_crop_rule, returns="Out SeedOut", stateful=True, lod=None)
def random_crop(
    xp: Any, key: Key, X: Array, Seed: Array, shape: Sequence[int]
) -> tuple[Array, Array]:
    """A window of the given shape from the last dimensions, at a place of its own for each line."""
    inner = tuple(shape)
    lead = X.shape[: X.ndim - len(inner)]
    lines = X.reshape(-1, *X.shape[X.ndim - len(inner) :])
    room = xp.asarray([m - n + 1 for m, n in zip(lines.shape[1:], inner, strict=True)])
    stream = (int(to_host(Seed).reshape(-1)[0]) & 0x7FFFFFFF) << 32
    drawn = key.at(stream).uniform(xp, (len(lines), len(inner)))
    begin = xp.minimum((drawn * room).astype(xp.int64), room - 1)
    index = [xp.arange(len(lines)).reshape(-1, *[1] * len(inner))]
    for d, n in enumerate(inner):
        along = [1] * (1 + len(inner))
        along[d + 1] = n
        index.append(begin[:, d].reshape(-1, *[1] * len(inner)) + xp.arange(n).reshape(along))
    return lines[tuple(index)].reshape(*lead, *inner), Seed + 1


@op("seed", infer=_seed_rule, lod=None, stateful=True)
def seed(xp: Any, key: Key, seed: int) -> Array:
    """The attribute, or where it is 0 a number drawn."""
    if seed:
        return xp.full(1, seed, dtype=xp.int32)
    return key.randint(xp, (1,), 1, 2**31 - 1, "int32")

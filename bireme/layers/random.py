"""Layers that draw random numbers. Seed 0 means the program's seed."""

from collections.abc import Sequence
from typing import Any

from bireme.initializer import Constant
from bireme.ir import Variable, to_dtype, unique_name

from .helper import LayerHelper
from .single import append, checked
from .tensor import sized

__all__ = [
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "random_crop",
    "sampling_id",
    "uniform_random",
    "uniform_random_batch_size_like",
]

Sizes = Sequence[Any] | Variable


def uniform_random(
    shape: Sizes, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Variable:
    """Uniform on [min, max); sizes may be variables."""
    return _drawn("uniform_random", shape, dtype, {"min": min, "max": max, "seed": seed})


def gaussian_random(
    shape: Sizes, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """Normal with the given mean and standard deviation; sizes may be variables."""
    return _drawn("gaussian_random", shape, dtype, {"mean": mean, "std": std, "seed": seed})


def _drawn(type: str, shape: Sizes, dtype: Any, attrs: dict[str, Any]) -> Variable:
    inputs: dict[str, Any] = {}
    attrs["dtype"] = int(to_dtype(dtype))
    sized(inputs, attrs, shape, "shape", "ShapeTensor", "ShapeTensorList", None)
    return append(type, inputs, attrs, dtype=dtype)


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """`uniform_random`, with dimension `output_dim_idx` as long as `input`'s `input_dim_idx`."""
    attrs = {"min": min, "max": max, "seed": seed}
    return _like("uniform", input, shape, dtype, (input_dim_idx, output_dim_idx), attrs)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """`gaussian_random`, with dimension `output_dim_idx` as long as `input`'s `input_dim_idx`."""
    attrs = {"mean": mean, "std": std, "seed": seed}
    return _like("gaussian", input, shape, dtype, (input_dim_idx, output_dim_idx), attrs)


def _like(
    kind: str,
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    dimensions: tuple[int, int],
    attrs: dict[str, Any],
) -> Variable:
    type = f"{kind}_random_batch_size_like"
    source, target = dimensions
    attrs |= {"shape": list(shape), "input_dim_idx": source, "output_dim_idx": target}
    attrs["dtype"] = int(to_dtype(dtype))
    return append(type, {"Input": checked(input, type, "input")}, attrs, dtype=dtype)


def sampling_id(
    x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """The number of a column of each row of `x`, drawn with the row's probabilities."""
    return append("sampling_id", {"X": x}, {"min": min, "max": max, "seed": seed}, dtype=dtype)


def random_crop(x: Variable, shape: Sequence[int], seed: Any = None) -> Variable:
    """A window of `shape` from the last dimensions of `x`, at a random place for each line."""
    helper = LayerHelper("random_crop", x=x)
    out = helper.create_variable_for_type_inference(checked(x, "random_crop", "x").dtype)
    attrs: dict[str, Any] = {"shape": list(shape)}
    if not isinstance(seed, Variable):
        attrs["startup_seed"] = int(seed or 0)
        name = unique_name.generate("random_crop_seed")
        counter = helper.create_global_variable(
            name=name, shape=[1], dtype="int64", persistable=True, stop_gradient=True
        )
        helper.set_variable_initializer(counter, Constant(attrs["startup_seed"]))
        seed = counter
    helper.append_op(
        type="random_crop",
        inputs={"X": x, "Seed": seed},
        outputs={"Out": out, "SeedOut": seed},
        attrs=attrs,
    )
    return out

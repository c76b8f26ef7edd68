"""Layers with learned slopes or groups, features of click and vision models, and doors to the
host.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bireme.errors import InvalidArgument
from bireme.initializer import Constant
from bireme.ir import Variable
from bireme.ops import host

from .helper import LayerHelper
from .single import append, checked

__all__ = [
    "Print",
    "add_position_encoding",
    "continuous_value_model",
    "fsp_matrix",
    "maxout",
    "prelu",
    "py_func",
    "similarity_focus",
]


def prelu(x: Variable, mode: str, param_attr: Any = None, name: str | None = None) -> Variable:
    """x where positive, else a learned slope times x: one slope for `all`, per `channel` or
    `element`.
    """
    helper = LayerHelper("prelu", **locals())
    shapes = {"all": [1], "channel": [1, x.shape[1], *(1,) * (len(x.shape) - 2)]}
    shapes["element"] = [1, *x.shape[1:]]
    if mode not in shapes:
        raise InvalidArgument(f"prelu: mode {mode!r} is none of all, channel, element")
    alpha = helper.create_parameter(
        helper.param_attr, shapes[mode], "float32", default_initializer=Constant(0.25)
    )
    out = helper.create_variable_for_type_inference(x.dtype)
    helper.append_op(
        type="prelu", inputs={"X": x, "Alpha": alpha}, outputs={"Out": out}, attrs={"mode": mode}
    )
    return out


def similarity_focus(
    input: Variable, axis: int, indexes: Sequence[int], name: str | None = None
) -> Variable:
    """A mask like `input` [N, A, B, C]: ones where planes at `indexes` of `axis` are greatest, each
    row and column once.
    """
    if axis not in (1, 2, 3) or not indexes:
        raise InvalidArgument(
            f"similarity_focus: axis {axis}, indexes {list(indexes)}",
            hint="give an axis of 1, 2 or 3 and at least one index",
        )
    attrs = {"axis": axis, "indexes": list(indexes)}
    return append("similarity_focus", {"X": input}, attrs, name=name)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """The greatest of every `groups` channels that follow each other."""
    at = axis + len(x.shape) if axis == -1 else axis
    return append("maxout", {"X": x}, {"groups": groups, "axis": at}, name=name)


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Features whose first two columns, show and click, become logarithms, or are dropped."""
    helper = LayerHelper("cvm")
    out = helper.create_variable(dtype=input.dtype)
    return append("cvm", {"X": input, "CVM": cvm}, {"use_cvm": use_cvm}, slot="Y", out=out)


def add_position_encoding(
    input: Variable, alpha: float, beta: float, name: str | None = None
) -> Variable:
    """alpha * input + beta * waves that tell positions apart."""
    return append("add_position_encoding", {"X": input}, {"alpha": alpha, "beta": beta}, name=name)


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """The products of all pairs of maps of x and y, averaged over the pixels."""
    return append("fsp", {"X": x, "Y": y}, layer="fsp_matrix")


# -- operators that run on the host ------------------------------------------------------------
def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """input, printed whenever the program runs: `forward`, `backward` (its gradient) or `both`."""
    helper = LayerHelper("print_" + checked(input, "Print", "input").name)
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(
        type="print",
        inputs={"In": input},
        outputs={"Out": out},
        attrs={
            "first_n": first_n,
            "summarize": summarize,
            "message": message or "",
            "print_tensor_name": print_tensor_name,
            "print_tensor_type": print_tensor_type,
            "print_tensor_shape": print_tensor_shape,
            "print_tensor_lod": print_tensor_lod,
            "print_phase": print_phase.upper(),
            "is_forward": True,
            "bireme.name": input.name,
        },
    )
    return out


def py_func(
    func: Callable[..., Any],
    x: Any,
    out: Any,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
) -> Any:
    """`out`, computed by a Python function of the values of `x`.

    `backward_func` gets inputs, outputs and gradients of outputs, less
    `skip_vars_in_backward_input`, and returns the gradients of the inputs.
    """
    helper = LayerHelper("py_func")
    given, made, skipped = _listed(x), _listed(out), _listed(skip_vars_in_backward_input)
    for var in made:
        if not var.shape:
            raise InvalidArgument(f"py_func: output {var.name!r} needs a shape")
    wrong = [v.name for v in skipped if v.name not in {w.name for w in (*given, *made)}]
    if wrong:
        raise InvalidArgument(f"py_func: {wrong} are neither inputs nor outputs")
    helper.append_op(
        type="py_func",
        inputs={"X": given},
        outputs={"Out": made},
        attrs={
            "forward_callable_id": host.register(func),
            "backward_callable_id": -1 if backward_func is None else host.register(backward_func),
            "backward_skip_vars": [v.name for v in skipped],
        },
    )
    return out


def _listed(value: Any) -> Sequence[Variable]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]

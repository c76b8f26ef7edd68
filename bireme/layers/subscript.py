"""`x[...]` on variables: slices, numbers, variables and an ellipsis become slice, strided_slice
or reverse.
"""

from dataclasses import dataclass, field
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType, unique_name

_END = 10_000_000  # "to the end", in Fluid's programs


@dataclass
class _Cut:
    """What is taken along each axis that is cut."""

    axes: list[int] = field(default_factory=list)
    starts: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    reversed: list[int] = field(default_factory=list)

    def take(self, axis: int, start: Any, end: Any, stride: int = 1) -> None:
        self.axes.append(axis)
        self.starts.append(start)
        self.ends.append(end)
        self.strides.append(stride)


def subscript(self: Variable, item: Any) -> Variable:
    """The part of a variable that a subscript names.

    Raises:
        InvalidArgument: the subscript does not fit the variable.
    """
    block = self.block.program.current_block()
    cut = _read(self, block, _aligned(self, item))
    out = _sliced(self, block, cut) if cut.axes else self
    if cut.reversed:
        turned = _new(self, block, self.name + "_slice_reverse")
        block.append_op(
            type="reverse",
            inputs={"X": [out]},
            outputs={"Out": [turned]},
            attrs={"axis": cut.reversed},
        )
        return turned
    return out


def _aligned(x: Variable, item: Any) -> list[Any]:
    """One entry per leading dimension, the ellipsis spread out."""
    items = list(item) if isinstance(item, tuple) else [item]
    dots = [i for i, part in enumerate(items) if part is Ellipsis]
    if len(dots) > 1 or len(items) - len(dots) > len(x.shape):
        raise InvalidArgument(f"{item!r} has too many parts for {x.name!r} of {list(x.shape)}")
    if dots:
        rest = len(x.shape) - len(items) + 1
        items[dots[0] : dots[0] + 1] = [slice(None)] * rest
    return items


def _read(x: Variable, block: Any, items: list[Any]) -> _Cut:
    cut = _Cut()
    for axis, part in enumerate(items):
        if isinstance(part, slice):
            _read_slice(cut, axis, part)
        elif isinstance(part, Variable):
            cut.take(axis, part, _following(x, block, part))
            cut.dropped.append(axis)
        elif isinstance(part, int):
            _inside(x, axis, part)
            cut.take(axis, part, part + 1 if part != -1 else _END)
            cut.dropped.append(axis)
        else:
            raise InvalidArgument(f"{x.name!r} cannot be subscripted with {part!r}")
    return cut


def _read_slice(cut: _Cut, axis: int, part: slice) -> None:
    if part.start is None and part.stop is None and part.step in (None, 1):
        return
    if part.start is None and part.stop is None and part.step == -1:
        cut.reversed.append(axis)
        return
    stride = 1 if part.step is None else part.step
    if stride == 0:
        raise InvalidArgument("a step of 0 is not possible in a subscript of a variable")
    first, last = (0, _END) if stride > 0 else (_END, -_END)
    start = first if part.start is None else part.start
    cut.take(axis, start, last if part.stop is None else part.stop, stride)


def _inside(x: Variable, axis: int, index: int) -> None:
    size = x.shape[axis]
    if size >= 0 and not -size <= index < size:
        raise InvalidArgument(f"{x.name!r} has {size} elements along axis {axis}, none at {index}")


def _new(x: Variable, block: Any, key: str) -> Variable:
    made: Variable = block.create_var(name=unique_name.generate(key), dtype=x.dtype)
    return made


def _constant(block: Any, value: int) -> Variable:
    one: Variable = block.create_var(dtype="int32")
    attrs = {"shape": [1], "dtype": int(VarType.INT32), "value": float(value), "force_cpu": True}
    block.append_op(type="fill_constant", inputs={}, outputs={"Out": [one]}, attrs=attrs)
    one.stop_gradient = True
    return one


def _following(x: Variable, block: Any, index: Variable) -> Variable:
    """The index after `index`."""
    one = _constant(block, 1)
    out: Variable = block.create_var(dtype=index.dtype)
    block.append_op(
        type="elementwise_add",
        inputs={"X": [index], "Y": [one]},
        outputs={"Out": [out]},
        attrs={"axis": -1},
    )
    return out


def _sliced(x: Variable, block: Any, cut: _Cut) -> Variable:
    strided = any(n != 1 for n in cut.strides)
    inputs: dict[str, Any] = {"Input": [x]}
    attrs: dict[str, Any] = {"axes": cut.axes, "decrease_axis": cut.dropped}
    known = [True] * len(cut.axes)
    for slot, attr, given in (("Starts", "starts", cut.starts), ("Ends", "ends", cut.ends)):
        attrs[attr] = [-1 if isinstance(n, Variable) else n for n in given]
        if any(isinstance(n, Variable) for n in given):
            known = [k and not isinstance(n, Variable) for k, n in zip(known, given, strict=True)]
            inputs[slot + "TensorList"] = [
                n if isinstance(n, Variable) else _constant(block, n) for n in given
            ]
    attrs["infer_flags"] = [1 if k else -1 for k in known]
    if strided:
        attrs["strides"] = cut.strides
    out = _new(x, block, f"{x.name}_strided_slice" if strided else f"{x.name}_slice")
    block.append_op(
        type="strided_slice" if strided else "slice",
        inputs=inputs,
        outputs={"Out": [out]},
        attrs=attrs,
    )
    return out

"""Variables. A variable belongs to one block; editing it edits its program."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from bireme.errors import InvalidArgument, WrongType

from . import unique_name
from .dtypes import VarType, numpy_name, to_dtype
from .names import checked_name, grad_name
from .printing import print_parameter, print_variable

if TYPE_CHECKING:
    from .block import Block
    from .operator import Operator

T = TypeVar("T")


class Edited(Generic[T]):
    """A field whose assignment increments the program's version."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._slot = "_" + name

    @overload
    def __get__(self, obj: None, owner: type) -> "Edited[T]": ...
    @overload
    def __get__(self, obj: "Variable", owner: type) -> T: ...
    def __get__(self, obj: "Variable | None", owner: type) -> "T | Edited[T]":
        if obj is None:
            return self
        value: T = obj.__dict__[self._slot]
        return value

    def __set__(self, obj: "Variable", value: T) -> None:
        obj.__dict__[self._slot] = value
        obj.block.program.touch()


class LodLevel(Edited[int]):
    """The depth of the LoD; 0 for selected rows, as in Fluid."""

    def __get__(self, obj: Any, owner: type) -> Any:
        if obj is not None and obj.__dict__["_type"] == VarType.SELECTED_ROWS:
            return None
        return super().__get__(obj, owner)


class Variable:
    """A named value of a block.

    `shape` is a tuple with -1 for the batch, `dtype` an element type, `type` the kind
    (LOD_TENSOR, SELECTED_ROWS, ...), `lod_level` the depth of its sequence structure.
    """

    shape = Edited[tuple[int, ...]]()
    dtype = Edited[VarType | None]()
    type = Edited[VarType]()
    lod_level = LodLevel()
    persistable = Edited[bool]()
    stop_gradient = Edited[bool]()
    is_data = Edited[bool]()

    def __init__(
        self,
        block: "Block",
        type: VarType = VarType.LOD_TENSOR,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        lod_level: int | None = None,
        capacity: int | None = None,
        persistable: bool | None = None,
        error_clip: Any = None,
        stop_gradient: bool = False,
        is_data: bool = False,
        need_check_feed: bool = False,
        belong_to_optimizer: bool = False,
        **extra: Any,
    ) -> None:
        self.block = block
        self.name = checked_name(unique_name.generate("_generated_var") if name is None else name)
        self.error_clip = error_clip
        self.capacity = capacity
        self.need_check_feed = need_check_feed
        self.belong_to_optimizer = belong_to_optimizer
        self.op: Operator | None = None
        d = self.__dict__
        d["_shape"] = () if shape is None else tuple(int(n) for n in shape)
        d["_dtype"] = None if dtype is None else to_dtype(dtype)
        d["_type"] = VarType(type)
        d["_lod_level"] = lod_level or 0
        d["_persistable"] = bool(persistable)
        d["_stop_gradient"] = stop_gradient
        d["_is_data"] = is_data

    def _set_error_clip(self, error_clip: Any) -> None:
        """Clip the gradient of this variable; see `fluid.clip.ErrorClipByValue`."""
        self.error_clip = error_clip

    def fields(self) -> dict[str, Any]:
        """The arguments of `create_var` for a copy in another block."""
        return {
            "name": self.name,
            "type": self.type,
            "shape": self.shape,
            "dtype": self.dtype,
            "lod_level": self.lod_level,
            "persistable": self.persistable,
            "stop_gradient": self.stop_gradient,
            "is_data": self.is_data,
            "need_check_feed": self.need_check_feed,
            "error_clip": self.error_clip,
            "belong_to_optimizer": self.belong_to_optimizer,
        }

    def twin(self, block: "Block") -> "Variable":
        """A copy for another block, of the same class."""
        copy = self.__class__.__new__(self.__class__)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(block=block, op=None)
        return copy

    def plain_twin(
        self, block: "Block", name: str, shape: tuple[int, ...], persistable: bool
    ) -> "Variable":
        """A copy for another block that is not a parameter."""
        copy = Variable.__new__(Variable)
        mine = self.__dict__
        copy.__dict__.update(mine if self.__class__ is Variable else {k: mine[k] for k in _PLAIN})
        copy.__dict__.update(
            block=block, op=None, name=name, _shape=shape, _persistable=persistable
        )
        return copy

    def declare_again(self, given: Mapping[str, Any]) -> None:
        """Take the arguments of a second declaration, which must agree with the first.

        Raises:
            InvalidArgument: they do not.
        """
        said = {name: value for name, value in given.items() if value is not None}
        new = Variable(self.block, **{**said, "name": self.name}).__dict__
        mine = self.__dict__
        for name in _DECLARED & said.keys():
            slot = "_" + name
            if mine[slot] not in (new[slot], None, ()):
                raise InvalidArgument(
                    f"variable {self.name!r} has the {name} {mine[slot]}, it cannot be declared "
                    f"again with {new[slot]}",
                    hint="give one of the two another name, or build another program",
                )
            mine[slot] = new[slot]
        for name in said.keys() - _DECLARED - {"name"}:
            setattr(self, name, given[name])
        self.block.program.touch()

    def assume(self, other: "Variable") -> None:
        """Take all fields of `other`; name, identity and block stay."""
        self.__dict__.update({k: v for k, v in other.__dict__.items() if k != "block"})
        self.block.program.touch()

    if TYPE_CHECKING:  # the layers define the arithmetic of variables

        def __add__(self, other: Any) -> "Variable": ...
        def __radd__(self, other: Any) -> "Variable": ...
        def __sub__(self, other: Any) -> "Variable": ...
        def __rsub__(self, other: Any) -> "Variable": ...
        def __mul__(self, other: Any) -> "Variable": ...
        def __rmul__(self, other: Any) -> "Variable": ...
        def __truediv__(self, other: Any) -> "Variable": ...
        def __rtruediv__(self, other: Any) -> "Variable": ...
        def __pow__(self, other: Any) -> "Variable": ...
        def __rpow__(self, other: Any) -> "Variable": ...
        def __floordiv__(self, other: Any) -> "Variable": ...
        def __mod__(self, other: Any) -> "Variable": ...
        def __matmul__(self, other: Any) -> "Variable": ...
        def __lt__(self, other: Any) -> "Variable": ...
        def __le__(self, other: Any) -> "Variable": ...
        def __gt__(self, other: Any) -> "Variable": ...
        def __ge__(self, other: Any) -> "Variable": ...
        def __getitem__(self, other: Any) -> "Variable": ...
        def __neg__(self) -> "Variable": ...
        def astype(self, dtype: Any) -> "Variable": ...

    def to_string(self, throw_on_error: bool = True, with_details: bool = False) -> str:
        return str(self)

    def __str__(self) -> str:
        return print_variable(self)

    __repr__ = __str__

    @property
    def grad_name(self) -> str:
        return grad_name(self.name)

    @property
    def numpy_dtype(self) -> str:
        """The NumPy name of the element type."""
        return numpy_name(self.dtype if self.dtype is not None else VarType.FP32)


_DECLARED = frozenset(("type", "shape", "dtype", "lod_level", "persistable"))

_PLAIN = (
    *("block", "name", "op", "error_clip", "capacity", "need_check_feed", "belong_to_optimizer"),
    *("_shape", "_dtype", "_type", "_lod_level", "_persistable", "_stop_gradient", "_is_data"),
)


class Parameter(Variable):
    """A persistable variable that an optimizer may update."""

    def __init__(
        self,
        block: "Block",
        shape: Sequence[int],
        dtype: Any,
        type: VarType = VarType.LOD_TENSOR,
        *,
        trainable: bool = True,
        optimize_attr: dict[str, Any] | None = None,
        regularizer: Any = None,
        gradient_clip_attr: Any = None,
        do_model_average: Any = None,
        is_distributed: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("persistable", True)
        super().__init__(block, type=type, shape=shape, dtype=dtype, **kwargs)
        self.trainable = trainable
        self.optimize_attr = {"learning_rate": 1.0} if optimize_attr is None else optimize_attr
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip_attr
        self.do_model_average = do_model_average
        self.is_distributed = is_distributed

    def fields(self) -> dict[str, Any]:
        return {
            **super().fields(),
            "trainable": self.trainable,
            "optimize_attr": self.optimize_attr,
            "regularizer": self.regularizer,
            "gradient_clip_attr": self.gradient_clip_attr,
            "do_model_average": self.do_model_average,
            "is_distributed": self.is_distributed,
        }

    def __str__(self) -> str:
        return print_parameter(self)

    __repr__ = __str__


def several(given: Any) -> list[Any]:
    """The items of an argument that takes a variable or name, or several; none for None.

    Raises:
        WrongType: neither.
    """
    if given is None:
        return []
    if isinstance(given, str | Variable):
        return [given]
    if not isinstance(given, Iterable):
        raise WrongType(f"expected variables or names, got {type(given).__name__}")
    return list(given)


def several_names(given: Any) -> list[str]:
    """`several`, as names."""
    return [v if isinstance(v, str) else v.name for v in several(given)]

"""Effects: operators with side effects outside the program's values, such as communication.

The row of such an operator names a class that implements `Effect`, as a string `module:class`. The
executor imports it when a plan first contains the operator, binds consecutive operators of one
class together, once per plan and scope, and runs the result in every run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

from bireme.arrays.namespaces import Array
from bireme.arrays.places import Place
from bireme.arrays.random import Clock
from bireme.ir import Block, Operator, Program

from .context import Env
from .scope import Scope

__all__ = ["Effect", "EffectContext", "Runner"]


class Runner(Protocol):
    """The executor as seen by plans and effects. `closers` are called when it is closed, with the
    error that ends the work.
    """

    place: Place
    closers: list[Callable[[BaseException | None], None]]

    def values(
        self,
        program: Program,
        feed: Mapping[str, Any],
        fetches: Sequence[str],
        scope: Scope,
        clock: Clock,
        *,
        prune: bool = False,
    ) -> list[Any]:
        """Run a program once with a given clock."""
        ...

    def prepare(self, program: Program, block_idx: int, scope: Scope) -> Callable[[], None]:
        """Compile a block for a scope; calling the result runs it."""
        ...


@dataclass(frozen=True, slots=True)
class EffectContext:
    """Context for binding the operators of an effect."""

    program: Program
    block: Block
    place: Place
    scope: Scope
    executor: Runner


class Effect(ABC):
    """Consecutive operators of one provider, bound to a scope."""

    offers_buffers: ClassVar[bool] = False  # whether `gradient_buffer` may return one

    @classmethod
    @abstractmethod
    def bind(cls, ops: list[Operator], context: EffectContext) -> Self:
        """Bind these operators.

        Raises:
            ProgramError: an operator does not say what it must.
        """

    @abstractmethod
    def run(self, env: Env) -> None:
        """Run the operators once; `env` holds the values of this run."""

    def gradient_buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> Array | None:
        """Uninitialised host memory to compute the gradient `name` in, so that sending it needs no
        copy; None if there is none. Called in every run, before the gradient is computed.
        """
        return None

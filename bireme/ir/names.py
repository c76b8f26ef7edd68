"""Names derived from other names. Only this module adds a suffix to a name or takes one away.

A trainer's gradient of the second slice of `w` is `w@GRAD.block1.trainer_0`.
"""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from bireme.errors import InvalidArgument, WrongType

EMPTY = "@EMPTY@"  # stands for a missing argument
GRAD_SUFFIX = "@GRAD"
COUNTER = "@LR_DECAY_COUNTER@"  # the step counter of learning rate schedules
TRAINER_ID = "@TRAINER_ID@"
TABLE_PATH = "kLookupTablePath"

_HIDDEN = "\0"  # in no name of a program
_SLICE = re.compile(r"\.block\d+$")
_RECOMPUTED = re.compile(r"\.subprog_\d+$")
_TRAINER = re.compile(r"\.trainer_(\d+)$")
_SENDER = re.compile(r"\.trainer_(\d+)(?:\.pserver_\d+)?$")
_BACKUP = re.compile(r"\.trainer_\d+_bak$")


def checked_name(name: Any) -> str:
    """A name as text that can be written in UTF-8, as programs and messages are.

    Raises:
        WrongType: it is not text.
        InvalidArgument: it holds a lone surrogate, as undecodable file names do.
    """
    if isinstance(name, bytes):
        name = name.decode(errors="surrogateescape")
    if not isinstance(name, str):
        raise WrongType(f"a name must be text, got {type(name).__name__}")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"name {name!a} is not Unicode text",
                hint="name.encode(errors='replace').decode() replaces what is not",
            ) from None
    return name


# -- gradients ---------------------------------------------------------------------------------
def grad_name(name: str) -> str:
    """The name of the gradient of variable `name`."""
    return name + GRAD_SUFFIX


def is_grad(name: str) -> bool:
    """Whether this is a gradient, or a part or a copy of one."""
    return GRAD_SUFFIX in name


def without_grad(name: str) -> str:
    """The variable that a gradient, or a part or a copy of it, belongs to.

    >>> without_grad("w@GRAD@RENAME@block0@1")
    'w'
    """
    return name.partition(GRAD_SUFFIX)[0]


def summand_name(grad: str, block: int, number: int) -> str:
    """One of several gradients of the same variable that are summed up later."""
    return f"{grad}@RENAME@block{block}@{number}"


def accumulated_name(grad: str) -> str:
    """The sum of a gradient over several steps."""
    return f"{grad}@GradientMerge"


def hide_grad(name: str) -> str:
    """A gradient under a name that `is_grad` does not recognise; `show_grad` undoes it."""
    return name.replace(GRAD_SUFFIX, _HIDDEN)


def show_grad(name: str) -> str:
    return name.replace(_HIDDEN, GRAD_SUFFIX)


def is_hidden_grad(name: str) -> bool:
    return _HIDDEN in name


def recomputed_name(name: str, segment: int) -> str:
    """A forward value computed again for the backward pass of recompute segment `segment`."""
    return f"{name}.subprog_{segment}"


def without_recomputed(name: str) -> str:
    return _RECOMPUTED.sub("", name)


# -- slices, trainers and servers --------------------------------------------------------------
def slice_name(name: str, index: int, parts: int) -> str:
    """The name of slice `index` of a variable cut into `parts`; a whole variable keeps its name.

    >>> slice_name("w", 1, 2), slice_name("w", 0, 1)
    ('w.block1', 'w')
    """
    return f"{name}.block{index}" if parts > 1 else name


def without_slice(name: str) -> str:
    return _SLICE.sub("", name)


def of_trainer(name: str, trainer: int) -> str:
    """The name under which one trainer's value of `name` is sent."""
    return f"{name}.trainer_{trainer}"


def is_of_trainer(name: str) -> bool:
    """Whether this is one trainer's value, or a part of it for one server."""
    return ".trainer_" in name


def trainer_of(name: str) -> int | None:
    """The trainer whose value this is, or a part of it for one server; None if the name does not
    tell.

    >>> [trainer_of(name) for name in ("g.trainer_3", "g.trainer_3.pserver_0", "g")]
    [3, 3, None]
    """
    found = _SENDER.search(name)
    return int(found[1]) if found else None


def without_trainer(name: str) -> str:
    return _TRAINER.sub("", name)


def of_server(name: str, server: int) -> str:
    """One server's part of a gradient of a distributed table."""
    return f"{name}.pserver_{server}"


def is_of_server(name: str) -> bool:
    return ".pserver_" in name


def is_counter(name: str) -> bool:
    """Whether this is the step counter of schedules, or a trainer's copy of it."""
    return name.startswith(COUNTER)


def delta_name(name: str) -> str:
    """How far a parameter, or a slice of it, has moved since the last exchange (geo)."""
    return f"{name}.delta"


# -- delay compensation ------------------------------------------------------------------------
def backup_name(name: str, trainer: int) -> str:
    """The value of a parameter that a trainer pulled last (DC-ASGD)."""
    return f"{of_trainer(name, trainer)}_bak"


def is_backup(name: str) -> bool:
    return _BACKUP.search(name) is not None


def without_backup(name: str) -> str:
    return _BACKUP.sub("", name)


def own_backup_name(name: str) -> str:
    """The backup of the trainer whose gradient is being compensated."""
    return f"{name}.local_bak"


def mean_square_name(name: str) -> str:
    """The running mean of squared gradients (adaptive DC-ASGD)."""
    return f"{name}.dc_mean_square"


def control_names() -> Iterator[str]:
    """Names for variables that carry no value but order, the same in every build of a program."""
    return (f"__control_var@0.{number:06d}" for number in count())

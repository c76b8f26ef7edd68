"""Names that a split gives: slices, gradients of one trainer, control variables, the counter of
schedules.

Every rule about suffixes stands here; no other file cuts or glues names.
"""

from collections.abc import Iterator
from itertools import count

TRAINER = ".trainer_"
BLOCK = ".block"
COUNTER = "@LR_DECAY_COUNTER@"
TRAINER_ID = "@TRAINER_ID@"
TABLE_PATH = "kLookupTablePath"


def slice_name(name: str, index: int, parts: int) -> str:
    """The name of slice `index` of a variable cut into `parts`; a whole variable keeps its name.

    >>> slice_name("w", 1, 2), slice_name("w", 0, 1)
    ('w.block1', 'w')
    """
    return f"{name}{BLOCK}{index}" if parts > 1 else name


def of_trainer(name: str, trainer: int) -> str:
    """The name under which one trainer's value of `name` travels."""
    return f"{name}{TRAINER}{trainer}"


def origin_of(name: str) -> str:
    """The unsliced variable that a name on the wire belongs to.

    >>> origin_of("w@GRAD.block1.trainer_0")
    'w@GRAD'
    """
    return name.partition(TRAINER)[0].partition(BLOCK)[0]


def control_names() -> Iterator[str]:
    """Names for variables that carry no value but order, the same in every build of a program."""
    return (f"__control_var@0.{number:06d}" for number in count())

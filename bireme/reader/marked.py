"""Options of in-memory datasets: lines with ids, shuffled slots, and options of Baidu's
services.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from typing import Any

from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import Variable

from .multislot import Marked, Sample

__all__ = ["MarkedLines", "merged_by_id", "slots_shuffled"]


class MarkedLines:
    """The ids and texts at the start of lines, and their use."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_ins_id = False
        self.parse_content = False
        self.merge_size = 0
        self.fea_eval = False

    @property
    def marks(self) -> int:
        """The number of texts before the slots of a line, each written as `1 TEXT`."""
        return int(self.parse_ins_id) + int(self.parse_content)

    def set_parse_ins_id(self, parse_ins_id: bool) -> None:
        """Each line starts with `1 ID`."""
        self.parse_ins_id = bool(parse_ins_id)

    def set_parse_content(self, parse_content: bool) -> None:
        """Each line has `1 TEXT` before its slots, after the id if there is one."""
        self.parse_content = bool(parse_content)

    def set_merge_by_lineid(self, merge_size: int = 2) -> None:
        """`global_shuffle` merges the `merge_size` lines of an id into one sample."""
        self.parse_ins_id, self.merge_size = True, int(merge_size)

    def set_fea_eval(self, record_candidate_size: int, fea_eval: bool = True) -> None:
        """Allow `slots_shuffle`; every sample is a candidate, whatever the size."""
        self.fea_eval = bool(fea_eval)

    def set_queue_num(self, queue_num: int) -> None:
        """Accepted and ignored: threads parse whole files without queues between them."""

    def set_fleet_send_batch_size(self, fleet_send_batch_size: int = 1024) -> None:
        """Accepted and ignored: a global shuffle sends nothing, see `global_shuffle`."""

    def set_fleet_send_sleep_seconds(self, fleet_send_sleep_seconds: int = 0) -> None:
        """Accepted and ignored: a global shuffle sends nothing, see `global_shuffle`."""

    def set_feed_type(self, data_feed_type: str) -> None:
        """Accepts the supported format only.

        Raises:
            UnsupportedError: any other.
        """
        if data_feed_type not in ("MultiSlotDataFeed", "MultiSlotInMemoryDataFeed"):
            raise _unknown_here(f"the data feed {data_feed_type!r}")

    def set_parse_logkey(self, parse_logkey: bool) -> None:
        _only_off(parse_logkey, "set_parse_logkey")

    def set_merge_by_sid(self, merge_by_sid: bool) -> None:
        _only_off(merge_by_sid, "set_merge_by_sid")

    def set_enable_pv_merge(self, enable_pv_merge: bool) -> None:
        _only_off(enable_pv_merge, "set_enable_pv_merge")

    def set_generate_unique_feasigns(self, generate_uni_feasigns: bool, shard_num: int) -> None:
        _only_off(generate_uni_feasigns, "set_generate_unique_feasigns")


def _only_off(asked: bool, setter: str) -> None:
    if asked:
        raise _unknown_here(f"{setter}(True)")


def _unknown_here(what: str) -> UnsupportedError:
    return UnsupportedError(
        what, hint="it needs Baidu's page-view logs or pslib; write MultiSlot lines instead"
    )


def merged_by_id(samples: Iterable[Sample], size: int) -> list[Sample]:
    """One sample for every id with `size` lines: the values of each slot concatenated.

    Lines of other ids are dropped, as in 1.8.5.
    """

    def by(sample: Sample) -> str:
        return sample.marks[0] if isinstance(sample, Marked) else ""

    groups = (list(group) for _, group in groupby(sorted(samples, key=by), key=by))
    return [
        Marked([list(chain(*values)) for values in zip(*group, strict=True)], group[0].marks)
        for group in groups
        if len(group) == size and isinstance(group[0], Marked)
    ]


def slots_shuffled(
    samples: Sequence[Sample], slots: Sequence[Variable], names: Iterable[str]
) -> list[Sample]:
    """The samples with the values of some slots shuffled by the `random` module's generator."""
    places = {v.name: i for i, v in enumerate(slots)}
    columns: dict[int, list[Any]] = {}
    for name in names:
        if name not in places:
            raise InvalidArgument(f"there is no slot {name!r}", hint=f"name one of {list(places)}")
        columns[places[name]] = [sample[places[name]] for sample in samples]
        random.shuffle(columns[places[name]])
    return [
        _like(sample, [columns[i][row] if i in columns else v for i, v in enumerate(sample)])
        for row, sample in enumerate(samples)
    ]


def _like(sample: Sample, values: list[Any]) -> Sample:
    return Marked(values, sample.marks) if isinstance(sample, Marked) else tuple(values)

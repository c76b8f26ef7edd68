"""WMT14 translation (English and French), reduced by Paddle, as word ids from its archive."""

import tarfile
from collections.abc import Callable, Iterator

from .common import local_file

__all__ = ["fetch", "gen", "get_dict", "test", "train"]

START, END, UNK, UNK_IDX = "<s>", "<e>", "<unk>", 2
_SOURCE = "the shrunken WMT14 data of Paddle (wmt14.tgz)"
_LONGEST = 80
Sample = tuple[list[int], list[int], list[int]]


def _lines(ending: str) -> Iterator[str]:
    """The lines of every file of the archive whose name ends so."""
    with tarfile.open(local_file("wmt14", "wmt14.tgz", _SOURCE)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(ending) else None
            if file is not None:
                yield from (line.decode().strip() for line in file)


def _ids(which: str, size: int) -> dict[str, int]:
    words = _lines(f"{which}.dict")
    return {word: i for i, word in zip(range(size), words, strict=False)}


def get_dict(
    dict_size: int, reverse: bool = True
) -> tuple[dict[int, str], dict[int, str]] | tuple[dict[str, int], dict[str, int]]:
    """(source, target): words by their ids, or with `reverse=False` ids by words."""
    source, target = _ids("src", dict_size), _ids("trg", dict_size)
    if not reverse:
        return source, target
    return {i: w for w, i in source.items()}, {i: w for w, i in target.items()}


def _reader(part: str, size: int) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        source, target = _ids("src", size), _ids("trg", size)
        for line in _lines(part):
            both = line.split("\t")
            if len(both) != 2:
                continue
            first = [source.get(w, UNK_IDX) for w in (START, *both[0].split(), END)]
            second = [target.get(w, UNK_IDX) for w in both[1].split()]
            if max(len(first), len(second)) <= _LONGEST:
                yield first, [target[START], *second], [*second, target[END]]

    return samples


def train(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """A reader of (source ids, target ids from the start mark on, target ids to the end mark);
    sentences of more than 80 words are left out.
    """
    return _reader("train/train", dict_size)


def test(dict_size: int) -> Callable[[], Iterator[Sample]]:  # a reader, not a pytest function
    """A reader of the test text; see `train`."""
    return _reader("test/test", dict_size)


def gen(dict_size: int) -> Callable[[], Iterator[Sample]]:
    """A reader of the text for generation; see `train`."""
    return _reader("gen/gen", dict_size)


def fetch() -> None:
    """Check that the archive is there."""
    local_file("wmt14", "wmt14.tgz", _SOURCE)

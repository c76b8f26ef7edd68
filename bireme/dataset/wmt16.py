"""WMT16 multimodal translation (English and German) as word ids, from its archive."""

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator

from bireme.errors import FormatError, InvalidArgument

from .common import local_file

__all__ = ["fetch", "get_dict", "test", "train", "validation"]

START_MARK, END_MARK, UNK_MARK = "<s>", "<e>", "<unk>"
_SOURCE = "the WMT16 multimodal task, tokenised by Paddle as wmt16.tar.gz"
Sample = tuple[list[int], list[int], list[int]]


def _pairs(part: str) -> Iterator[tuple[list[str], list[str]]]:
    """(English words, German words) of every line."""
    path = local_file("wmt16", "wmt16.tar.gz", _SOURCE)
    with tarfile.open(path) as archive:
        file = archive.extractfile(f"wmt16/{part}")
        if file is None:
            raise FormatError(f"wmt16/{part} is no file", where=str(path))
        for line in file:
            both = line.decode().strip().split("\t")
            if len(both) == 2:
                yield both[0].split(), both[1].split()


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[str, int] | dict[int, str]:
    """Ids of the `dict_size` most frequent words of "en" or "de", three marks first; with
    `reverse` words of ids.
    """
    if lang not in ("en", "de"):
        raise InvalidArgument(f"lang is {lang!r}", hint="write 'en' or 'de'")
    counts: Counter[str] = Counter()
    for english, german in _pairs("train"):
        counts.update(english if lang == "en" else german)
    words = [START_MARK, END_MARK, UNK_MARK]
    words += [w for w, _ in counts.most_common()][: max(dict_size - 3, 0)]
    if reverse:
        return dict(enumerate(words))
    return {word: i for i, word in enumerate(words)}


def _reader(
    part: str, src_dict_size: int, trg_dict_size: int, src_lang: str
) -> Callable[[], Iterator[Sample]]:
    if src_lang not in ("en", "de"):
        raise InvalidArgument(f"src_lang is {src_lang!r}", hint="write 'en' or 'de'")

    def samples() -> Iterator[Sample]:
        trg_lang = "de" if src_lang == "en" else "en"
        source, target = _ids(src_lang, src_dict_size), _ids(trg_lang, trg_dict_size)
        for pair in _pairs(part):
            first, second = pair if src_lang == "en" else pair[::-1]
            there = [target.get(w, 2) for w in second]
            yield [0, *(source.get(w, 2) for w in first), 1], [0, *there], [*there, 1]

    return samples


def _ids(lang: str, size: int) -> dict[str, int]:
    return {str(word): int(i) for word, i in get_dict(lang, size).items()}


def train(
    src_dict_size: int, trg_dict_size: int, src_lang: str = "en"
) -> Callable[[], Iterator[Sample]]:
    """A reader of (source ids, target ids from the start mark on, target ids to the end mark)."""
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(  # a reader, not a pytest function
    src_dict_size: int,
    trg_dict_size: int,
    src_lang: str = "en",
) -> Callable[[], Iterator[Sample]]:
    """A reader of the test text; see `train`."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(
    src_dict_size: int, trg_dict_size: int, src_lang: str = "en"
) -> Callable[[], Iterator[Sample]]:
    """A reader of the validation text; see `train`."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def fetch() -> None:
    """Check that the archive is there."""
    local_file("wmt16", "wmt16.tar.gz", _SOURCE)

"""Penn Treebank language-model data: n-grams of word ids, or (sentence, next words) pairs."""

import tarfile
from collections import Counter
from collections.abc import Callable, Iterator

from bireme.errors import FormatError, InvalidArgument

from .common import local_file

__all__ = ["DataType", "build_dict", "test", "train"]

_ARCHIVE = "simple-examples.tgz"
_SOURCE = "T. Mikolov's language-modelling toolkit"
Words = dict[str, int]


class DataType:
    """Shape of a sample: n-grams, or whole sequences."""

    NGRAM = 1
    SEQ = 2


def build_dict(min_word_freq: int = 50) -> Words:
    """Ids of words with more than `min_word_freq` occurrences in training and validation text."""
    counts: Counter[str] = Counter()
    for part in ("train", "valid"):
        for words in _sentences(part):
            counts.update(words)
            counts.update(["<s>", "<e>"])
    counts.pop("<unk>", None)
    kept = sorted(
        (w for w, n in counts.items() if n > min_word_freq), key=lambda w: (-counts[w], w)
    )
    ids = {w: i for i, w in enumerate(kept)}
    ids["<unk>"] = len(ids)
    return ids


def train(
    word_idx: Words, n: int, data_type: int = DataType.NGRAM
) -> Callable[[], Iterator[tuple[int, ...] | tuple[list[int], list[int]]]]:
    """A reader of the training text."""
    return lambda: _samples("train", word_idx, n, data_type)


def test(  # a reader, not a pytest function
    word_idx: Words,
    n: int,
    data_type: int = DataType.NGRAM,
) -> Callable[[], Iterator[tuple[int, ...] | tuple[list[int], list[int]]]]:
    """A reader of the validation text."""
    return lambda: _samples("valid", word_idx, n, data_type)


def _samples(
    part: str, ids: Words, n: int, data_type: int
) -> Iterator[tuple[int, ...] | tuple[list[int], list[int]]]:
    unknown = ids["<unk>"]
    for words in _sentences(part):
        found = [ids.get(w, unknown) for w in words]
        first, last = ids.get("<s>", unknown), ids.get("<e>", unknown)
        if data_type == DataType.NGRAM:
            line = [first, *found, last]
            yield from (tuple(line[i : i + n]) for i in range(len(line) - n + 1))
        elif data_type == DataType.SEQ:
            if n <= 0 or len(found) + 1 <= n:
                yield [first, *found], [*found, last]
        else:
            raise InvalidArgument(f"data type {data_type} is not known", hint="use DataType.NGRAM")


def _sentences(part: str) -> Iterator[list[str]]:
    path = local_file("imikolov", _ARCHIVE, _SOURCE)
    name = f"./simple-examples/data/ptb.{part}.txt"
    try:
        with tarfile.open(path) as tar:
            file = tar.extractfile(name)
            if file is not None:
                for line in file:
                    yield line.decode("utf-8").split()
    except (tarfile.TarError, OSError, EOFError, KeyError) as cause:
        raise FormatError("the archive is damaged", where=str(path), hint=str(cause)) from None

"""IMDB reviews from the archive of Maas et al. (2011): samples are (word ids, 0 positive or 1
negative).
"""

import re
import string
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator

from bireme.errors import FormatError

from .common import local_file

__all__ = ["build_dict", "test", "train", "word_dict"]

_ARCHIVE = "aclImdb_v1.tar.gz"
_SOURCE = "https://ai.stanford.edu/~amaas/data/sentiment/"
_PUNCTUATION = str.maketrans("", "", string.punctuation)
Words = dict[str, int]


def build_dict(pattern: str, cutoff: int) -> Words:
    """Ids of words that occur more than `cutoff` times in matching files, most frequent first."""
    counts: Counter[str] = Counter()
    for words in _documents(pattern):
        counts.update(words)
    kept = sorted((w for w, n in counts.items() if n > cutoff), key=lambda w: (-counts[w], w))
    ids = {w: i for i, w in enumerate(kept)}
    ids["<unk>"] = len(ids)
    return ids


def word_dict() -> Words:
    """The dictionary of the training and test reviews together."""
    return build_dict(r"aclImdb/(train|test)/(pos|neg)/.*\.txt$", 150)


def train(word_idx: Words) -> Callable[[], Iterator[tuple[list[int], int]]]:
    """A reader of the 25,000 training reviews."""
    return lambda: _samples("train", word_idx)


def test(word_idx: Words) -> Callable[[], Iterator[tuple[list[int], int]]]:
    """A reader of the 25,000 test reviews."""
    return lambda: _samples("test", word_idx)


def _samples(part: str, ids: Words) -> Iterator[tuple[list[int], int]]:
    unknown = ids["<unk>"]
    for label, mood in enumerate(("pos", "neg")):
        for words in _documents(rf"aclImdb/{part}/{mood}/.*\.txt$"):
            yield [ids.get(w, unknown) for w in words], label


def _documents(pattern: str) -> Iterator[list[str]]:
    path = local_file("imdb", _ARCHIVE, _SOURCE)
    wanted = re.compile(pattern)
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member) if wanted.match(member.name) else None
                if file is not None:
                    text = file.read().decode("utf-8", errors="replace")
                    yield text.translate(_PUNCTUATION).lower().split()
    except (tarfile.TarError, OSError, EOFError) as cause:
        raise FormatError("the archive is damaged", where=str(path), hint=str(cause)) from None

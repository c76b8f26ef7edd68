"""Movie reviews of NLTK's corpus as word ids with a label: 0 negative, 1 positive."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from .common import local_file

__all__ = ["fetch", "get_word_dict", "test", "train"]

NUM_TRAINING_INSTANCES, NUM_TOTAL_INSTANCES = 1600, 2000
_SOURCE = "NLTK's movie_reviews corpus, unpacked there"
Sample = tuple[list[int], int]


def _folder() -> Path:
    return local_file("corpora", "movie_reviews", _SOURCE)


def _words(path: Path) -> list[str]:
    """Runs of letters and digits, and runs of other signs."""
    return [w.lower() for w in re.findall(r"\w+|[^\w\s]+", path.read_text(encoding="utf-8"))]


def _files() -> list[tuple[Path, int]]:
    """Negative and positive reviews in turn."""
    folder = _folder()
    both = (sorted((folder / kind).glob("*.txt")) for kind in ("neg", "pos"))
    return [(path, label) for pair in zip(*both, strict=False) for label, path in enumerate(pair)]


def get_word_dict() -> list[tuple[str, int]]:
    """(word, id), the most frequent word first."""
    paths = sorted(path for path, _ in _files())
    counts = Counter(chain.from_iterable(map(_words, paths)))
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [(word, i) for i, (word, _) in enumerate(ordered)]


def _samples(begin: int, end: int | None) -> Iterator[Sample]:
    ids = dict(get_word_dict())
    for path, label in _files()[begin:end]:
        yield [ids[word] for word in _words(path)], label


def train() -> Callable[[], Iterator[Sample]]:
    """A reader of the first 1600 reviews."""
    return lambda: _samples(0, NUM_TRAINING_INSTANCES)


def test() -> Callable[[], Iterator[Sample]]:  # a reader, not a pytest function
    """A reader of the other reviews."""
    return lambda: _samples(NUM_TRAINING_INSTANCES, None)


def fetch() -> None:
    """Check that the corpus is there."""
    _folder()

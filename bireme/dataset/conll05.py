"""CoNLL-2005 semantic role labelling: the public test set, from its archive and dictionaries."""

import gzip
import tarfile
from collections.abc import Callable, Iterator
from typing import Any

from .common import local_file

__all__ = ["fetch", "get_dict", "get_embedding", "test"]

UNK_IDX = 0
_ARCHIVE = "conll05st-tests.tar.gz"
_SOURCE = "the CoNLL-2005 shared task and Paddle's dictionaries for it"
_WORDS = "conll05st-release/test.wsj/words/test.wsj.words.gz"
_PROPS = "conll05st-release/test.wsj/props/test.wsj.props.gz"
Words = dict[str, int]


def _file(name: str) -> Any:
    return local_file("conll05st", name, _SOURCE)


def _numbered(name: str) -> Words:
    with open(_file(name), encoding="utf-8") as file:
        return {line.strip(): i for i, line in enumerate(file)}


def _label_ids() -> Words:
    """B- and I- ids for every tag, in the order of their names, then O."""
    with open(_file("targetDict.txt"), encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    tags = sorted({line[2:] for line in lines if line.startswith(("B-", "I-"))})
    ids: Words = {}
    for tag in tags:
        ids[f"B-{tag}"], ids[f"I-{tag}"] = len(ids), len(ids) + 1
    ids["O"] = len(ids)
    return ids


def get_dict() -> tuple[Words, Words, Words]:
    """Ids of (words, verbs, labels)."""
    return _numbered("wordDict.txt"), _numbered("verbDict.txt"), _label_ids()


def get_embedding() -> str:
    """The path of the word vectors, trained on Wikipedia."""
    return str(_file("emb"))


def _sentences() -> Iterator[tuple[list[str], str, list[str]]]:
    """(words, verb, labels) for every verb of every sentence."""
    with tarfile.open(_file(_ARCHIVE)) as archive:
        files = (archive.extractfile(name) for name in (_WORDS, _PROPS))
        words, props = (gzip.decompress(f.read()).splitlines() for f in files if f is not None)
        rows: list[list[str]] = []
        sentence: list[str] = []
        for word, prop in zip(words, props, strict=False):
            columns = prop.decode().split()
            if columns:
                sentence.append(word.decode().strip())
                rows.append(columns)
                continue
            yield from _labelled(sentence, rows)
            sentence, rows = [], []


def _labelled(
    words: list[str], rows: list[list[str]]
) -> Iterator[tuple[list[str], str, list[str]]]:
    if not rows:
        return
    verbs = [row[0] for row in rows if row[0] != "-"]
    for verb, column in zip(verbs, list(zip(*rows, strict=True))[1:], strict=False):
        labels, tag, inside = [], "", False
        for mark in column:
            if mark.startswith("("):
                tag, inside = mark[1 : mark.index("*")], ")" not in mark
                labels.append(f"B-{tag}")
            else:
                labels.append(f"I-{tag}" if inside else "O")
                inside = inside and ")" not in mark
        yield words, verb, labels


def _sample(words: list[str], verb: str, labels: list[str], ids: tuple[Words, Words, Words]) -> Any:
    """Nine columns: words, five words around the verb, the verb, whether it is near, labels."""
    word_ids, verb_ids, label_ids = ids
    at, count = labels.index("B-V"), len(words)
    near = [0] * count
    around = []
    for shift in (-2, -1, 0, 1, 2):
        place = at + shift
        there = 0 <= place < count
        if there:
            near[place] = 1
        around.append(words[place] if there else "bos" if shift < 0 else "eos")
    context = [[word_ids.get(w, UNK_IDX)] * count for w in around]
    text = [word_ids.get(w, UNK_IDX) for w in words]
    return (text, *context, [verb_ids[verb]] * count, near, [label_ids[x] for x in labels])


def test() -> Callable[[], Iterator[Any]]:  # a reader, not a pytest function
    """A reader of (words, five context words, verb, marks of the context, labels)."""

    def samples() -> Iterator[Any]:
        ids = get_dict()
        for words, verb, labels in _sentences():
            yield _sample(words, verb, labels, ids)

    return samples


def fetch() -> None:
    """Check that the files are there."""
    for name in (_ARCHIVE, "wordDict.txt", "verbDict.txt", "targetDict.txt"):
        _file(name)

"""The readers of well-known data sets, on small files of the right form."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bireme import dataset
from bireme.errors import ConfigError, FormatError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIREME_DATA_HOME", str(tmp_path))
    return tmp_path


def put(home: Path, name: str, data: bytes) -> None:
    path = home / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("reader", "file"),
    [
        (dataset.mnist.train(), "train-images-idx3-ubyte.gz"),
        (dataset.uci_housing.test(), "housing.data"),
        (dataset.cifar.train10(), "cifar-10-python.tar.gz"),
        (dataset.imikolov.train({"<unk>": 0}, 3), "simple-examples.tgz"),
        (dataset.imdb.train({"<unk>": 0}), "aclImdb_v1.tar.gz"),
        (dataset.movielens.train(), "ml-1m.zip"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_missing_file_says_where_to_put_it(home: Path, reader: object, file: str) -> None:
    with pytest.raises(ConfigError, match=file) as caught:
        list(reader())  # type: ignore[operator]
    assert str(home) in str(caught.value)
    assert "put it there" in str(caught.value)


def test_mnist_pixels_are_scaled(home: Path) -> None:
    images = struct.pack(">HBBIII", 0, 8, 3, 2, 1, 2) + bytes([0, 255, 51, 0])
    labels = struct.pack(">HBBI", 0, 8, 1, 2) + bytes([7, 3])
    put(home, "mnist/t10k-images-idx3-ubyte.gz", gzip.compress(images))
    put(home, "mnist/t10k-labels-idx1-ubyte.gz", gzip.compress(labels))
    found = [(x.tolist(), y) for x, y in dataset.mnist.test()()]
    assert found[0] == ([-1.0, 1.0], 7)
    assert found[1][1] == 3
    put(home, "mnist/t10k-labels-idx1-ubyte.gz", gzip.compress(labels)[:-9])
    with pytest.raises(FormatError, match="idx"):
        list(dataset.mnist.test()())


def test_housing_is_centred_and_split(home: Path) -> None:
    rows = np.arange(10 * 14, dtype=float).reshape(10, 14)
    put(home, "uci_housing/housing.data", "\n".join(" ".join(map(str, r)) for r in rows).encode())
    train, test = list(dataset.uci_housing.train()()), list(dataset.uci_housing.test()())
    assert (len(train), len(test)) == (8, 2)
    assert abs(sum(x[0] for x, _ in train + test)) < 1e-5
    assert train[1][1].tolist() == [27.0]


def test_cifar_reads_the_batches_of_the_archive(home: Path) -> None:
    batch = {b"data": np.full((2, 3072), 255, "uint8"), b"labels": [4, 5]}
    files = {"cifar-10-batches-py/data_batch_1": pickle.dumps(batch, protocol=2), "x/readme": b""}
    put(home, "cifar/cifar-10-python.tar.gz", tar(files))
    found = list(dataset.cifar.train10()())
    assert [y for _, y in found] == [4, 5]
    assert found[0][0].max() == 1.0


def test_cifar_refuses_a_pickle_that_would_run_code(home: Path) -> None:
    put(home, "cifar/cifar-10-python.tar.gz", tar({"d/data_batch_1": pickle.dumps(print)}))
    with pytest.raises(FormatError, match="print"):
        list(dataset.cifar.train10()())


def test_imdb_words_become_ids(home: Path) -> None:
    files = {"aclImdb/train/pos/1.txt": b"Good, good film!", "aclImdb/train/neg/1.txt": b"bad film"}
    put(home, "imdb/aclImdb_v1.tar.gz", tar(files))
    ids = dataset.imdb.build_dict(r"aclImdb/train/.*\.txt$", 1)
    assert ids == {"film": 0, "good": 1, "<unk>": 2}
    assert list(dataset.imdb.train(ids)()) == [([1, 1, 0], 0), ([2, 0], 1)]


def test_imikolov_gives_ngrams_or_sentences(home: Path) -> None:
    text = b"a b a\nb a b\n"
    names = {f"./simple-examples/data/ptb.{p}.txt": text for p in ("train", "valid")}
    put(home, "imikolov/simple-examples.tgz", tar(names))
    ids = dataset.imikolov.build_dict(1)
    assert set(ids) == {"a", "b", "<s>", "<e>", "<unk>"}
    grams = list(dataset.imikolov.train(ids, 3)())
    assert len(grams) == 6
    assert grams[0] == (ids["<s>"], ids["a"], ids["b"])
    sentence, following = next(dataset.imikolov.test(ids, 0, dataset.imikolov.DataType.SEQ)())
    assert (sentence[1:], following[-1]) == (following[:-1], ids["<e>"])


def test_movielens_joins_users_films_and_ratings(home: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("ml-1m/movies.dat", "1::Toy Story (1995)::Comedy|Animation\n")
        archive.writestr("ml-1m/users.dat", "3::F::25::7::00000\n")
        archive.writestr("ml-1m/ratings.dat", "3::1::5::0\n" * 30)
    put(home, "movielens/ml-1m.zip", buffer.getvalue())
    train, test = list(dataset.movielens.train()()), list(dataset.movielens.test()())
    assert len(train) + len(test) == 30
    assert train[0] == [3, 1, 2, 7, 1, [1, 0], [1, 0], [5.0]]
    assert dataset.movielens.max_job_id() == 7


def test_split_files_are_shared_out_between_trainers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset.common.split(lambda: iter(range(7)), 2)
    readers = [dataset.common.cluster_files_reader("*.pickle", 2, i) for i in range(2)]
    assert [list(r()) for r in readers] == [[0, 1, 4, 5], [2, 3, 6]]

"""The readers of well-known data sets, on small files of the right form."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import scipy.io

from bireme import dataset
from bireme.errors import ConfigError, FormatError, InvalidArgument


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BIREME_DATA_HOME", str(tmp_path))
    return tmp_path


def put(home: Path, name: str, data: bytes) -> None:
    path = home / name
    path.parent.mkdir(exist_ok=True, parents=True)
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
    pair: Any = next(dataset.imikolov.test(ids, 0, dataset.imikolov.DataType.SEQ)())
    sentence, following = pair
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


PAIRS = (
    b"a dog runs\tein hund\n"
    b"a cat\teine katze hier\n"
    b"a dog\tein hund da\n"
)  # fmt: skip


def test_wmt16_gives_ids_with_marks(home: Path) -> None:
    # compared with 1.8.5 on the same archive
    put(home, "wmt16/wmt16.tar.gz", tar({"wmt16/train": PAIRS, "wmt16/test": PAIRS[-18:]}))
    words = dataset.wmt16.get_dict("en", 5)
    assert words == {"<s>": 0, "<e>": 1, "<unk>": 2, "a": 3, "dog": 4}
    assert list(dataset.wmt16.get_dict("de", 4, reverse=True).items())[3] == (3, "ein")
    rows = list(dataset.wmt16.train(5, 5)())
    assert rows[0] == ([0, 3, 4, 2, 1], [0, 3, 4], [3, 4, 1])
    assert next(dataset.wmt16.test(5, 5, "de")())[0] == [0, 3, 4, 2, 1]


def test_wmt14_reads_its_dictionaries(home: Path) -> None:
    # compared with 1.8.5 on the same archive
    files = {
        "d/src.dict": b"<s>\n<e>\n<unk>\na\ndog\n",
        "d/trg.dict": b"<s>\n<e>\n<unk>\nein\nhund\n",
        "d/train/train": PAIRS + b"x " * 90 + b"\ty\n",
        "d/test/test": PAIRS[:20],
    }
    put(home, "wmt14/wmt14.tgz", tar(files))
    assert list(dataset.wmt14.train(5)()) == [
        ([0, 3, 4, 2, 1], [0, 3, 4], [3, 4, 1]),
        ([0, 3, 2, 1], [0, 2, 2, 2], [2, 2, 2, 1]),
        ([0, 3, 4, 1], [0, 3, 4, 2], [3, 4, 2, 1]),
    ]
    assert list(dataset.wmt14.get_dict(4)[0].items())[3] == (3, "a")


def test_conll05_labels_each_verb(home: Path) -> None:
    # compared with 1.8.5 on the same archive; its label ids depend on the order of a set
    words = b"The\ncat\nsat\ndown\n.\n\nIt\nran\n\n"
    props = b"-\t(A0*\n-\t*)\nsit\t(V*)\n-\t(AM-DIR*)\n-\t*\n\n-\t(A0*)\nrun\t(V*)\n\n"
    inside = "conll05st-release/test.wsj"
    files = {
        f"{inside}/words/test.wsj.words.gz": gzip.compress(words),
        f"{inside}/props/test.wsj.props.gz": gzip.compress(props),
    }
    put(home, "conll05st/conll05st-tests.tar.gz", tar(files))
    vocabulary = b"unk\nThe\ncat\nsat\nbos\neos\nIt\nran\n"
    put(home, "conll05st/conll05st%2FwordDict.txt", vocabulary)  # as Paddle's cache names it
    put(home, "conll05st/verbDict.txt", b"sit\nrun\n")
    put(home, "conll05st/targetDict.txt", b"B-A0\nI-A0\nB-V\nI-V\nB-AM-DIR\nI-AM-DIR\nO\n")
    labels = dataset.conll05.get_dict()[2]
    first, second = dataset.conll05.test()()
    assert first[0] == [1, 2, 3, 0, 0]
    assert [column[0] for column in first[1:7]] == [1, 2, 3, 0, 0, 0]
    assert first[7] == [1, 1, 1, 1, 1]
    assert first[8] == [labels[x] for x in ("B-A0", "I-A0", "B-V", "B-AM-DIR", "O")]
    assert [column[0] for column in second[1:7]] == [4, 6, 7, 5, 5, 1]


def test_mq2007_has_points_pairs_and_lists(home: Path) -> None:
    def line(relevance: int, query: int) -> str:
        values = " ".join(f"{i + 1}:{relevance + i / 100:.2f}" for i in range(46))
        return f"{relevance} qid:{query} {values} #docid = GX inc = 1\n"

    text = line(0, 1) + line(2, 1) + line(1, 1) + line(0, 2) + line(0, 2)
    (home / "MQ2007/MQ2007/Fold1").mkdir(parents=True)
    (home / "MQ2007/MQ2007/Fold1/train.txt").write_text(text)
    assert [row[0] for row in dataset.mq2007.train("pointwise")()] == [2, 1, 0]
    pairs = list(dataset.mq2007.train()())
    assert [(p[1][0], p[2][0]) for p in pairs] == [(2, 1), (2, 0), (1, 0)]
    ((relevance, features),) = dataset.mq2007.train("listwise")()
    assert relevance.tolist() == [[2], [1], [0]]
    assert features.shape == (3, 46)
    with pytest.raises(InvalidArgument, match="tenwise"):
        dataset.mq2007.train("tenwise")


def test_reviews_alternate_between_bad_and_good(home: Path) -> None:
    for kind, text in {"neg": "a bad , bad film", "pos": "a good film !"}.items():
        (home / "corpora/movie_reviews" / kind).mkdir(parents=True)
        (home / "corpora/movie_reviews" / kind / "cv0.txt").write_text(text)
    words = dict(dataset.sentiment.get_word_dict())
    assert words["a"] == 0
    assert list(dataset.sentiment.train()()) == [
        ([words[w] for w in "a bad , bad film".split()], 0),
        ([words[w] for w in "a good film !".split()], 1),
    ]


def test_the_cache_of_paddle_is_searched_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BIREME_DATA_HOME", raising=False)
    folder = tmp_path / ".cache/paddle/dataset"
    put(folder, "wmt16/wmt16.tar.gz", tar({"wmt16/train": PAIRS}))
    assert len(list(dataset.wmt16.train(9, 9)())) == 3
    with pytest.raises(ConfigError, match="nothing is downloaded"):
        list(dataset.wmt14.train(9)())


def jpeg(height: int, width: int) -> bytes:
    return cv2.imencode(".jpg", np.full((height, width, 3), 200, "uint8"))[1].tobytes()


def test_flowers_are_cropped_and_centred(home: Path) -> None:
    numbers: dict[str, dict[str, list[int]]] = {
        "imagelabels.mat": {"labels": [7, 1, 102]},
        "setid.mat": {"tstid": [3, 1], "trnid": [2], "valid": []},
    }
    for name, content in numbers.items():
        file = io.BytesIO()
        scipy.io.savemat(file, content)
        put(home, f"flowers/{name}", file.getvalue())
    photographs = {f"jpg/image_{n:05d}.jpg": jpeg(260, 300) for n in (1, 2, 3)}
    put(home, "flowers/102flowers.tgz", tar(photographs))
    samples = sorted(dataset.flowers.train()(), key=lambda sample: sample[1])
    assert [label for _, label in samples] == [6, 101]
    pixels = samples[0][0].reshape(3, 224, 224)
    expected = 200 - np.array([103.94, 116.78, 123.68], "float32")
    assert np.allclose(pixels, expected[:, None, None], atol=3)
    assert [label for _, label in dataset.flowers.test(use_xmap=False)()] == [0]


def test_voc2012_has_pixels_and_classes(home: Path) -> None:
    folder = "VOCdevkit/VOC2012/"
    classes = cv2.imencode(".png", np.full((4, 6), 15, "uint8"))[1].tobytes()
    files = {
        folder + "ImageSets/Segmentation/val.txt": b"a\n",
        folder + "JPEGImages/a.jpg": jpeg(4, 6),
        folder + "SegmentationClass/a.png": classes,
    }
    put(home, "voc2012/VOCtrainval_11-May-2012.tar", tar(files))
    ((pixels, found),) = dataset.voc2012.val()()
    assert pixels.shape == (4, 6, 3)
    assert found.tolist() == [[15] * 6] * 4


def test_images_are_resized_cropped_and_mirrored(tmp_path: Path) -> None:
    image = dataset.image
    ramp = np.arange(40 * 60, dtype="uint8").reshape(40, 60)
    assert image.resize_short(ramp, 20).shape == (20, 30)
    assert np.array_equal(image.center_crop(ramp, 10), ramp[15:25, 25:35])
    assert np.array_equal(image.left_right_flip(ramp), ramp[:, ::-1])
    colour = image.load_image_bytes(jpeg(40, 60))
    made = image.simple_transform(colour, 20, 16, is_train=False, mean=[200.0, 100.0, 0.0])
    assert made.shape == (3, 16, 16)
    assert np.allclose(made.mean((1, 2)), [0, 100, 200], atol=2)
    with pytest.raises(FormatError, match="not an image"):
        image.load_image(tmp_path / "none.jpg")


def test_a_download_is_a_file_with_the_right_sum(home: Path) -> None:
    put(home, "mine/a.txt", b"a")
    common = dataset.common
    path = common.download("http://x.org/a.txt", "mine", "0cc175b9c0f1b6a831c399e269772661")
    assert Path(path).read_bytes() == b"a"
    assert str(home) == common.DATA_HOME
    with pytest.raises(FormatError, match="MD5"):
        common.download("http://x.org/a.txt", "mine", "0")
    with pytest.raises(ConfigError, match=r"b\.txt"):
        common.download("http://x.org/b.txt", "mine", None)

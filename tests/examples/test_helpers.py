"""The digits' data, its shares, and what is shown at the end."""

import gzip
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme.errors import FormatError, InvalidArgument


@pytest.fixture
def data() -> Any:
    return importlib.import_module("digits_data")


@pytest.fixture
def report() -> Any:
    return importlib.import_module("digits_report")


def write_idx(folder: Path, images: Any, labels: Any, name: str = "train") -> None:
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = (0x800 + array.ndim).to_bytes(4, "big")
        head += b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))


def test_the_digits_that_ship_are_1797_split_the_same_way_every_time(data: Any) -> None:
    training, test = data.load()
    again, _ = data.load()
    assert (len(training), len(test)) == (1438, 359)
    assert training.pixels.shape[1] == 64
    assert (training.pixels.min(), training.pixels.max()) == (0, 1)
    assert set(training.labels.ravel()) == set(range(10))
    np.testing.assert_array_equal(training.pixels, again.pixels)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_shares_of_all_trainers_are_the_batch(data: Any, parts: int) -> None:
    training, _ = data.load()
    whole = list(training.batches(64, epoch=3, part=0, parts=1))
    shares = [list(training.batches(64, 3, part, parts)) for part in range(parts)]
    assert {len(share) for share in shares} == {len(whole)}
    for batch, *pieces in zip(whole, *shares, strict=True):
        np.testing.assert_array_equal(batch.labels, np.concatenate([p.labels for p in pieces]))


def test_a_batch_that_cannot_be_shared_equally_is_refused(data: Any) -> None:
    training, _ = data.load()
    with pytest.raises(InvalidArgument, match="cannot be shared equally by 3"):
        next(training.batches(64, 0, 0, 3))


def test_idx_files_are_read(data: Any, tmp_path: Path) -> None:
    images = np.arange(10 * 6, dtype="uint8").reshape(10, 2, 3)
    write_idx(tmp_path, images, np.arange(10, dtype="uint8"))
    training, test = data.load(str(tmp_path))
    assert (len(training), len(test), training.pixels.shape[1]) == (8, 2, 6)
    row = int(training.labels[0, 0])
    np.testing.assert_allclose(training.pixels[0], images[row].ravel() / 255, rtol=1e-6)


def test_a_cut_idx_file_is_refused(data: Any, tmp_path: Path) -> None:
    images = np.zeros((10, 2, 3), "uint8")
    write_idx(tmp_path, images, np.zeros(10, "uint8"), name="t10k")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    with pytest.raises(FormatError, match="not a whole idx file"):
        data.load(str(tmp_path))


def test_a_folder_without_idx_files_is_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no idx files in"):
        data.load(str(tmp_path))


def test_the_hash_depends_on_names_and_values_but_not_on_their_order(report: Any) -> None:
    a, b = ("a", np.zeros(3)), ("b", np.ones(2))
    assert report.parameter_hash([a, b]) == report.parameter_hash([b, a])
    assert report.parameter_hash([a, b]) != report.parameter_hash([a, ("b", np.zeros(2))])

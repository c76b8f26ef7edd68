"""Handwritten digits as arrays: the 1,797 that ship with the examples, or a folder of idx files."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bireme.errors import FormatError, InvalidArgument

BUILT_IN = Path(__file__).parent / "data" / "digits.csv.gz"
IMAGES, LABELS = 0x803, 0x801  # the idx format's words for "bytes in 3 dimensions" and "in 1"


@dataclass(frozen=True)
class Digits:
    """Rows of pixels from 0 to 1 (float32) and their digits (int64, one column)."""

    pixels: Any
    labels: Any

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Any) -> "Digits":
        return Digits(self.pixels[index], self.labels[index])

    def batches(self, size: int, epoch: int, part: int, parts: int) -> Iterator["Digits"]:
        """Part `part` of `parts` of every batch of an epoch: together the parts are the batch."""
        if size % parts:
            raise InvalidArgument(
                f"a batch of {size} cannot be shared equally by {parts} trainers",
                hint=f"choose a multiple of {parts}",
            )
        order = np.random.RandomState(epoch).permutation(len(self))
        share = size // parts
        for start in range(part * share, len(self) - size + part * share + 1, size):
            yield self.rows(order[start : start + share])


def load(folder: str | None = None, test_share: float = 0.2) -> tuple[Digits, Digits]:
    """(training, test) digits, split the same way every time."""
    pixels, labels = read_idx(Path(folder)) if folder else read_built_in()
    order = np.random.RandomState(0).permutation(len(labels))
    held_out = int(test_share * len(labels))
    digits = Digits(pixels, labels.astype("int64").reshape(-1, 1))
    return digits.rows(order[held_out:]), digits.rows(order[:held_out])


def read_built_in() -> tuple[Any, Any]:
    with gzip.open(BUILT_IN, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype="float32")
    return table[:, :64] / 16, table[:, 64]


def read_idx(folder: Path) -> tuple[Any, Any]:
    """The train-* files of `folder`, or else its t10k-* files."""
    for name in ("train", "t10k"):
        images = folder / f"{name}-images-idx3-ubyte.gz"
        if images.is_file():
            labels = folder / f"{name}-labels-idx1-ubyte.gz"
            pixels = _idx(images, IMAGES)
            return pixels.reshape(len(pixels), -1).astype("float32") / 255, _idx(labels, LABELS)
    raise InvalidArgument(
        f"no idx files in {folder}",
        hint="expected train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz, or t10k-*",
    )


def _idx(path: Path, magic: int) -> Any:
    """One idx file: a magic word, the sizes of the dimensions, the bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise FormatError(f"cannot read {path}: {error}") from None
    shape = (
        np.frombuffer(data, ">u4", count=magic & 0xFF, offset=4)
        if len(data) >= 4 + 4 * (magic & 0xFF)
        else []
    )
    start = 4 + 4 * len(shape)
    if data[:4] != magic.to_bytes(4, "big") or len(data) - start != np.prod(shape, dtype="int64"):
        raise FormatError(f"{path} is not a whole idx file of {magic & 0xFF} dimension(s)")
    return np.frombuffer(data, "uint8", offset=start).reshape([int(n) for n in shape])

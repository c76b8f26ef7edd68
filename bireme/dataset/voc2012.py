"""Segmented photographs of the PASCAL challenge of 2012, from its archive; needs Pillow. Samples
are (pixels: uint8 (height, width, 3) in red, green, blue; classes: uint8 (height, width)).
"""

import io
import tarfile
from collections.abc import Callable, Iterator

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.extras import library

from .common import local_file

__all__ = ["test", "train", "val"]

_SOURCE = "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/"
_FOLDER = "VOCdevkit/VOC2012/"
Reader = Callable[[], Iterator[tuple[Array, Array]]]


def train() -> Reader:
    """A reader of the 2,913 samples of `trainval`, as Paddle has it."""
    return _reader("trainval")


def test() -> Reader:
    """A reader of the 1,464 samples of `train`, as Paddle has it."""
    return _reader("train")


def val() -> Reader:
    """A reader of the 1,449 samples of `val`."""
    return _reader("val")


def _reader(part: str) -> Reader:
    def samples() -> Iterator[tuple[Array, Array]]:
        opened = library("PIL.Image", "scripts", "reading images").open
        path = local_file("voc2012", "VOCtrainval_11-May-2012.tar", _SOURCE)
        try:
            with tarfile.open(path) as archive:
                members = {member.name: member for member in archive.getmembers()}

                def content(name: str) -> bytes:
                    file = archive.extractfile(members[_FOLDER + name])
                    return file.read() if file else b""

                for line in content(f"ImageSets/Segmentation/{part}.txt").splitlines():
                    name = line.decode().strip()
                    pixels = content(f"JPEGImages/{name}.jpg")
                    classes = content(f"SegmentationClass/{name}.png")
                    yield (
                        np.array(opened(io.BytesIO(pixels))),
                        np.array(opened(io.BytesIO(classes))),
                    )
        except (tarfile.TarError, OSError, EOFError, KeyError) as cause:
            raise FormatError("the archive is damaged", where=str(path), hint=str(cause)) from None

    return samples

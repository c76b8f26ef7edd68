"""Oxford's 102 flowers from its archive of photographs and two MATLAB files; needs OpenCV and
SciPy. Samples are (3 x 224 x 224 floats, label).
"""

import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.extras import library
from bireme.reader.decorators import map_readers, xmap_readers

from .common import local_file
from .image import load_image_bytes, simple_transform

__all__ = ["default_mapper", "test", "test_mapper", "train", "train_mapper", "valid"]

_SOURCE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
_MEAN = (103.94, 116.78, 123.68)  # of blue, green and red in ImageNet
_THREADS = 4

Mapper = Callable[[tuple[bytes, int]], Any]
Reader = Callable[[], Iterable[Any]]


def default_mapper(is_train: bool, sample: tuple[bytes, int]) -> tuple[Array, int]:
    """A file's content and its label as flat float32 pixels, less their mean, and the label."""
    data, label = sample
    image = simple_transform(load_image_bytes(data), 256, 224, is_train, mean=_MEAN)
    return image.flatten(), label


train_mapper = partial(default_mapper, True)
test_mapper = partial(default_mapper, False)


def train(
    mapper: Mapper = train_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Reader:
    """A reader of the 6,149 samples of the largest part (`tstid`), which Paddle trains with.

    `mapper` makes a sample of a file's content and its label, in threads if `use_xmap`; with
    `cycle` the reader begins again for ever.
    """
    return _reader("tstid", mapper, buffered_size, use_xmap, cycle)


def test(
    mapper: Mapper = test_mapper,
    buffered_size: int = 1024,
    use_xmap: bool = True,
    cycle: bool = False,
) -> Reader:
    """A reader of 1,020 samples (`trnid`)."""
    return _reader("trnid", mapper, buffered_size, use_xmap, cycle)


def valid(mapper: Mapper = test_mapper, buffered_size: int = 1024, use_xmap: bool = True) -> Reader:
    """A reader of 1,020 other samples (`valid`)."""
    return _reader("valid", mapper, buffered_size, use_xmap, False)


def _reader(part: str, mapper: Mapper, size: int, use_xmap: bool, cycle: bool) -> Reader:
    def files() -> Iterator[tuple[bytes, int]]:
        labels = _numbers("imagelabels.mat", "labels")
        wanted = {f"jpg/image_{n:05d}.jpg": labels[n - 1] - 1 for n in _numbers("setid.mat", part)}
        path = local_file("flowers", "102flowers.tgz", _SOURCE)
        while True:
            try:
                with tarfile.open(path) as archive:
                    for member in archive:
                        file = archive.extractfile(member) if member.name in wanted else None
                        if file is not None:
                            yield file.read(), wanted[member.name]
            except (tarfile.TarError, OSError, EOFError) as cause:
                raise FormatError(
                    "the archive is damaged", where=str(path), hint=str(cause)
                ) from None
            if not cycle:
                return

    if use_xmap:
        return xmap_readers(mapper, files, _THREADS, size)
    return map_readers(mapper, files)


def _numbers(file: str, name: str) -> list[int]:
    """The numbers under a name in a MATLAB file."""
    read = library("scipy.io", "scripts", "reading MATLAB files").loadmat
    path = local_file("flowers", file, _SOURCE)
    try:
        return [int(number) for number in read(str(path))[name].ravel()]
    except (KeyError, ValueError, TypeError, OSError) as cause:
        raise FormatError(
            f"this is not a MATLAB file with {name!r}", where=str(path), hint=str(cause)
        ) from None

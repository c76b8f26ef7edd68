"""Images as arrays: reading, resizing, cropping and flipping them. Needs OpenCV.

Images are uint8 arrays of (height, width, 3) in the order blue, green, red, or of (height, width)
in grey, as OpenCV has them.
"""

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.errors import FormatError
from bireme.extras import library
from bireme.io.pickles import dump_arrays

__all__ = [
    "batch_images_from_tar",
    "center_crop",
    "left_right_flip",
    "load_and_transform",
    "load_image",
    "load_image_bytes",
    "random_crop",
    "resize_short",
    "simple_transform",
    "to_chw",
]


def _cv2() -> Any:
    return library("cv2", "scripts", "reading and resizing images")


def load_image_bytes(bytes: bytes, is_color: bool = True) -> Array:
    """The image in the content of a JPEG or PNG file.

    Raises:
        FormatError: it is not an image.
    """
    cv2 = _cv2()
    data = np.frombuffer(bytes, np.uint8)
    image = cv2.imdecode(data, 1 if is_color else 0) if len(data) else None
    if image is None:
        raise FormatError("this is not an image that OpenCV reads")
    return image


def load_image(file: str | Path, is_color: bool = True) -> Array:
    """The image in a file.

    Raises:
        FormatError: the file cannot be read, or is not an image.
    """
    try:
        return load_image_bytes(Path(file).read_bytes(), is_color)
    except (OSError, FormatError) as cause:
        raise FormatError("this is not an image", where=str(file), hint=str(cause)) from None


def resize_short(im: Array, size: int) -> Array:
    """The image with its shorter edge `size` pixels long, by cubic interpolation."""
    cv2 = _cv2()
    height, width = im.shape[:2]
    short = min(height, width)
    wanted = (size * width // short, size * height // short)
    return cv2.resize(im, wanted, interpolation=cv2.INTER_CUBIC)


def to_chw(im: Array, order: Sequence[int] = (2, 0, 1)) -> Array:
    """The image with its axes in another order: channels first, unless told otherwise."""
    return im.transpose(order)


def center_crop(im: Array, size: int, is_color: bool = True) -> Array:
    """The `size` by `size` pixels in the middle."""
    return _crop(im, size, (im.shape[0] - size) // 2, (im.shape[1] - size) // 2)


def random_crop(im: Array, size: int, is_color: bool = True) -> Array:
    """`size` by `size` pixels at a random place."""
    top = np.random.randint(0, im.shape[0] - size + 1)
    return _crop(im, size, top, np.random.randint(0, im.shape[1] - size + 1))


def _crop(im: Array, size: int, top: int, left: int) -> Array:
    return im[top : top + size, left : left + size]


def left_right_flip(im: Array, is_color: bool = True) -> Array:
    """The image mirrored at a vertical line."""
    return im[:, ::-1]


def simple_transform(
    im: Array,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: Array | Sequence[float] | None = None,
) -> Array:
    """The image resized and cropped, as float32 with channels first, less `mean`: one value per
    channel, or an array of the result's shape. For training the crop is random, and every second
    image is mirrored; else the crop is the middle.
    """
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size)
        if np.random.randint(2) == 0:
            im = left_right_flip(im)
    else:
        im = center_crop(im, crop_size)
    if im.ndim == 3:
        im = to_chw(im)
    found = im.astype("float32")
    if mean is None:
        return found
    less = np.asarray(mean, dtype="float32")
    return found - (less[:, None, None] if less.ndim == 1 and is_color else less)


def load_and_transform(
    filename: str | Path,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: Array | Sequence[float] | None = None,
) -> Array:
    """`simple_transform` of the image in a file."""
    image = load_image(filename, is_color)
    return simple_transform(image, resize_size, crop_size, is_train, is_color, mean)


def batch_images_from_tar(
    data_file: str | Path,
    dataset_name: str,
    img2label: Mapping[str, int],
    num_per_batch: int = 1024,
) -> str:
    """Write the labelled files of an archive, `num_per_batch` to a pickled file, beside it; returns
    the path of the list of these files. Each holds `data`, the files' bytes, and `label`.
    """
    folder = Path(f"{data_file}_batch") / dataset_name
    listing = folder.with_name(f"{dataset_name}.txt")
    if folder.exists():
        return str(listing)
    folder.mkdir(parents=True)
    names: list[Path] = []
    with tarfile.open(data_file) as archive:
        members = [m for m in archive.getmembers() if m.name in img2label]
        for start in range(0, len(members), num_per_batch):
            part = members[start : start + num_per_batch]
            files = [archive.extractfile(member) for member in part]
            data = [np.frombuffer(f.read() if f else b"", np.uint8) for f in files]
            names.append(folder / f"batch_{len(names)}")
            with open(names[-1], "wb") as file:
                labels = np.array([img2label[m.name] for m in part])
                dump_arrays(file, {"data": data, "label": labels})
    listing.write_text("".join(f"{name.absolute()}\n" for name in names))
    return str(listing)

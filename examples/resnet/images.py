"""Labelled images: a folder with a folder per class, or the digits that ship with the examples."""

import gzip
import os

import numpy as np

DIGITS = os.path.join(os.path.dirname(__file__), "..", "data", "digits.csv.gz")


class Images:
    """`count` images of `classes` classes."""

    def __init__(self, folder, size):
        """`folder` may be None: then digits of 8 x 8 pixels, magnified to size x size."""
        self.size = size
        if folder is None:
            with gzip.open(DIGITS, "rt") as file:
                table = np.loadtxt(file, delimiter=",", dtype="float32")
            self._read, self.labels = (
                self._digit(table[:, :64].reshape(-1, 8, 8) / 16),
                table[:, 64],
            )
            self.classes = 10
        else:
            names = sorted(d.name for d in os.scandir(folder) if d.is_dir())
            if not names:
                raise SystemExit("%s has no folders, one per class" % folder)
            self.classes = len(names)
            found = [
                (file.path, label)
                for label, name in enumerate(names)
                for file in sorted(os.scandir(os.path.join(folder, name)), key=lambda f: f.name)
            ]
            self._read = self._file([path for path, _ in found])
            self.labels = np.array([label for _, label in found])
        self.count = len(self.labels)

    def batches(self, epoch, rank, ranks, rows):
        """The batches of one rank: (images [rows, 3, size, size], labels [rows, 1])."""
        order = np.random.RandomState(epoch).permutation(self.count)[rank::ranks]
        for start in range(0, self.count // ranks - rows + 1, rows):
            chosen = order[start : start + rows]
            pixels = np.stack([self._read(i) for i in chosen]).astype("float32")
            yield pixels, self.labels[chosen].astype("int64").reshape(-1, 1)

    def _digit(self, pixels):
        at = np.arange(self.size) * 8 // self.size

        def read(i):
            return np.repeat(pixels[i][at][:, at][None], 3, axis=0)

        return read

    def _file(self, paths):
        try:
            from PIL import Image
        except ImportError:
            raise SystemExit("reading images needs Pillow: pip install pillow") from None

        def read(i):
            with Image.open(paths[i]) as image:
                small = image.convert("RGB").resize((self.size, self.size))
            return np.asarray(small, "float32").transpose(2, 0, 1) / 255

        return read

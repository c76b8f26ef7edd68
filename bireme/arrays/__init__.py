"""Arrays and values: namespaces, places, LoD tensors, selected rows, random numbers, threads."""

import numpy

from bireme.errors import ConfigError

LEAST_NUMPY = 2


def check_numpy(version: str) -> None:
    """Refuse a NumPy whose arrays the kernels do not know.

    Raises:
        ConfigError: it is older than NumPy 2.0.
    """
    if int(version.partition(".")[0]) < LEAST_NUMPY:
        raise ConfigError(
            f"NumPy {version} is installed; bireme needs NumPy {LEAST_NUMPY}.0 or later",
            hint=f"pip install 'numpy>={LEAST_NUMPY}'",
        )


check_numpy(numpy.__version__)

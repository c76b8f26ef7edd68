"""What scripts read in `paddle.version`: the version of Fluid that bireme speaks."""

from bireme.framework import SPOKEN_VERSION as full_version

__all__ = [
    "commit",
    "full_version",
    "istaged",
    "major",
    "minor",
    "mkl",
    "patch",
    "rc",
    "show",
    "with_mkl",
]

major, minor, patch = full_version.split(".")
rc = "0"
commit = "8e1712a71057e3ca06a2927ceec51c18cb171fdc"  # of 1.8.5
istaged = True
with_mkl = "OFF"


def mkl() -> str:
    """Whether MKL is used: ON or OFF."""
    return with_mkl


def show() -> None:
    """Print the parts of the version."""
    for name in ("full_version", "major", "minor", "patch", "rc"):
        print(f"{name}: {globals()[name]}")

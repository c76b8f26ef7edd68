"""The version of this package; `pyproject.toml` says the same, which a test compares."""

__version__ = "0.1.0"

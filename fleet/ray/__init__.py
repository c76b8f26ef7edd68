"""A job on a Ray cluster: `launch`."""

from .launch import launch

__all__ = ["launch"]

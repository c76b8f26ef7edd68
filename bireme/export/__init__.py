"""Models in the formats of other programs: ONNX."""

from .model import save_onnx, to_onnx

__all__ = ["save_onnx", "to_onnx"]

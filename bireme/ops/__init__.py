"""The op table: one row per operator, one file per family."""

from . import activations, distributed, elementwise, fill, linear, metric, reduce, softmax, unary

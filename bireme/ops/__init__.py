"""The op table: one row per operator, one file per family."""

from . import (
    activations,
    adam,
    adaptive,
    compare,
    control_flow,
    distributed,
    dropout,
    elementwise,
    fill,
    join,
    linear,
    lod,
    metric,
    optimize,
    random,
    reduce,
    reshape,
    softmax,
    sparse,
    unary,
)

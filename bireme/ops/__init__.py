"""The op table: one row per operator, one file per family."""

from . import (
    activations,
    adam,
    adaptive,
    control_flow,
    distributed,
    elementwise,
    fill,
    join,
    linear,
    lod,
    metric,
    optimize,
    random,
    reduce,
    softmax,
    unary,
)

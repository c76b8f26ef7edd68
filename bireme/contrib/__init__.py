"""What scripts know as `fluid.contrib`: layers and tools beside the main ones."""

from . import decoder, extend_optimizer, layers, mixed_precision, model_stat, reader, rnn
from .extend_optimizer import extend_with_decoupled_weight_decay
from .layers import *
from .mixed_precision import AutoMixedPrecisionLists, decorate
from .model_stat import memory_usage, op_freq_statistic, summary
from .reader import distributed_batch_reader

__all__ = [
    *layers.__all__,
    "AutoMixedPrecisionLists",
    "decoder",
    "decorate",
    "distributed_batch_reader",
    "extend_optimizer",
    "extend_with_decoupled_weight_decay",
    "layers",
    "memory_usage",
    "mixed_precision",
    "model_stat",
    "op_freq_statistic",
    "reader",
    "rnn",
    "summary",
]

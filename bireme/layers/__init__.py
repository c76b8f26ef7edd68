"""What users call to build a program: one function per layer."""

from importlib import import_module
from typing import Any

from . import math_op_patch
from .anchor_targets import *
from .classes import *
from .control_flow import *
from .decode import *
from .decode_helpers import *
from .deformable import *
from .detection import *
from .distributions import *
from .draws import *
from .elementwise import *
from .features import *
from .io import *
from .labelling import *
from .learning_rate_scheduler import *
from .loss import *
from .metric_op import *
from .nn import *
from .normalise import *
from .ops import *
from .order import *
from .picking import *
from .pixels import *
from .random import *
from .reduction import *
from .regions import *
from .rnn import *
from .sampling_grid import *
from .sequence_lod import *
from .shaping import *
from .sparse import *
from .ssd import *
from .suppression import *
from .tags import *
from .tensor import *
from .vision import *
from .wrong_types import explain_all

_READERS = ("create_py_reader_by_data", "double_buffer", "py_reader", "read_file")


def __getattr__(name: str) -> Any:
    """Readers of a program load when one is asked for: queues and processes load with them."""
    if name not in _READERS:
        raise AttributeError(f"module 'bireme.layers' has no attribute '{name}'")
    return getattr(import_module("bireme.layers.program_readers"), name)


explain_all(globals())

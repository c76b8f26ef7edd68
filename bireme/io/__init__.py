"""The module `fluid.io`: programs and parameters in the file formats of Fluid 1.8, checkpoints,
readers.
"""

from bireme.reader import (
    ComposeNotAligned,
    DataLoader,
    PyReader,
    arrow_batches,
    batch,
    buffered,
    cache,
    chain,
    compose,
    default_collate_fn,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

from .inference import load_inference_model, save_inference_model
from .resuming import load_checkpoint, save_checkpoint
from .state import load, load_program_state, save, set_program_state
from .variables import (
    get_program_parameter,
    get_program_persistable_vars,
    is_parameter,
    is_persistable,
    load_params,
    load_persistables,
    load_vars,
    save_params,
    save_persistables,
    save_vars,
)

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "arrow_batches",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "default_collate_fn",
    "firstn",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_parameter",
    "is_persistable",
    "load",
    "load_checkpoint",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save",
    "save_checkpoint",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]

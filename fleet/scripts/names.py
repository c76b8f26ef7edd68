"""Which module of Fluid 1.8.5 has which name, and where that name lives here.

`fluid_names.json` lists the modules of 1.8.5 and, for each name in them, where it is defined
(`tools/fluid_names.py` recorded it). A name is found in the module of ours that stands for its
module, else in any module that Fluid offers the same object under, else in the tables below.
"""

import difflib
import json
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import bireme

from . import v2_names

__all__ = [
    "ABSENT",
    "find",
    "home_of",
    "is_here",
    "is_module",
    "known",
    "modules",
    "namesakes",
    "nearest",
    "shadowed",
]

FLUID, DATASET = "paddle.fluid", "paddle.dataset"
Table = dict[str, dict[str, str]]

# modules that are run with `python -m`
PROGRAMS = {
    "paddle.distributed.fleet.launch": "bireme.fleet.launcher.paddle_launch",
    "paddle.distributed.launch": "bireme.fleet.launcher.paddle_launch",
    "paddle.distributed.launch_ps": "bireme.fleet.launcher.paddle_launch_ps",
}

# modules of Fluid that have another place here
MODULES = {
    "paddle.fluid.contrib.decoder.beam_search_decoder": "bireme.contrib.decoder",
    "paddle.fluid.contrib.extend_optimizer.extend_optimizer_with_weight_decay": "bireme.contrib."
    "extend_optimizer",
    "paddle.fluid.contrib.layers.metric_op": "bireme.contrib.layers",
    "paddle.fluid.contrib.layers.rnn_impl": "bireme.contrib.rnn",
    "paddle.fluid.contrib.memory_usage_calc": "bireme.contrib.model_stat",
    "paddle.fluid.contrib.mixed_precision.decorator": "bireme.contrib.mixed_precision",
    "paddle.fluid.contrib.mixed_precision.fp16_lists": "bireme.contrib.half_precision",
    "paddle.fluid.contrib.op_frequence": "bireme.contrib.model_stat",
    "paddle.fluid.contrib.reader.distributed_reader": "bireme.contrib.reader",
    "paddle.fluid.contrib.layers.nn": "bireme.contrib.layers",
    "paddle.fluid.contrib.utils.hdfs_utils": "bireme.contrib.hdfs",
    FLUID: "bireme",
    DATASET: "bireme.dataset",
    "paddle.batch": "bireme.reader.decorators",
    "paddle.compat": "bireme.fleet.scripts.text_forms",
    "paddle.fluid.incubate.data_generator": "bireme.reader.data_generator",
    "paddle.fluid.incubate.fleet.base.fleet_base": "bireme.fleet.api.base",
    "paddle.fluid.incubate.fleet.base.mode": "bireme.fleet.api.base",
    "paddle.fluid.incubate.fleet.collective": "bireme.fleet.api.collective",
    "paddle.fluid.incubate.fleet.utils.hdfs": "bireme.fleet.api.hdfs",
    "paddle.fluid.incubate.fleet.base.role_maker": "bireme.fleet.api.role_makers",
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler": (
        "bireme.fleet.api.parameter_server"
    ),
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy": (
        "bireme.fleet.api.server_strategies"
    ),
    "paddle.fluid.layers.utils": "bireme.layers.blocks",
    "paddle.fluid.log_helper": "bireme.fleet.scripts.text_forms",
    "paddle.fluid.transpiler.details.program_utils": "bireme.transpiler.program_utils",
    "paddle.fluid.unique_name": "bireme.ir.unique_name",
    "paddle.fluid.wrapped_decorator": "bireme.fleet.scripts.text_forms",
    "paddle.reader": "bireme.reader",
    "paddle.utils.plot": "bireme.fleet.scripts.plot",
    "paddle.version": "bireme.fleet.scripts.version_names",
    "paddle.reader.decorator": "bireme.reader.decorators",
}
MODULES |= PROGRAMS | {"paddle.distributed.fleet": "bireme.fleet.api.v2"}

# names of Fluid that are called otherwise here
NAMES = {
    "paddle:__version__": "bireme.framework:SPOKEN_VERSION",
    "paddle.fluid.executor:_fetch_var": "bireme.runtime.fetching:fetch_var",
    "paddle.fluid.executor:as_numpy": "bireme.runtime.fetching:as_numpy",
    "paddle.fluid.framework:_current_expected_place": "bireme.arrays.places:default_place",
    "paddle.fluid.framework:convert_np_dtype_to_dtype_": "bireme.ir:to_dtype",
    "paddle.fluid.framework:grad_var_name": "bireme.ir:grad_name",
    **{
        f"paddle.fluid.data_feeder:{name}": f"bireme.layers.argument_checks:{name}"
        for name in "check_dtype check_type check_variable_and_dtype convert_dtype".split()
    },
    "paddle.fluid.layers.detection:detection_map": "bireme.layers.regions:detection_map",
    "paddle.fluid.layers.device:get_places": "bireme.arrays.places:get_places",
}


# modules and names of Fluid that are left out, and what to do
ABSENT = {
    "paddle.fluid.dygraph": "programs are static here: build a Program (imperative mode is absent)",
    "paddle.imperative": "programs are static here: build a Program",
    "paddle.fluid.contrib.slim": "compression of models (PaddleSlim) is absent: train without it",
    "paddle.fluid.contrib.quantize": "quantization passes are absent: train without them",
    "paddle.fluid.contrib.int8_inference": "int8 inference is absent: infer in float32",
    "paddle.fluid.core.globals": "use fluid.get_flags and fluid.set_flags",
    "paddle.fluid.core.ops": "programs are static here: call the function of fluid.layers",
    "paddle.fluid.core.VarBase": "programs are static here: use fluid.Variable",
    "paddle.fluid.framework.IrGraph": "graphs of C++ passes are absent: work on the Program",
    "paddle.fluid.incubate.fleet.parameter_server.pslib": "pslib is Baidu's own: use "
    "incubate.fleet.parameter_server.distribute_transpiler",
    "paddle.fluid.layers.load": "use fluid.io.load_vars",
    "paddle.fluid.ComplexVariable": "complex numbers are absent: keep two real variables",
    "paddle.complex": "complex numbers are absent: keep two real variables",
    "paddle.v2": "this is PaddlePaddle 0.x, before Fluid: write it with paddle.fluid",
    "paddle.trainer_config_helpers": "this is PaddlePaddle 0.x, before Fluid",
    "paddle.incubate.hapi": "the high-level API of 1.8 is absent: write the loop with an Executor",
}


@cache
def table() -> Table:
    """Module -> name -> where it is defined, as 1.8.5 has it."""
    text = Path(__file__).with_name("fluid_names.json").read_text()
    found: Table = json.loads(text)
    return found


def modules() -> Iterator[str]:
    """Every module of 1.8.5."""
    return iter(table())


def is_module(name: str) -> bool:
    """Whether 1.8.5 has a module, or a package above one, of this name."""
    return (
        name in table()
        or name in MODULES
        or v2_names.is_module(name)
        or any(known.startswith(f"{name}.") for known in table())
    )


def known(module: str) -> dict[str, str]:
    """The names of a module of 1.8.5."""
    return table().get(module, {})


def home_of(name: str) -> str | None:
    """The module of ours that stands for Fluid's module `name`, if there is one."""
    if name in MODULES:
        return _existing(MODULES[name])
    for root, ours in ((DATASET, "bireme.dataset"), (FLUID, "bireme")):
        if name.startswith(f"{root}."):
            rest = name.removeprefix(f"{root}.")
            elsewhere = bireme.MODULES_ELSEWHERE.get(rest) if root == FLUID else None
            return elsewhere or _existing(f"{ours}.{rest}")
    return None


@cache
def _existing(module: str) -> str | None:
    return module if spec_of(module) else None


@cache
def spec_of(module: str) -> ModuleSpec | None:
    """Where a module is; unlike `importlib.util.find_spec` it imports no package above it."""
    path = None
    if parent := module.rpartition(".")[0]:
        above = spec_of(parent)
        path = above.submodule_search_locations if above else None
        if path is None:
            return None
    found = (f.find_spec(module, path) for f in sys.meta_path if hasattr(f, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


@cache
def namesakes() -> dict[str, tuple[str, ...]]:
    """Our modules that stand for modules of Fluid: ours -> Fluid's."""
    found: dict[str, tuple[str, ...]] = {}
    for module in table():
        if home := home_of(module):
            found[home] = (*found.get(home, ()), module)
    return found


@cache
def _offered() -> dict[str, list[str]]:
    """Where Fluid offers each object: its definition -> modules, those nearest the top first."""
    found: dict[str, list[str]] = {}
    for module in sorted(table(), key=lambda m: (m.count("."), m)):
        for name, source in table()[module].items():
            found.setdefault(source or f"{module}:{name}", []).append(f"{module}:{name}")
    return found


def find(module: str, name: str) -> Any:
    """What `name` of Fluid's `module` is here.

    Raises:
        AttributeError: there is no such name here.
    """
    if is_module(f"{module}.{name}") and not _is_function(module, name):
        return _module(f"{module}.{name}")
    source = known(module).get(name)
    definition = source or f"{module}:{name}"
    for place in (f"{module}:{name}", definition, *_offered().get(definition, ())):
        value = _ours(place)
        if value is not _ABSENT:
            return value
    if source and ":" not in source:
        return _module(source)
    if source and not source.startswith("paddle"):  # what Fluid's module took from the library
        origin, _, own = source.partition(":")
        return getattr(_module(origin), own)
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        raise AttributeError(str(missing), name=name) from None


@cache
def is_here(module: str) -> bool:
    """Whether there is something here of Fluid's `module`: the module, a name, a module below."""
    if module in ABSENT or module.rpartition(".")[0] in ABSENT:
        return False
    if home_of(module) or v2_names.is_module(module):
        return True
    own = (name for name, source in known(module).items() if not source)
    below = (m for m in table() if m.startswith(f"{module}."))
    return any(_resolves(module, name) for name in own) or any(is_here(m) for m in below)


def _resolves(module: str, name: str) -> bool:
    places = (f"{module}:{name}", *_offered().get(f"{module}:{name}", ()))
    return any(_ours(place) is not _ABSENT for place in places)


def _is_function(module: str, name: str) -> bool:
    """`fluid.data` is a function, although it has a module's name."""
    return known(module).get(name, ".").endswith(f":{name}")


def shadowed() -> list[str]:
    """The modules of 1.8.5 that a function of their package hides, such as `paddle.fluid.data`."""
    return [
        f"{module}.{name}"
        for module, found in table().items()
        for name in found
        if f"{module}.{name}" in table() and _is_function(module, name)
    ]


_ABSENT = object()


def _ours(place: str) -> Any:
    module, _, name = place.partition(":")
    if home := NAMES.get(place) or v2_names.NAMES.get(place):
        module, _, name = home.partition(":")
        return getattr(import_module(module), name)
    home = home_of(module)
    if home is None:
        return _ABSENT
    own = vars(import_module(home))
    return own[name] if name in own else _lazily(home, name)


def _lazily(home: str, name: str) -> Any:
    """A name that a module of ours makes on demand."""
    lazy = vars(import_module(home)).get("__getattr__")
    own = getattr(lazy, "own", lazy)  # before `compat` has completed the module, its own function
    try:
        return own(name) if own else _ABSENT
    except AttributeError:
        return _ABSENT


def nearest(name: str, module: str) -> list[str]:
    """Names like `name` that a module of Fluid has."""
    return difflib.get_close_matches(name, known(module), n=3, cutoff=0.75)

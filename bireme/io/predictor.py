"""Fluid's inference API: a saved model with its own scope, fed and fetched by name.

Options for Fluid's engines and passes (TensorRT, MKL-DNN, IR passes) are accepted and ignored.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bireme.arrays.namespaces import Array
from bireme.arrays.places import CPUPlace, CUDAPlace
from bireme.arrays.values import LoDTensor, to_lod
from bireme.errors import FeedError, InvalidArgument
from bireme.paths import path_of
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope, scope_guard

from .inference import load_inference_model
from .predictor_tensors import PaddleTensor

__all__ = [
    "AnalysisConfig",
    "AnalysisPredictor",
    "ZeroCopyTensor",
    "create_paddle_predictor",
]

_IGNORED = """
    delete_pass disable_glog_info enable_lite_engine enable_memory_optim enable_mkldnn
    enable_profile enable_quantizer enable_tensorrt_engine set_cpu_math_library_num_threads
    set_mkldnn_cache_capacity set_mkldnn_op set_optim_cache_dir set_trt_dynamic_shape_info
    switch_ir_debug switch_ir_optim
""".split()


class AnalysisConfig:
    """The location of a model, and the device to run it on.

    One path names the folder of `save_inference_model`; two paths name the files of program and
    parameters.
    """

    def __init__(self, model: str | None = None, params: str | None = None) -> None:
        self._gpu: int | None = None
        self._feed_fetch = True
        self._by_name = False
        self._model, self._params = model, params

    def set_model(self, model: str, params: str | None = None) -> None:
        self._model, self._params = model, params

    def set_prog_file(self, path: str) -> None:
        self._model = path

    def set_params_file(self, path: str) -> None:
        self._params = path

    def model_dir(self) -> str:
        """The model's folder, or "" if files are given."""
        return "" if self._params else self._model or ""

    def prog_file(self) -> str:
        return (self._model or "") if self._params else ""

    def params_file(self) -> str:
        return self._params or ""

    def enable_use_gpu(self, memory_pool_init_size_mb: int = 100, device_id: int = 0) -> None:
        """Run on a device; memory is allocated on demand."""
        self._gpu = device_id

    def disable_gpu(self) -> None:
        self._gpu = None

    def use_gpu(self) -> bool:
        return self._gpu is not None

    def gpu_device_id(self) -> int:
        return self._gpu or 0

    def switch_use_feed_fetch_ops(self, x: bool = True) -> None:
        """False selects `get_input_tensor` and `zero_copy_run`; both interfaces always work."""
        self._feed_fetch = bool(x)

    def use_feed_fetch_ops_enabled(self) -> bool:
        return self._feed_fetch

    def switch_specify_input_names(self, x: bool = True) -> None:
        """True matches the inputs of `run` by their names instead of their positions."""
        self._by_name = bool(x)

    def specify_input_name(self) -> bool:
        return self._by_name

    def ir_optim(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name in _IGNORED:
            return lambda *args, **kwargs: None
        raise AttributeError(f"'AnalysisConfig' object has no attribute {name!r}", name=name)


class ZeroCopyTensor:
    """An input or output of a predictor, by name."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._values, self._name = values, name

    def name(self) -> str:
        return self._name

    def copy_from_cpu(self, data: Any) -> None:
        """Set the feed of the next run; a reshape or LoD set before applies to it."""
        held = self._held()
        held.array = np.array(data)

    def copy_to_cpu(self) -> Array:
        """The result of the last run."""
        return np.array(self._held().array)

    def reshape(self, shape: Sequence[int]) -> None:
        """Does nothing: arrays have their own shape."""

    def shape(self) -> list[int]:
        return self._held().shape()

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        self._held().offsets = to_lod(lod)

    def lod(self) -> list[list[int]]:
        return self._held().lod()

    def _held(self) -> LoDTensor:
        held: LoDTensor = self._values.setdefault(self._name, LoDTensor())
        return held


class AnalysisPredictor:
    """A loaded model; `run` takes and returns lists, `zero_copy_run` uses tensors by name."""

    def __init__(self, config: AnalysisConfig) -> None:
        self._config, self._scope = config, Scope()
        place = CUDAPlace(config.gpu_device_id()) if config.use_gpu() else CPUPlace()
        self._executor = Executor(place)
        if not config.model_dir() and not config.prog_file():
            raise InvalidArgument("the config names no model", hint="AnalysisConfig(folder)")
        folder, files = config.model_dir(), {}
        if config.params_file():
            program = path_of(config.prog_file())
            folder = str(program.parent)
            params = str(path_of(config.params_file()).absolute())
            files = {"model_filename": program.name, "params_filename": params}
        with scope_guard(self._scope):
            loaded = load_inference_model(folder, self._executor, **files)
        self._program, self._inputs, self._outputs = loaded
        self._fed: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    def get_input_names(self) -> list[str]:
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        return [v.name for v in self._outputs]

    def get_input_tensor(self, name: str) -> ZeroCopyTensor:
        return ZeroCopyTensor(self._fed, self._known(name, self.get_input_names()))

    def get_output_tensor(self, name: str) -> ZeroCopyTensor:
        return ZeroCopyTensor(self._given, self._known(name, self.get_output_names()))

    @staticmethod
    def _known(name: str, names: list[str]) -> str:
        if name not in names:
            raise FeedError(f"the model has no {name!r}", hint=f"it has {', '.join(names)}")
        return name

    def zero_copy_run(self) -> None:
        """Run on the contents of the input tensors; the results are in the output tensors."""
        with scope_guard(self._scope):
            values = self._executor.run(
                self._program, dict(self._fed), self._outputs, return_numpy=False
            )
        self._given.update(zip(self.get_output_names(), values, strict=True))

    def run(self, inputs: Sequence[PaddleTensor]) -> list[PaddleTensor]:
        """The outputs for these inputs, in the order of the model's, whatever their names; see
        `AnalysisConfig.switch_specify_input_names`.
        """
        if len(inputs) != len(self._inputs):
            raise FeedError(
                f"{len(inputs)} inputs for a model with {len(self._inputs)}",
                hint=f"give {', '.join(self._inputs)}",
            )
        for place, tensor in zip(self._inputs, inputs, strict=True):
            named = self._config.specify_input_name()
            name = self._known(tensor.name, self.get_input_names()) if named else place
            self._fed[name] = LoDTensor(tensor.as_ndarray(), to_lod(tensor.lod))
        self.zero_copy_run()
        found = []
        for name in self.get_output_names():
            value = self._given[name]
            found.append(PaddleTensor(np.asarray(value), name, value.lod()))
        return found

    def clone(self) -> "AnalysisPredictor":
        """Another predictor of the same model, for another thread."""
        return AnalysisPredictor(self._config)


def create_paddle_predictor(config: AnalysisConfig) -> AnalysisPredictor:
    """Load the model that the config names.

    Raises:
        FormatError: a file is missing or damaged.
    """
    return AnalysisPredictor(config)

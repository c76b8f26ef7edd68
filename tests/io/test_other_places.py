"""Models and parameters on file systems of fsspec, and as safetensors."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import paths
from bireme.errors import ConfigError, FormatError, UnsupportedError
from bireme.io.files import written
from bireme.io.predictor import AnalysisConfig, create_paddle_predictor
from bireme.io.predictor_tensors import PaddleTensor


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A prefix of a store in memory that no other test uses."""
    pytest.importorskip("upath", reason="bireme[remote] is not installed")
    return f"memory:/{tmp_path}"


class Trained:
    """A small model with parameters, in a scope of its own."""

    def __init__(self) -> None:
        self.main, self.startup = fluid.Program(), fluid.Program()
        self.main.random_seed = self.startup.random_seed = 5
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            self.x = fluid.layers.data("x", [4])
            self.y = fluid.layers.fc(fluid.layers.batch_norm(fluid.layers.fc(self.x, 3)), 2)
        self.exe, self.scope = fluid.Executor(fluid.CPUPlace()), fluid.Scope()
        with fluid.scope_guard(self.scope):
            self.exe.run(self.startup)
        self.given = np.random.default_rng(1).normal(size=(5, 4)).astype("float32")

    def output(self) -> Any:
        test = self.main.clone(for_test=True)
        with fluid.scope_guard(self.scope):
            return self.exe.run(test, {"x": self.given}, [self.y.name])[0]

    def saved(self, folder: str, **files: str) -> None:
        with fluid.scope_guard(self.scope):
            fluid.io.save_inference_model(folder, ["x"], [self.y], self.exe, self.main, **files)


def loaded(folder: str, given: Any, **files: str) -> Any:
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program, names, targets = fluid.io.load_inference_model(folder, exe, **files)
        return exe.run(program, {names[0]: given}, targets)[0]


FILES = [
    {},
    {"model_filename": "m", "params_filename": "p"},
    {"params_filename": "p.safetensors"},
]


@pytest.mark.parametrize("files", FILES, ids=lambda f: "-".join(f.values()) or "separate")
@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_a_model_comes_back(
    files: dict[str, str], remote: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "p.safetensors" in files.values():
        pytest.importorskip("safetensors", reason="bireme[safetensors] is not installed")
    model = Trained()
    folder = (request.getfixturevalue("store") if remote else str(tmp_path)) + "/model"
    model.saved(folder, **files)
    np.testing.assert_array_equal(loaded(folder, model.given, **files), model.output())
    if "model_filename" in files:
        config = AnalysisConfig(f"{folder}/m", f"{folder}/p")
        (found,) = create_paddle_predictor(config).run([PaddleTensor(model.given, "x")])
        np.testing.assert_array_equal(found.as_ndarray(), model.output())


@pytest.mark.parametrize("filename", [None, "all", "all.safetensors"])
def test_persistable_variables_come_back_from_a_store(store: str, filename: str | None) -> None:
    pytest.importorskip("safetensors", reason="bireme[safetensors] is not installed")
    model, other = Trained(), Trained()
    with fluid.scope_guard(model.scope):
        fluid.io.save_persistables(model.exe, store, model.main, filename)
    other.scope = fluid.Scope()
    with fluid.scope_guard(other.scope):
        fluid.io.load_persistables(other.exe, store, other.main, filename)
    np.testing.assert_array_equal(other.output(), model.output())
    assert not [path for path in paths.path_of(store).iterdir() if path.name.startswith(".")]


def test_state_comes_back_from_a_store(store: str) -> None:
    model, other = Trained(), Trained()
    with fluid.scope_guard(model.scope):
        fluid.save(model.main, f"{store}/m")
    other.scope = fluid.Scope()
    with fluid.scope_guard(other.scope):
        fluid.load(other.main, f"{store}/m")
    np.testing.assert_array_equal(other.output(), model.output())


# -- safetensors -------------------------------------------------------------------------------
def test_other_libraries_read_and_write_the_same_safetensors(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="bireme[safetensors] is not installed")
    model = Trained()
    with fluid.scope_guard(model.scope):
        fluid.io.save_params(model.exe, str(tmp_path), model.main, "w.safetensors")
        found = numpy.load_file(tmp_path / "w.safetensors")
        assert set(found) == {p.name for p in model.main.all_parameters()}
        doubled = {name: 2 * array for name, array in found.items()}
        numpy.save_file(doubled, tmp_path / "w2.safetensors")
        state = fluid.io.load_program_state(str(tmp_path / "w2.safetensors"))
        fluid.io.set_program_state(model.main, state)
        for name, array in doubled.items():
            np.testing.assert_array_equal(model.scope.find_var(name).get(), array)


def test_damage_to_safetensors_is_told(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy", reason="bireme[safetensors] is not installed")
    model = Trained()
    folder = str(tmp_path)
    model.saved(folder, params_filename="w.safetensors")
    path = tmp_path / "w.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-4])
    with pytest.raises(FormatError, match=re.escape(str(path))):
        loaded(folder, model.given, params_filename="w.safetensors")
    arrays = numpy.load(good)
    name, array = arrays.popitem()
    path.write_bytes(numpy.save(arrays))
    with pytest.raises(FormatError, match=f"variable '{name}' is not in the file"):
        loaded(folder, model.given, params_filename="w.safetensors")
    path.write_bytes(numpy.save({**arrays, name: array[:1]}))
    with pytest.raises(FormatError, match=f"variable '{name}' is float32"):
        loaded(folder, model.given, params_filename="w.safetensors")


def test_rows_by_id_are_refused_as_safetensors(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="bireme[safetensors] is not installed")
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        ids = fluid.layers.data("ids", [1], dtype="int64")
        attr = fluid.ParamAttr(name="table")
        rows = fluid.layers.embedding(
            ids, [-1, 4], is_sparse=True, is_distributed=True, param_attr=attr
        )
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        exe.run(main, {"ids": np.array([[3], [7]])}, [rows])
        with pytest.raises(UnsupportedError, match="'table' is rows by id, which safetensors"):
            fluid.io.save_persistables(exe, str(tmp_path), main, "all.safetensors")
    assert not list(tmp_path.iterdir())


# -- errors ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("module", "use", "extra"),
    [("upath", "memory://x/w", "remote"), ("safetensors.numpy", "w.safetensors", "safetensors")],
)
def test_a_missing_library_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, use: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=re.escape(f"pip install 'bireme[{extra}]'")):
        fluid.io.load_program_state(use)


def test_what_a_protocol_needs_is_named(store: str) -> None:
    with pytest.raises(ConfigError, match="cannot use nonesuch://x"):
        paths.path_of("nonesuch://x")
    with pytest.raises(FormatError, match="there is no such directory"):
        fluid.io.load_inference_model(f"{store}/nothing", fluid.Executor(fluid.CPUPlace()))


def test_a_file_that_was_not_finished_is_not_there(store: str) -> None:
    with written(f"{store}/w") as file:
        file.write(b"first")
    wrong: Any = "no bytes"
    with pytest.raises(TypeError), written(f"{store}/w") as file:
        file.write(wrong)
    (path,) = paths.path_of(store).iterdir()
    assert path.read_bytes() == b"first"

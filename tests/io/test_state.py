"""`fluid.load` and `load_program_state` of what `fluid.save` and `save_params` wrote."""

from pathlib import Path

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import FormatError, InvalidArgument


def _trained(folder: Path) -> tuple[fluid.Program, fluid.Executor, dict[str, np.ndarray]]:
    """A program, its executor, and the values of its parameters, saved in three forms."""
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 3]), 2))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    fluid.save(main, str(folder / "model"))
    fluid.io.save_params(exe, str(folder / "each"), main)
    fluid.io.save_params(exe, str(folder), main, filename="one")
    names = [p.name for p in main.all_parameters()]
    scope = fluid.global_scope()
    values = {n: np.array(scope.find_var(n).get_tensor()) for n in names}
    for name in names:
        scope.find_var(name).get_tensor().set(np.zeros_like(values[name]), fluid.CPUPlace())
    return main, exe, values


@pytest.mark.parametrize("form", ["model", "each", "one"])
def test_chosen_variables_are_loaded_from_every_form(tmp_path: Path, form: str) -> None:
    main, exe, values = _trained(tmp_path)
    fluid.load(main, str(tmp_path / form), exe, fluid.io.get_program_parameter(main))
    for name, value in values.items():
        assert np.array_equal(np.array(fluid.global_scope().find_var(name).get_tensor()), value)


@pytest.mark.parametrize("form", ["model", "each", "one"])
def test_the_state_of_every_form_is_a_dict(tmp_path: Path, form: str) -> None:
    main, _, values = _trained(tmp_path)
    chosen = fluid.io.get_program_parameter(main)
    state = fluid.io.load_program_state(str(tmp_path / form), chosen)
    assert {name: array.tolist() for name, array in state.items()} == {
        name: array.tolist() for name, array in values.items()
    }


def test_a_directory_is_read_without_a_list(tmp_path: Path) -> None:
    _, _, values = _trained(tmp_path)
    assert fluid.io.load_program_state(str(tmp_path / "each")).keys() == values.keys()


def test_one_file_needs_a_list(tmp_path: Path) -> None:
    _trained(tmp_path)
    with pytest.raises(InvalidArgument, match="does not name its variables"):
        fluid.io.load_program_state(str(tmp_path / "one"))


def test_without_a_list_everything_must_be_there(tmp_path: Path) -> None:
    main, exe, _ = _trained(tmp_path)
    fluid.layers.create_parameter([1], "float32", name="later")
    with pytest.raises(FormatError, match="'later' is not in the saved state"):
        fluid.load(main, str(tmp_path / "model"), exe)


def test_the_value_of_a_parameter_is_read_by_its_name(tmp_path: Path) -> None:
    main, exe, _ = _trained(tmp_path)
    name = main.all_parameters()[0].name
    assert not fluid.io.get_parameter_value_by_name(name, exe, main).any()
    fluid.load(main, str(tmp_path / "model"), exe)
    assert fluid.io.get_parameter_value_by_name(name, exe).any()
    with pytest.raises(InvalidArgument, match="not a parameter"):
        fluid.io.get_parameter_value_by_name("x", exe)

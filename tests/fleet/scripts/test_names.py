"""Names of Fluid 1.8.5 are found under every module that 1.8.5 has them in."""

import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.scripts import advice, names
from bireme.ir import Operator

SPELLINGS = """
    layers.nn:conv2d layers.nn:LayerHelper layers.nn:np layers.control_flow:While
    layers.tensor:concat layers.ops:exp layers.loss:cross_entropy layers.io:data
    layers.device:get_places layers.utils:map_structure layers.utils:pack_sequence_as
    layers.utils:assert_same_structure layers.utils:convert_to_list layers:core
    layers.learning_rate_scheduler:_decay_step_counter layers.rnn:beam_search
    framework:_get_var framework:grad_var_name framework:convert_np_dtype_to_dtype_
    framework:_current_expected_place executor:_fetch_var executor:as_numpy
    wrapped_decorator:signature_safe_contextmanager wrapped_decorator:wrap_decorator
    average:WeightedAverage evaluator:ChunkEvaluator evaluator:EditDistance
    io:load_program_state io:set_program_state dataset:DatasetFactory
    incubate.data_generator:MultiSlotDataGenerator install_check:run_check
    core:EnforceNotMet core:Place core:op_proto_and_checker_maker core:SelectedRows core:Tensor
    reader:PyReader data_feeder:DataFeeder data_feeder:check_variable_and_dtype
    data_feeder:convert_dtype layers.nn:check_type layers.detection:detection_map
    param_attr:ParamAttr contrib.decoder.beam_search_decoder:StateCell
    io:get_parameter_value_by_name
""".split()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_name_is_found_in_the_module_that_scripts_take_it_from(spelling: str) -> None:
    module, _, name = spelling.partition(":")
    assert name in names.known(f"paddle.fluid.{module}") or module == "core"
    home = names.home_of(f"paddle.fluid.{module}")
    own = home and getattr(__import__(home, fromlist=["x"]), name, None)
    assert own or names.find(f"paddle.fluid.{module}", name) is not None


def test_one_object_stands_under_all_its_spellings() -> None:
    import bireme

    assert names.find("paddle.fluid.layers.nn", "conv2d") is bireme.layers.conv2d
    assert names.find("paddle.fluid.optimizer", "program_guard") is bireme.program_guard


def test_a_name_that_fluid_has_not_is_an_attribute_error_with_the_nearest_ones() -> None:
    with pytest.raises(AttributeError, match=r"'paddle\.fluid\.layers' has no attribute 'conv2dd'"):
        names.find("paddle.fluid.layers", "conv2dd")
    assert "conv2d" in names.nearest("conv2dd", "paddle.fluid.layers")


@pytest.mark.wire
def test_a_script_finds_them_in_its_process_and_in_those_that_it_starts(tmp_path: Path) -> None:
    body = """
import subprocess
import paddle.fluid as fluid, paddle.compat
import paddle.fluid.layers.nn as N
from paddle.fluid.layers.control_flow import *
from paddle.fluid.layers.tensor import *
from paddle.fluid.layers import utils
import paddle.fluid.layers.rnn, paddle.fluid.data, paddle.batch
from paddle.fluid.layers.rnn import rnn, LSTMCell
assert fluid.layers.rnn.__name__ == rnn.__name__ == "rnn" and LSTMCell is fluid.layers.LSTMCell
assert fluid.data.__name__ == "data" and paddle.batch.__name__ == "batch"
assert fluid.layers.nn.conv2d is N.conv2d is fluid.layers.conv2d
assert While is fluid.layers.While and zeros is fluid.layers.zeros
assert fluid.layers.core is fluid.core and fluid.Tensor is fluid.LoDTensor
assert fluid.layers.utils.flatten([1, (2, 3)]) == [1, 2, 3]
try:
    fluid.layers.nonsense
except AttributeError as error:
    print(error)
child = "import paddle, paddle.fluid.layers.nn as n; print(paddle.__version__, n.fc)"
print(subprocess.check_output(["python", "-c", child], text=True)[:20])
"""
    (tmp_path / "train.py").write_text(body)
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "module 'paddle.fluid.layers' has no attribute 'nonsense'",
        "1.8.5 <function fc a",
    ]


def test_the_version_of_fluid_is_that_which_scripts_ask_for() -> None:
    import bireme.fleet.scripts.version_names as version

    assert names.home_of("paddle.version") == version.__name__
    assert ".".join([version.major, version.minor, version.patch]) == version.full_version


def test_an_operator_edited_in_place_is_told_how_to_be_replaced() -> None:
    operator = Operator("batch_norm")
    with pytest.raises(AttributeError) as caught:
        operator._set_attr("is_test", True)  # type: ignore[attr-defined]
    assert "op.with_attrs" in advice.on_error(caught.value)

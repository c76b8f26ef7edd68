"""The public face: the names that Fluid scripts use, and that each of them is there."""

import pytest

import bireme

SCRIPTS_USE = """
    Program Variable Executor CPUPlace CUDAPlace CUDAPinnedPlace Scope LoDTensor LoDTensorArray
    ParamAttr DistributeTranspiler DistributeTranspilerConfig default_main_program
    default_startup_program program_guard name_scope device_guard global_scope scope_guard
    cpu_places cuda_places cuda_pinned_places create_lod_tensor create_random_int_lodtensor
    is_compiled_with_cuda gradients get_flags set_flags layers optimizer initializer regularizer
    clip io backward core unique_name transpiler
""".split()


@pytest.mark.parametrize("name", SCRIPTS_USE)
def test_a_name_that_scripts_use_is_there(name: str) -> None:
    assert getattr(bireme, name) is not None


@pytest.mark.parametrize("name", sorted(set(bireme.__all__)))
def test_every_announced_name_resolves(name: str) -> None:
    assert getattr(bireme, name) is not None


def test_the_face_lists_what_it_has() -> None:
    assert set(dir(bireme)) == set(bireme.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Porgram'"):
        bireme.Porgram  # noqa: B018  # the access is the test


def test_core_points_at_the_same_objects() -> None:
    assert bireme.core.CPUPlace is bireme.CPUPlace
    assert bireme.core.VarDesc.VarType.FP32 is bireme.VarType.FP32


@pytest.mark.parametrize("name", bireme.core.__all__)
def test_core_has_what_it_points_at(name: str) -> None:
    assert getattr(bireme.core, name) is not None


def test_a_script_may_ask_for_the_version_that_is_spoken() -> None:
    bireme.require_version("1.5")
    bireme.require_version("1.8.0", "1.8.5")
    with pytest.raises(bireme.errors.ConfigError, match=r"asks for Fluid at least 2.0; .* 1.8.5"):
        bireme.require_version("2.0")
    with pytest.raises(bireme.errors.InvalidArgument, match="'new'"):
        bireme.require_version("new")


def test_there_is_no_imperative_mode() -> None:
    bireme.disable_dygraph()
    assert not bireme.in_dygraph_mode()
    with pytest.raises(bireme.errors.UnsupportedError, match="imperative mode"):
        bireme.enable_dygraph()
    with pytest.raises(bireme.errors.UnsupportedError, match="compiled operators"):
        bireme.load_op_library("my.so")

"""LoD tensors, selected rows, scopes and places."""

import numpy as np
import pytest

from bireme.arrays.places import (
    CPUPlace,
    CUDAPlace,
    check_place,
    cpu_places,
    cuda_places,
    is_compiled_with_cuda,
)
from bireme.arrays.values import (
    LoDTensor,
    SelectedRows,
    create_lod_tensor,
    create_random_int_lodtensor,
)
from bireme.errors import InvalidArgument, UnsupportedError
from bireme.ir import VarType
from bireme.runtime.scope import Scope, global_scope, scope_guard

PLACE = CPUPlace()


def test_a_tensor_keeps_a_copy_of_what_it_is_given():
    given = np.arange(6, dtype="float32").reshape(3, 2)
    tensor = LoDTensor()
    tensor.set(given, PLACE)
    given[:] = 0
    assert np.array(tensor).tolist() == [[0, 1], [2, 3], [4, 5]]
    assert tensor.shape() == [3, 2]
    assert tensor._dtype() == VarType.FP32


def test_offsets_and_lengths_are_two_views_of_one_structure():
    tensor = LoDTensor(np.zeros((5, 1)))
    tensor.set_recursive_sequence_lengths([[2, 1], [1, 2, 2]])
    assert tensor.lod() == [[0, 2, 3], [0, 1, 3, 5]]
    tensor.set_lod([[0, 3, 3, 5]])
    assert tensor.recursive_sequence_lengths() == [[3, 0, 2]]
    assert tensor.has_valid_recursive_sequence_lengths()


@pytest.mark.parametrize("lod", [[[0, 2]], [[1, 5]], [[0, 6]], [[0, 3, 2, 5]], [[0, 2], [0, 5]]])
def test_a_structure_that_does_not_fit_is_refused(lod):
    with pytest.raises(InvalidArgument, match="5 rows"):
        LoDTensor(np.zeros((5, 1))).set_lod(lod)


def test_lod_tensors_come_from_sequences_arrays_and_chance():
    tensor = create_lod_tensor([[1, 2, 3], [4]], [[3, 1]], PLACE)
    assert np.array(tensor).tolist() == [[1], [2], [3], [4]]
    assert create_lod_tensor(np.ones((4, 2)), [[1, 3]], PLACE).lod() == [[0, 1, 4]]
    drawn = create_random_int_lodtensor([[2, 3]], [1], PLACE, low=4, high=6)
    assert drawn.shape() == [5, 1]
    assert set(np.array(drawn).reshape(-1)) <= {4, 5, 6}
    with pytest.raises(InvalidArgument, match="lengths"):
        create_lod_tensor([[1, 2]], [[3]], PLACE)


def test_an_empty_tensor_says_what_to_do():
    with pytest.raises(InvalidArgument, match="startup program"):
        np.array(LoDTensor())


def test_repeated_rows_add_up():
    rows = SelectedRows(np.array([3, 1, 3]), np.array([[1.0], [2.0], [4.0]]), 5)
    assert rows.to_dense().tolist() == [[0], [2], [0], [5], [0]]
    merged = rows.merged()
    assert merged.rows.tolist() == [1, 3]
    assert merged.value.tolist() == [[2], [5]]


def test_scopes_look_up_and_write_down():
    scope = Scope()
    scope.var("w").get_tensor().set(np.ones(2), PLACE)
    kid = scope.new_scope()
    assert kid.find_var("w") is scope.find_var("w")
    assert kid.var("w") is not scope.find_var("w")
    assert scope.kids == [kid]
    assert kid.find_var("v") is None
    scope.drop_kids()
    assert scope.kids == []
    scope.erase(["w"])
    assert scope.find_var("w") is None


def test_a_cell_tensor_reads_and_writes_the_scope():
    scope = Scope()
    tensor = scope.var("x").get_tensor()
    tensor.set(np.zeros((3, 1), "float32"), PLACE)
    tensor.set_lod([[0, 1, 3]])
    again = scope.find_var("x").get_tensor()
    assert again.lod() == [[0, 1, 3]]
    assert np.asarray(again) is scope.find_var("x").value


def test_scope_guard_changes_the_global_scope_inside():
    outer, inner = global_scope(), Scope()
    with scope_guard(inner):
        assert global_scope() is inner
    assert global_scope() is outer


def test_cpu_places_follow_cpu_num(monkeypatch):
    monkeypatch.setenv("CPU_NUM", "3")
    assert cpu_places() == [CPUPlace()] * 3
    assert len(cpu_places(2)) == 2


@pytest.mark.skipif(is_compiled_with_cuda(), reason="this machine has a CUDA device")
def test_a_cuda_place_without_a_device_names_the_way_out():
    assert CUDAPlace(1).get_device_id() == 1
    with pytest.raises(UnsupportedError, match="FLAGS_place=cpu"):
        check_place(CUDAPlace(0))
    with pytest.raises(UnsupportedError, match="--cpu"):
        cuda_places()


def test_a_negative_device_is_refused():
    with pytest.raises(InvalidArgument, match="device id"):
        CUDAPlace(-1)

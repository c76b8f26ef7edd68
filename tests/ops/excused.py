"""Operators that no single-operator case can check, and the test file that checks each instead."""

_RANDOM = (
    "uniform_random gaussian_random truncated_gaussian_random uniform_random_batch_size_like "
    "gaussian_random_batch_size_like randint randperm shuffle_batch shuffle_batch_grad sampling_id "
    "random_crop seed"
)

_BRANCHES = "conditional_block conditional_block_grad select_input select_output"
_LOOPS = (
    "while while_grad write_to_array read_from_array lod_array_length tensor_array_to_tensor "
    "tensor_array_to_tensor_grad"
)
_RECURRENCES = (
    "recurrent recurrent_grad rnn_memory_helper rnn_memory_helper_grad lod_rank_table "
    "max_sequence_len lod_tensor_to_array array_to_lod_tensor shrink_rnn_memory "
    "shrink_rnn_memory_grad reorder_lod_tensor_by_rank reorder_lod_tensor_by_rank_grad "
    "conditional_block_infer"
)

CHECKED_ELSEWHERE: dict[str, str] = {
    "py_func": "layers/test_host.py",
    "cvm_grad": "ops/test_refusals.py",
    **dict.fromkeys(_RANDOM.split(), "ops/test_random.py"),
    **dict.fromkeys(("dgc", "dgc_momentum", "dgc_clip_by_norm"), "optimizer/test_compression.py"),
    **dict.fromkeys(_BRANCHES.split(), "control_flow/test_branches.py"),
    **dict.fromkeys(_LOOPS.split(), "control_flow/test_loops.py"),
    **dict.fromkeys(_RECURRENCES.split(), "control_flow/test_recurrences.py"),
}

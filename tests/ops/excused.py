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

_COLUMNS = "partial_concat partial_concat_grad partial_sum partial_sum_grad tdm_child"
_DETECTION = (
    "prior_box density_prior_box anchor_generator iou_similarity box_coder box_decoder_and_assign "
    "box_clip polygon_box_transform bipartite_match target_assign mine_hard_examples "
    "multiclass_nms multiclass_nms2 generate_proposals distribute_fpn_proposals "
    "collect_fpn_proposals yolo_box yolov3_loss yolov3_loss_grad roi_pool roi_pool_grad roi_align "
    "roi_align_grad psroi_pool psroi_pool_grad affine_grid affine_grid_grad grid_sampler "
    "grid_sampler_grad bicubic_interp bicubic_interp_grad hash sigmoid_focal_loss "
    "sigmoid_focal_loss_grad"
)

_TRAINING = (
    "rpn_target_assign retinanet_target_assign generate_proposal_labels matrix_nms "
    "generate_mask_labels "
    "locality_aware_nms retinanet_detection_output deformable_conv deformable_conv_grad "
    "deformable_conv_v1 deformable_conv_v1_grad deformable_psroi_pooling "
    "deformable_psroi_pooling_grad prroi_pool prroi_pool_grad"
)
_QUANTIZATION = (
    "fake_quantize_abs_max fake_channel_wise_quantize_abs_max fake_quantize_range_abs_max "
    "fake_quantize_moving_average_abs_max fake_quantize_dequantize_moving_average_abs_max "
    "moving_average_abs_max_scale fake_dequantize_max_abs fake_channel_wise_dequantize_max_abs "
    "dequantize_abs_max dequantize_log"
)
_STRUCTURES = (
    "match_matrix_tensor match_matrix_tensor_grad var_conv_2d var_conv_2d_grad "
    "sequence_topk_avg_pooling sequence_topk_avg_pooling_grad tree_conv filter_by_instag "
    "filter_by_instag_grad fused_elemwise_activation fused_elemwise_activation_grad fc"
)

_INFERENCE = (
    "attention_lstm fused_embedding_fc_lstm fusion_gru fusion_lstm fusion_repeated_fc_relu "
    "fusion_seqconv_eltadd_relu fusion_seqexpand_concat_fc fusion_seqpool_concat "
    "fusion_seqpool_cvm_concat fusion_squared_mat_sub"
)
_RARE = "similarity_focus precision_recall positive_negative_pair"

_SECOND = """
    conv2d_grad_grad conv3d_grad_grad depthwise_conv2d_grad_grad elementwise_add_grad_grad
    elementwise_div_grad_grad elementwise_mul_grad_grad elementwise_sub_grad_grad
    elu_grad_grad expand_grad_grad instance_norm_grad_grad leaky_relu_grad_grad
    mean_grad_grad mul_grad_grad reduce_mean_grad_grad reduce_sum_grad_grad relu_grad_grad
    reshape2_grad_grad sigmoid_grad_grad slice_grad_grad sqrt_grad_grad square_grad_grad
    tanh_grad_grad transpose2_grad_grad
"""

_FUSED = (
    "fused_batch_norm_act fused_batch_norm_act_grad fused_bn_add_activation "
    "fused_bn_add_activation_grad"
)

_SYNC = (
    "bireme_batch_norm_sums bireme_batch_norm_of_sums bireme_batch_norm_grad_sums "
    "bireme_batch_norm_grad_of_sums"
)

CHECKED_ELSEWHERE: dict[str, str] = {
    "py_func": "layers/test_host.py",
    "cvm_grad": "ops/test_refusals.py",
    **dict.fromkeys(_RANDOM.split(), "ops/test_random.py"),
    **dict.fromkeys(("dgc", "dgc_momentum", "dgc_clip_by_norm"), "optimizer/test_compression.py"),
    **dict.fromkeys(_BRANCHES.split(), "control_flow/test_branches.py"),
    **dict.fromkeys(_LOOPS.split(), "control_flow/test_loops.py"),
    **dict.fromkeys(_SECOND.split(), "autodiff/test_second_order.py"),
    **dict.fromkeys(_COLUMNS.split(), "contrib/uses.py"),
    "detection_map": "detection/test_map.py",
    "tdm_sampler": "contrib/test_contrib.py",
    **dict.fromkeys(_DETECTION.split(), "detection/uses.py"),
    **dict.fromkeys(_TRAINING.split(), "detection/uses_training.py"),
    **dict.fromkeys(_STRUCTURES.split(), "contrib/uses_structures.py"),
    **dict.fromkeys(_FUSED.split(), "ops/test_fused_norm.py"),
    **dict.fromkeys(_SYNC.split(), "passes/test_sync_batch_norm.py"),
    **dict.fromkeys(_INFERENCE.split(), "contrib/uses_fusions.py"),
    **dict.fromkeys(_RARE.split(), "contrib/uses_more_operators.py"),
    "tree_conv_grad": "contrib/test_contrib.py",
    **dict.fromkeys(_QUANTIZATION.split(), "contrib/uses_quantization.py"),
    **dict.fromkeys(_RECURRENCES.split(), "control_flow/test_recurrences.py"),
}

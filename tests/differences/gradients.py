"""Gradients that 1.8.5 loses or computes wrongly, and updates that lose rows."""

from .record import Difference

_SLOPES = "ops/test_every_operator.py::test_gradients_agree_with_differences"
_EACH = "ops/test_every_operator.py::test_gradients_of_each_output_alone_agree_with_differences"
_AVERAGE = "optimizer/test_wrappers.py::test_a_moving_average_follows_the_parameters"

GRADIENTS = (
    Difference(
        "`Momentum` and `RMSProp`, `is_sparse=True`",
        "look rows up by bisection, and lose some where ids neither rise nor repeat: of "
        "1, 5, 9, 2, 3 only 1, 5 and 9 learn. On servers most rows of the second trainer are lost",
        "update every row, as with a dense gradient",
        "no gradient is lost; curves agree with those of 1.8.5 where the gradient is dense",
        "optimizer/test_recorded.py::test_rows_learn_what_they_learn_from_fluids_whole_gradients",
        (
            "curve:w2v_sparse_momentum",
            "curve:sparse_nesterov",
            "curve:sparse_rmsprop",
            "curve:sparse_rmsprop_centered",
            "curve:sparse_clip_momentum",
        ),
    ),
    Difference(
        "`layers.scatter`",
        "gives rows a gradient although they were overwritten, by an update or a later one",
        "gives overwritten rows and updates a gradient of zero",
        "the loss does not depend on them",
        _SLOPES,
        ("value:layers/scatter", "value:layers/scatter_add"),
    ),
    Difference(
        "`layers.gather` of one row several times",
        "keeps the last gradient only, unless `overwrite=False`",
        "adds the gradients, whatever `overwrite` says",
        "no gradient is lost",
        _SLOPES,
        ("value:layers/gather",),
    ),
    Difference(
        "`embedding(padding_idx=..., is_sparse=True)`",
        "updates the padding row, which is read as zeros all the same",
        "leaves it alone, as with a dense gradient",
        "clipping by a global norm and saved tables do not depend on padding",
        "optimizer/test_optimizers.py::test_padding_reads_as_zeros_and_learns_nothing",
    ),
    Difference(
        "`layers.dynamic_lstm` and `layers.dynamic_lstmp` of a size that 8 divides, on the CPU",
        "compute wrong gradients of the input and of the weights; elements are zero or off by "
        "factors of 5 to 30",
        "compute the gradients that finite differences confirm",
        "every weight learns",
        "control_flow/test_wide_cells.py::test_wide_cells_have_gradients",
    ),
    Difference(
        "`layers.pad`",
        "leaves parts of the gradient unwritten",
        "writes the whole gradient",
        "uninitialised memory is not a gradient",
        _SLOPES,
        ("value:layers/pad",),
    ),
    Difference(
        "`layers.group_norm`",
        "leaves the mean out of the gradient",
        "takes it in",
        "the gradient agrees with finite differences",
        _SLOPES,
        ("value:vision/group_norm", "value:vision/group_norm_last", "value:vision/group_norm_relu"),
    ),
    Difference(
        "`layers.softmax_with_cross_entropy(ignore_index=...)`, on the CPU",
        "gives rows whose label is ignored a gradient",
        "gives them none",
        "the loss does not depend on them",
        "ops/test_refusals.py::test_an_ignored_label_teaches_nothing",
    ),
    Difference(
        "`layers.soft_relu`",
        "ends the gradient where the result reaches the threshold",
        "ends it where x does",
        "the gradient agrees with finite differences",
        _SLOPES,
    ),
    Difference(
        "a gradient through `layers.While`",
        "knows that of the last step only",
        "adds the gradients of all steps",
        "earlier steps count as well",
        "control_flow/test_loops.py::test_gradients_flow_through_a_variable_that_a_loop_carries",
        ("value:flow/while_loop",),
    ),
    Difference(
        "a loop variable that every step overwrites",
        "adds the gradients of values that later steps overwrote: 130 for the 22 of i*i, with i "
        "counted from 1 to 11",
        "gives the gradient of the last value",
        "the gradient agrees with finite differences",
        "control_flow/test_loops.py::"
        "test_a_variable_that_a_body_increments_in_place_has_its_gradient",
    ),
    Difference(
        "`layers.dynamic_lstm` and `layers.dynamic_lstmp` where somebody reads the cell",
        "drops the gradient that comes back through the cell",
        "adds it",
        "no gradient is lost",
        _EACH,
        (
            "value:flow/lstm_cell_too",
            "program:flow/lstm_cell_too",
            "value:flow/lstmp_cell_too",
            "program:flow/lstmp_cell_too",
        ),
    ),
    Difference(
        "`softmax_with_cross_entropy(return_softmax=True)` where the loss depends on the softmax",
        "drops the gradient that comes back through the softmax",
        "adds it",
        "no gradient is lost",
        _EACH,
        ("value:layers/swce_soft", "program:layers/swce_soft"),
    ),
    Difference(
        "`layers.gru_unit` where somebody reads the gates or the reset state",
        "drops the gradient that comes back through them",
        "adds it",
        "no gradient is lost",
        _EACH,
        ("value:flow/gru_unit", "program:flow/gru_unit"),
    ),
    Difference(
        "`layers.warpctc` of a label that holds the blank",
        "computes a gradient that is not that of its loss",
        "computes the gradient of the same loss",
        "the gradient agrees with finite differences",
        _SLOPES,
    ),
    Difference(
        "`layers.swish(beta=...)`",
        "ignores `beta`",
        "computes x sigmoid(beta x)",
        "the argument means what it says",
        _SLOPES,
        ("value:layers/swish", "program:layers/swish"),
    ),
    Difference(
        "`layers.dropout(is_test=True)`, `layers.batch_norm(is_test=True)`",
        "cannot be differentiated",
        "have gradients",
        "a frozen part of a model may lie before a part that learns",
        _SLOPES,
        (
            "value:layers/dropout_test",
            "program:layers/dropout_test",
            "value:vision/batch_norm_test",
        ),
    ),
    Difference(
        "`layers.meshgrid`, one result used",
        "reads a gradient that was never written, and crashes",
        "takes it for zero",
        "what is not used has no gradient",
        "layers/test_values.py::test_a_difference_is_the_recorded_one",
        ("value:layers/meshgrid", "program:layers/meshgrid"),
    ),
    Difference(
        "`layers.split` into sections, one part used",
        "dies",
        "takes the gradients of the others for zero",
        "what is not used has no gradient",
        "layers/test_values.py::test_a_difference_is_the_recorded_one",
        ("value:layers/split_sections", "program:layers/split_sections"),
    ),
    Difference(
        "`layers.DynamicRNN` with outputs that are not used",
        "adds a gradient that was never written",
        "leaves it out",
        "what is not used has no gradient",
        "control_flow/test_programs.py::test_a_difference_is_the_recorded_one",
        ("program:flow/dynamic_rnn_half_used",),
    ),
    Difference(
        "`layers.adaptive_pool2d(require_index=True)`",
        "differentiates positions",
        "differentiates values only",
        "positions have no gradient",
        "layers/test_programs.py::test_a_difference_is_the_recorded_one",
        ("program:vision/adaptive_pool2d_index",),
    ),
    Difference(
        "`optimizer.ExponentialMovingAverage.apply`",
        "leaves the corrected average in the place of the average, which the next steps and the "
        "next `apply` continue from",
        "keeps the average as it is",
        "to evaluate a model does not change it",
        _AVERAGE,
    ),
    Difference(
        "`ExponentialMovingAverage(thres_steps=...)`, a counter of whole numbers",
        "divides whole numbers, so the decay is never scheduled",
        "schedules the decay, as with a counter of floats",
        "the argument does what it says",
        _AVERAGE,
    ),
)

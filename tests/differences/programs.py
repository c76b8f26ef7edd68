"""Programs whose declarations or order differ while their results do not."""

from .record import Difference

_LAYERS = "layers/test_programs.py::test_a_difference_is_the_recorded_one"
_FLOW = "control_flow/test_programs.py::test_a_difference_is_the_recorded_one"

PROGRAMS = (
    Difference(
        "random numbers",
        "come from one generator a process, or one an operator that has a seed: two operators of "
        "one seed draw the same",
        "are a function of the seed, the number of the draw in its program and the place of the "
        "element; two operators draw different numbers",
        "slices on servers, rows of tables and programs built again draw what the whole would",
        "ops/test_random.py::test_the_same_model_built_again_draws_the_same",
    ),
    Difference(
        "`optimizer.PipelineOptimizer`",
        "updates parameters with every micro-batch, while others are on their way",
        "uses the means over the micro-batches in one update",
        "a pipeline trains as the program on the whole batch does",
        "collective/test_pipeline.py::test_stages_on_threads_give_the_numbers_of_the_whole_batch",
    ),
    Difference(
        "`layers.expand_as`",
        "declares no shape",
        "declares that of the target",
        "layers after it can check their arguments",
        _LAYERS,
        ("program:layers/expand_as",),
    ),
    Difference(
        "`layers.flatten` of an unknown batch size",
        "multiplies -1 by the other sizes",
        "declares -1",
        "an unknown size stays unknown",
        _LAYERS,
        ("program:layers/flatten_2",),
    ),
    Difference(
        "`layers.sampled_softmax_with_cross_entropy`",
        "leaves a temporary without an element type",
        "declares it",
        "every variable has a type",
        _LAYERS,
        ("program:layers/sampled_softmax",),
    ),
    Difference(
        "`layers.adaptive_pool2d`, `layers.adaptive_pool3d`, maximum",
        "declare positions as float32",
        "declare whole numbers",
        "programs and values agree",
        _LAYERS,
        ("program:vision/adaptive_pool2d_max", "program:vision/adaptive_pool3d_max"),
    ),
    Difference(
        "`layers.data_norm`",
        "lists the summaries as outputs of the gradient, which nothing writes",
        "leaves them out",
        "programs say what is written",
        _LAYERS,
        ("program:vision/data_norm",),
    ),
    Difference(
        "`layers.im2sequence`",
        "declares one row for an image",
        "declares an unknown number of rows",
        "an image has as many rows as windows",
        _LAYERS,
        ("program:vision/im2sequence",),
    ),
    Difference(
        "`layers.cond` with several results",
        "turns two independent operators round",
        "keeps their order",
        "programs are easier to read",
        _FLOW,
        ("program:flow/cond_of_several",),
    ),
    Difference(
        "`layers.sequence_conv`, `layers.row_conv`",
        "declare the gradients that they start from without sequences",
        "declare the sequences of the result",
        "a gradient looks like its variable",
        _FLOW,
        ("program:flow/conv", "program:flow/row_conv"),
    ),
    Difference(
        "`layers.edit_distance`",
        "declares whole numbers",
        "declares float32",
        "programs and values agree",
        _FLOW,
        ("program:flow/edit_distance",),
    ),
)

"""Layers whose results differ, gradients aside."""

from .record import Difference

_VALUES = "layers/test_values.py::test_a_difference_is_the_recorded_one"

LAYERS = (
    Difference(
        "`layers.strided_slice` backwards over a length that the stride does not divide",
        "begins at another element: 13, 8, 3 for the elements 15, 10 and 5",
        "gives what NumPy gives",
        "the slice holds what was asked for",
        "ops/test_every_operator.py::test_values_agree_with_the_reference",
    ),
    Difference(
        "`layers.cross_entropy` of numbers that are no probabilities",
        "takes logarithms of negative numbers",
        "bounds the logarithm from below",
        "the loss stays finite",
        _VALUES,
        (
            "value:layers/cross_entropy",
            "value:layers/cross_entropy_ignore",
            "value:layers/cross_entropy_soft",
        ),
    ),
    Difference(
        "`layers.has_inf`, `layers.has_nan`",
        "return another type than the program declares",
        "return what is declared",
        "programs and values agree",
        _VALUES,
        ("value:layers/has_inf", "value:layers/has_nan"),
    ),
    Difference(
        "`layers.gather_tree`",
        "reads beyond the beams",
        "stays within them",
        "other memory is not a parent",
        _VALUES,
        ("value:flow/gather_tree",),
    ),
    Difference(
        "a variable of `layers.create_tensor` that was never written",
        "is fetched",
        "is refused by name",
        "an empty value is a mistake in the program",
        _VALUES,
        ("value:layers/create_tensor",),
    ),
    Difference(
        "`initializer.Bilinear`",
        "computes with fractions of rows under Python 3, so the weights do not interpolate",
        "gives the weights of linear interpolation, as 1.8.5 does under Python 2",
        "an image is enlarged without seams",
        "optimizer/test_initializers.py::test_bilinear_weights_interpolate",
    ),
    Difference(
        "the operator `fusion_gru` with `origin_mode`, in optimized models",
        "ignores the attribute",
        "computes what the `gru` before the fusion computed",
        "an optimized model gives the results of the model",
        "contrib/test_contrib.py::test_a_fused_gru_keeps_its_mode",
    ),
)

"""Where element types are taken or refused in another way than by 1.8.5."""

from .record import Difference

_TEST = "ops/test_element_types.py"
_RECORD = f"{_TEST}::test_an_operator_takes_what_1_8_5_takes"

ELEMENT_TYPES = (
    Difference(
        "an input of an element type that the operator has no kernel for",
        "is refused when the operator runs, or by some layers when they are called",
        "is refused when the layer is called or the operator appended, as a TypeError that names "
        "layer, argument, both types and the line",
        "the mistake is found where it is made",
        f"{_TEST}::test_a_refusal_names_the_layer_its_argument_and_the_line",
    ),
    Difference(
        "float16, bfloat16 and float64 on CPUs",
        "float16 has hardly any kernel there, and some operators have none for float64",
        "are taken wherever float32 is; halves together with other floats",
        "mixed precision trains without a GPU, and gradients are checked in double precision",
        _RECORD,
    ),
    Difference(
        "`layers.cast` and `astype` of int8 and int16, `layers.size` of any type, "
        "`layers.embedding` of int32 ids",
        "are refused when they run",
        "are computed",
        "nothing about the results is in doubt",
        f"{_TEST}::test_an_excuse_is_still_one",
    ),
    Difference(
        "float64 parameters with a learning rate that is a float32 variable",
        "are refused when the update runs",
        "are updated",
        "schedules compute in float32, whatever the parameters are",
        f"{_TEST}::test_parameters_of_double_precision_learn_at_a_rate_of_a_schedule",
    ),
)

"""What 1.8.5 refuses and bireme accepts."""

from .record import Difference

_VALUES = "layers/test_values.py::test_a_difference_is_the_recorded_one"
_PROGRAMS = "layers/test_programs.py::test_a_difference_is_the_recorded_one"

ARGUMENTS = (
    Difference(
        "a refused argument, shape, LoD or feed",
        "raises AssertionError, ValueError, TypeError, RuntimeError or EnforceNotMet, as it comes",
        "raises an error of `bireme.errors`, in other words, which is a ValueError where a "
        "value is refused and a TypeError where a type is; `core.EnforceNotMet` is the base "
        "of them all",
        "one error tree says where, what and what to do",
        "layers/test_arguments.py::test_a_transposed_vector_meets_no_vector_of_its_length",
    ),
    Difference(
        "`x[:, ::2]`, `x[::-2]`, `x[:, k::-1]`",
        "are refused, or end the process",
        "work as in NumPy",
        "the expression means one thing only",
        "layers/test_arguments.py::test_subscripts_may_count_down_from_a_variable",
    ),
    Difference(
        "`x[..., 0]`",
        "fails",
        "works as in NumPy",
        "the expression means one thing only",
        _VALUES,
        ("value:layers/getitem_neg", "program:layers/getitem_neg"),
    ),
    Difference(
        "`x[::2]`",
        "is refused",
        "works as in NumPy",
        "the expression means one thing only",
        _VALUES,
        ("value:layers/getitem_step", "program:layers/getitem_step"),
    ),
    Difference(
        "`layers.increment` of several elements",
        "is refused",
        "increments each",
        "the expression means one thing only",
        _VALUES,
        ("value:layers/increment", "program:layers/increment"),
    ),
    Difference(
        "`layers.py_func` with a builtin function",
        "is refused",
        "is called",
        "it is a function",
        _PROGRAMS,
        ("program:layers/py_func",),
    ),
)

"""Formulas of 1.8.5 that differ from their papers and are kept."""

from .record import Formula

_CURVES = "optimizer/test_recorded.py::test_losses_are_those_of_fluid"
_REASON = "training continues in the same way after a change from 1.8.5"

FORMULAS = (
    Formula(
        "`Adadelta`",
        "moves a parameter by the average of the updates before this one",
        "averages this update first and moves by the new average",
        f"{_REASON}; both converge",
        _CURVES,
    ),
    Formula(
        "`Ftrl(l2=...)`",
        "`l2` is the second penalty",
        "the operator gets `l1` for both penalties",
        f"{_REASON}, and servers of a mixed cluster must agree; "
        "`block.put(i, op.with_attrs(l2=...))` sets it",
        _CURVES,
    ),
    Formula(
        "`Lamb`",
        "corrects the moving averages for their beginning at zero",
        "uses them as they are",
        f"{_REASON}",
        _CURVES,
    ),
    Formula(
        "`Adam`, sparse gradients",
        "corrects the averages by the powers of this step",
        "corrects them by the powers of the next step",
        f"{_REASON}; the factor tends to 1",
        _CURVES,
    ),
    Formula(
        "`metrics.DetectionMAP(background_label=...)`",
        "leaves the background class out of the mean",
        "count every class that has objects",
        "a model measures what it measured with 1.8.5; no object bears the background label",
        "detection/test_map.py::test_a_class_whose_objects_are_all_missed_counts",
    ),
)

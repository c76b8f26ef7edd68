"""Kernels whose rows declare `out` compute in the buffer that they are given, to the same bits."""

import inspect

import numpy as np
import pytest

from bireme.ops.table import ROWS, Role

RNG = np.random.default_rng(5)
LENGTHS = (np.array([0, 3, 8]),)
LSTM = {
    "H0": None,
    "C0": None,
    "Hidden": RNG.normal(size=(8, 4)),
    "Cell": RNG.normal(size=(8, 4)),
    "BatchGate": RNG.normal(size=(8, 16)),
    "BatchCellPreAct": RNG.normal(size=(8, 4)),
    "dHidden": RNG.normal(size=(8, 4)),
    "dCell": None,
    "use_peepholes": False,
    "is_reverse": False,
    "gate_activation": "sigmoid",
    "cell_activation": "tanh",
    "candidate_activation": "tanh",
}


def drawn(*shape):
    return RNG.normal(size=shape).astype("float32")


def filters(rank, groups=1, transposed=False):
    """The arguments of a convolution's gradient: 3 samples of 4 channels, 6 filters."""
    wide, narrow = (3, 4, *[7] * rank), (3, 4 if groups == 4 else 6, *[5] * rank)
    kernel = (narrow[1], 4 // groups, *[3] * rank)
    given = {"Input": drawn(*wide), "dOutput": drawn(*narrow), "Filter": drawn(*kernel)}
    if transposed:
        given["Input"], given["dOutput"] = given["dOutput"], given["Input"]
    rest = {"strides": [1] * rank, "paddings": [0] * rank, "dilations": [1] * rank}
    return {**given, **rest, "groups": groups, "padding_algorithm": "EXPLICIT"}


X, Y = drawn(6, 5), drawn(5, 7)
BIAS = {"X": drawn(6, 5), "Y": drawn(5), "dOut": drawn(6, 5), "axis": -1}
IDS = {"W": drawn(9, 4), "Ids": np.array([[1], [3], [1]]), "dOut": drawn(3, 4)}
TABLE = {**IDS, "is_sparse": False, "padding_idx": -1}
PAIR = {"X": drawn(6, 5), "Y": drawn(6, 5), "axis": -1}
CASES = [
    ("mul_grad", {"X": X, "Y": Y, "dOut": drawn(6, 7), "x_num_col_dims": 1, "y_num_col_dims": 1}),
    (
        "mul_grad",
        {
            "X": drawn(6, 6),
            "Y": drawn(2, 3, 4),
            "dOut": drawn(6, 4),
            "x_num_col_dims": 1,
            "y_num_col_dims": 2,
        },
    ),
    ("matmul_grad", {"X": X, "Y": Y, "dOut": drawn(6, 7), "alpha": 2.0}),
    ("matmul_grad", {"X": drawn(2, 6, 5), "Y": drawn(2, 5, 7), "dOut": drawn(2, 6, 7)}),
    ("matmul_grad", {"X": drawn(2, 6, 5), "Y": Y, "dOut": drawn(2, 6, 7)}),
    ("elementwise_add_grad", BIAS),
    ("elementwise_sub_grad", BIAS),
    ("elementwise_add", PAIR),
    ("elementwise_mul", PAIR),
    ("elementwise_div", PAIR),
    ("sum", {"X": [drawn(6, 5), drawn(6, 5), drawn(6, 5)]}),
    ("sum", {"X": [drawn(6, 5)]}),
    ("scale", {"X": X, "scale": 2.0, "bias": 1.0, "bias_after_scale": True}),
    ("clip", {"X": X, "min": -0.5, "max": 0.5}),
    ("lookup_table_grad", TABLE),
    ("lookup_table_v2_grad", TABLE),
    ("conv2d_grad", filters(2)),
    ("conv2d_grad", filters(2, groups=2)),
    ("depthwise_conv2d_grad", filters(2, groups=4)),
    ("fused_relu_depthwise_conv2d_grad", filters(2, groups=4)),
    ("conv3d_grad", filters(3)),
    ("conv2d_transpose_grad", filters(2, transposed=True)),
    ("depthwise_conv2d_transpose_grad", filters(2, groups=4, transposed=True)),
    ("conv3d_transpose_grad", filters(3, transposed=True)),
    (
        "lstm_grad",
        {
            **{k: v.astype("float32") if hasattr(v, "astype") else v for k, v in LSTM.items()},
            "Input": drawn(8, 16),
            "Input_lod": LENGTHS,
            "Weight": drawn(4, 16),
            "Bias": drawn(1, 16),
        },
    ),
    (
        "sequence_conv_grad",
        {
            "X": drawn(8, 4),
            "X_lod": LENGTHS,
            "Filter": drawn(12, 5),
            "dOut": drawn(8, 5),
            "contextStart": -1,
            "contextLength": 3,
        },
    ),
]


def called(row, given, out):
    """What the kernel answers, by output slot; attributes that are not given have their default."""
    arguments = {}
    for name, role, source in row.parameters(row.kernel):
        default = row.default_of(source) if role is Role.ATTR else None
        special = {Role.XP: np, Role.OUT: out, Role.NEED: frozenset(row.returns)}
        arguments[name] = special[role] if role in special else given.get(name, default)
    answer = row.kernel(*arguments.values())  # as plans call it
    return dict(zip(row.returns, answer if len(row.returns) > 1 else (answer,), strict=True))


@pytest.mark.parametrize(("type_", "given"), CASES, ids=[case[0] for case in CASES])
def test_a_kernel_computes_in_its_buffers(type_, given) -> None:
    row = ROWS[type_]
    expected = called(row, given, None)
    buffers = [
        np.full_like(expected[slot], np.nan, order="C") if slot in row.out else None
        for slot in row.returns
    ]
    found = called(row, given, tuple(buffers) if len(buffers) > 1 else buffers[0])
    for slot, buffer in zip(row.returns, buffers, strict=True):
        if buffer is not None:
            np.testing.assert_array_equal(found[slot], expected[slot])
            assert found[slot].shape == expected[slot].shape
            assert np.shares_memory(found[slot], buffer)


def test_every_declared_kernel_is_tried_here() -> None:
    assert {type_ for type_, _ in CASES} == {type_ for type_, row in ROWS.items() if row.out}


def test_a_row_may_not_declare_what_its_kernel_cannot_do() -> None:
    for row in ROWS.values():
        if row.out:
            assert "out" in inspect.signature(row.kernel).parameters, row.type

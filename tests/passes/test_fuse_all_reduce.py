"""Buckets: counts and sizes as Fluid 1.8.5 makes them for ResNet-50."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.passes.fuse_all_reduce import Gradient, buckets, describe

MEGABYTE = 1 << 20


def resnet50(classes: int) -> list[Gradient]:
    """The gradients of ResNet-50, last layer first, with the names of the FleetX model."""
    shapes: list[tuple[str, tuple[int, ...]]] = []

    def conv(name: str, outs: int, ins: int, size: int) -> None:
        shapes.append((f"{name}_weights", (outs, ins, size, size)))
        norm = "bn_conv1" if name == "conv1" else f"bn{name[3:]}"
        shapes.extend([(f"{norm}_scale", (outs,)), (f"{norm}_offset", (outs,))])

    conv("conv1", 64, 3, 7)
    ins = 64
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for block in range(blocks):
            name = f"res{stage + 2}{'abcdef'[block]}"
            conv(f"{name}_branch2a", width, ins, 1)
            conv(f"{name}_branch2b", width, width, 3)
            conv(f"{name}_branch2c", 4 * width, width, 1)
            if block == 0:
                conv(f"{name}_branch1", 4 * width, ins, 1)
            ins = 4 * width
    shapes.extend([("fc_0.w_0", (ins, classes)), ("fc_0.b_0", (classes,))])
    return [Gradient(p, f"{p}@GRAD", "float32", 4 * prod(s)) for p, s in reversed(shapes)]


@pytest.mark.parametrize(
    ("memory", "count", "counts"),
    [
        (-1.0, 50, (160, 160, 160)),
        (0.0, 1, (160, 160, 160)),
        (32.0, 50, (5, 5, 5)),
        (16.0, 50, (6, 6, 7)),
        (32.0, 1, (3, 3, 3)),
        (16.0, -1, (6, 6, 6)),
        (32.0, 8, (18, 18, 18)),
        (16.0, 3, (41, 41, 41)),
    ],
)
def test_resnet50_has_as_many_all_reduces_as_fluid_makes(memory, count, counts):
    made = [buckets(resnet50(classes), memory, count) for classes in (10, 102, 1000)]
    assert tuple(map(len, made)) == counts
    assert all(sum(map(len, each)) == 161 for each in made)


@pytest.mark.parametrize(
    ("classes", "memory", "wanted"),
    [
        (
            10,
            32.0,
            [
                (20, 34.125, "res5b_branch2a_weights"),
                (33, 32.5703, "res4d_branch2c_weights"),
                (51, 19.4326, "res3c_branch2b_weights"),
                (51, 3.57373, "res2a_branch2b_weights"),
                (6, 0.05249, "conv1_weights"),
            ],
        ),
        (
            10,
            16.0,
            [
                (11, 17.1016, "res5c_branch2a_weights"),
                (9, 17.0234, "res5b_branch2a_weights"),
                (9, 21.0352, "res5a_branch2b_weights"),
                (36, 18.0488, "res4c_branch2b_weights"),
                (51, 14.2383, "res3b_branch2a_weights"),
                (45, 2.30688, "conv1_weights"),
            ],
        ),
    ],
)
def test_resnet50_buckets_hold_what_fluid_puts_there(classes, memory, wanted):
    made = buckets(resnet50(classes), memory, 50)
    assert [(len(b), b[-1].param) for b in made] == [(n, last) for n, _, last in wanted]
    sizes = [sum(g.bytes for g in b) / MEGABYTE for b in made]
    assert sizes == pytest.approx([size for _, size, _ in wanted], rel=2e-4)


def test_every_bucket_has_one_dtype():
    mixed = [
        Gradient("a.w", "a", "float32", 4),
        Gradient("a.b", "b", "float16", 2),
        Gradient("c.w", "c", "float32", 4),
    ]
    made = buckets(mixed, 1.0, 50)
    assert [[g.name for g in bucket] for bucket in made] == [["a", "c"], ["b"]]


def test_the_table_tells_count_and_size():
    text = describe(buckets(resnet50(10), 32.0, 50))
    assert text.splitlines()[:2] == [
        "161 gradients in 5 all-reduces",
        "  bucket 0: 20 gradients, 34.1250 MB, up to res5b_branch2a_weights",
    ]


gradients = st.lists(
    st.builds(
        Gradient,
        param=st.sampled_from(["a.w", "a.b", "b", "c.w", "d"]),
        name=st.uuids().map(str),
        dtype=st.sampled_from(["float32", "float16"]),
        bytes=st.integers(0, 3 * MEGABYTE),
    ),
    max_size=20,
)


@given(gradients, st.floats(-1, 4), st.integers(-1, 6))
def test_every_gradient_travels_exactly_once(given_gradients, memory, count):
    made = buckets(given_gradients, memory, count)
    assert sorted(g.name for b in made for g in b) == sorted(g.name for g in given_gradients)
    assert all(len({g.dtype for g in bucket}) == 1 for bucket in made)

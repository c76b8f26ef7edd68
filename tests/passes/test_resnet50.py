"""ResNet-50 as tutorials train it: how many all-reduces its program makes, and what is told."""

from collections.abc import Callable
from typing import Any

import pytest

import bireme as fluid
from bireme import flags
from bireme.ir import Program
from bireme.passes.data_parallel import data_parallel, plan_exchange
from bireme.passes.notes import Notes
from bireme.passes.pipeline import applied
from bireme.passes.strategies import BuildStrategy

layers = fluid.layers
MEGABYTE = 1 << 20
WORDS = (
    "Find all_reduce operators: 161. To make the speed faster, some all_reduce ops are fused "
    "during training, after fusion, the number of all_reduce ops is %d."
)
# Gradients and megabytes of each bucket for 10 classes, by megabytes and count of the flags.
BUCKETS = {
    (32.0, 50): [(20, 34.125), (33, 32.5703), (51, 19.4326), (51, 3.57373), (6, 0.05249)],
    (16.0, 50): [
        (11, 17.1016),
        (9, 17.0234),
        (9, 21.0352),
        (36, 18.0488),
        (51, 14.2383),
        (45, 2.30688),
    ],
}


def conv(x: Any, name: str, filters: int, size: int, stride: int, act: str | None = None) -> Any:
    norm = "bn_conv1" if name == "conv1" else f"bn{name[3:]}"
    made = layers.conv2d(
        x, filters, size, stride, (size - 1) // 2, bias_attr=False, param_attr=f"{name}_weights"
    )
    return layers.batch_norm(
        made,
        act=act,
        param_attr=f"{norm}_scale",
        bias_attr=f"{norm}_offset",
        moving_mean_name=f"{norm}_mean",
        moving_variance_name=f"{norm}_variance",
    )


def block(x: Any, name: str, width: int, stride: int) -> Any:
    made = conv(x, f"{name}_branch2a", width, 1, 1, "relu")
    made = conv(made, f"{name}_branch2b", width, 3, stride, "relu")
    made = conv(made, f"{name}_branch2c", 4 * width, 1, 1)
    if x.shape[1] != 4 * width:
        x = conv(x, f"{name}_branch1", 4 * width, 1, stride)
    return layers.elementwise_add(x, made, act="relu")


def build(classes: int) -> Program:
    """The program of one of two ranks."""
    main = Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, Program()):
        x = layers.data("image", [3, 224, 224])
        label = layers.data("label", [1], dtype="int64")
        made = layers.pool2d(conv(x, "conv1", 64, 7, 2, "relu"), 3, "max", 2, 1)
        for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
            for i in range(blocks):
                stride = 2 if i == 0 and stage else 1
                made = block(made, f"res{stage + 2}{'abcdef'[i]}", width, stride)
        pooled = layers.pool2d(made, pool_type="avg", global_pooling=True)
        guess = layers.fc(pooled, classes, act="softmax")
        loss = layers.mean(layers.cross_entropy(guess, label))
        decay = fluid.regularizer.L2Decay(1e-4)
        fluid.optimizer.Momentum(0.1, 0.9, regularization=decay).minimize(loss)
    main._trainers_endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    return main


@pytest.fixture(scope="module")
def program() -> Program:
    return build(10)


@pytest.fixture
def fuse() -> Callable[[float, int], None]:
    def change(memory: float, count: int) -> None:
        wanted = {"fuse_parameter_memory_size": memory, "fuse_parameter_groups_size": count}
        flags.set_flags(wanted)

    return change


def all_reduces(program: Program) -> int:
    return sum("allreduce" in op.type for op in program.global_block().ops)


@pytest.mark.parametrize(
    ("setting", "wanted"), [((32.0, 50), 5), ((16.0, 50), 6), (None, 160)], ids=str
)
def test_161_gradients_travel_in_few_all_reduces(program, fuse, caplog, setting, wanted):
    if setting is not None:
        fuse(*setting)
    assert all_reduces(data_parallel(program)) == wanted
    assert caplog.messages == [WORDS % wanted]


@pytest.mark.parametrize("setting", BUCKETS, ids=str)
def test_buckets_have_the_sizes_that_fluid_gives_them(program, fuse, setting):
    fuse(*setting)
    found = plan_exchange(program).dense
    assert [len(bucket) for bucket in found] == [count for count, _ in BUCKETS[setting]]
    sizes = [sum(gradient.bytes for gradient in bucket) / MEGABYTE for bucket in found]
    assert sizes == pytest.approx([size for _, size in BUCKETS[setting]], rel=2e-4)


def test_every_gradient_alone_is_161(program):
    class Alone:
        fuse_all_reduce_ops = False

    assert all_reduces(data_parallel(program, Notes(Alone()))) == 161


@pytest.mark.parametrize(("classes", "wanted"), [(10, 6), (102, 6), (1000, 7)])
def test_the_log_of_the_tutorial_on_fusion(classes, wanted, fuse, caplog):
    fuse(16.0, 50)
    chosen = BuildStrategy()
    for name in (
        "fuse_elewise_add_act_ops", "fuse_relu_depthwise_conv", "fuse_broadcast_ops",
        "fuse_all_optimizer_ops",
    ):  # fmt: skip
        setattr(chosen, name, True)
    made = applied(build(classes), chosen)
    assert caplog.messages == [
        "Currently, fuse_broadcast_ops only works under Reduce mode.",
        "---  detected 16 subgraphs",
        "---  detected 16 subgraphs",
        "Find momentum operators : 161, and 161 for dense gradients. To make the speed faster, "
        "those optimization are fused during training.",
        WORDS % wanted,
    ]
    assert made.report["fuse_all_reduce_op_pass"].remark == f"161 gradients in {wanted} all-reduces"


def test_33_batch_norms_are_followed_by_relu_and_16_by_a_sum(program):
    chosen = BuildStrategy()
    chosen.fuse_bn_act_ops = chosen.fuse_bn_add_act_ops = True
    report = applied(program, chosen).report
    assert report["fuse_bn_act_pass"].times == 66
    assert report["fuse_bn_add_act_pass"].times == 16

"""Operators and all-reduces fused, on a small residual network.

    bireme run --cpu -m paddle.distributed.launch --gpus=0,1 \\
        examples/tutorials/train_fleet_static_op_fusion.py
"""

import os

import numpy as np
import paddle
from paddle.distributed import fleet

paddle.enable_static()

image = paddle.static.data(name="x", shape=[None, 3, 16, 16], dtype="float32")
label = paddle.static.data(name="y", shape=[None, 1], dtype="int64")


def convolution(x, channels, act=None):
    y = paddle.static.nn.conv2d(x, channels, filter_size=3, padding=1, bias_attr=False)
    return paddle.static.nn.batch_norm(y, act=act)


hidden = convolution(image, 8, act="relu")
for _ in range(2):
    branch = convolution(convolution(hidden, 8, act="relu"), 8)
    hidden = paddle.nn.functional.relu(paddle.add(hidden, branch))
out = paddle.static.nn.fc(x=hidden, size=10)
avg_cost = paddle.nn.functional.cross_entropy(input=out, label=label)
acc_top1 = paddle.metric.accuracy(input=out, label=label, k=1)
acc_top5 = paddle.metric.accuracy(input=out, label=label, k=5)

build_strategy = paddle.static.BuildStrategy()
build_strategy.fuse_elewise_add_act_ops = True
build_strategy.fuse_bn_act_ops = True
build_strategy.fuse_relu_depthwise_conv = True
build_strategy.fuse_broadcast_ops = True
build_strategy.fuse_all_optimizer_ops = True

strategy = paddle.distributed.fleet.DistributedStrategy()
strategy.build_strategy = build_strategy
strategy.fuse_grad_size_in_MB = 16
strategy._fuse_grad_size_in_TFLOPS = 50
strategy.fuse_all_reduce_ops = True

fleet.init(is_collective=True, strategy=strategy)
optimizer = paddle.optimizer.Momentum(
    learning_rate=0.1, momentum=0.9, weight_decay=paddle.regularizer.L2Decay(1e-4)
)
fleet.distributed_optimizer(optimizer).minimize(avg_cost)

place = paddle.CUDAPlace(int(os.environ.get("FLAGS_selected_gpus", 0)))
exe = paddle.static.Executor(place)
exe.run(paddle.static.default_startup_program())

random = np.random.RandomState(fleet.worker_index())
for step in range(6):
    feed = {
        "x": random.standard_normal((32, 3, 16, 16)).astype("float32"),
        "y": random.randint(0, 10, (32, 1)).astype("int64"),
    }
    loss, acc1, acc5 = exe.run(
        paddle.static.default_main_program(),
        feed=feed,
        fetch_list=[avg_cost.name, acc_top1.name, acc_top5.name],
    )
    if step % 5 == 0:
        values = (0, step, loss.item(), acc1.item(), acc5.item())
        print("[Epoch %d, batch %d] loss: %.5f, acc1: %.5f, acc5: %.5f" % values)

"""ResNet-50 with fused operators and fused all-reduces.

    bireme run --cpu -m paddle.distributed.launch --gpus=0,1 \\
        examples/resnet/train_fleet_static_op_fusion.py [--folder IMAGES]

Without a folder it learns the digits that ship with the examples, magnified.
"""

import paddle
from paddle.distributed import fleet
from training import arguments, train

paddle.enable_static()
fleet.init(is_collective=True)

# computation
build_strategy = paddle.static.BuildStrategy()
build_strategy.fuse_elewise_add_act_ops = True
build_strategy.fuse_bn_act_ops = True
build_strategy.fuse_relu_depthwise_conv = True
build_strategy.fuse_broadcast_ops = True
build_strategy.fuse_all_optimizer_ops = True

strategy = fleet.DistributedStrategy()
strategy.build_strategy = build_strategy

# communication
strategy.fuse_grad_size_in_MB = 16
strategy._fuse_grad_size_in_TFLOPS = 50.0
strategy.fuse_all_reduce_ops = True

train(strategy, arguments())

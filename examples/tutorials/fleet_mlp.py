"""The single-machine program with Fleet's four changes: import, strategy and role, optimizer, save.

    bireme run --cpu -m paddle.distributed.launch --selected_gpus=0,1 --log_dir mylog \\
        examples/tutorials/fleet_mlp.py
"""

import os
import sys

import paddle.fluid as fluid
from mlp import batch, inputs, mlp
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

cost = mlp(*inputs())
optimizer = fluid.optimizer.SGD(learning_rate=0.2)

role = role_maker.PaddleCloudRoleMaker(is_collective=True)
fleet.init(role)
optimizer = fleet.distributed_optimizer(optimizer, strategy=DistributedStrategy())
optimizer.minimize(cost, fluid.default_startup_program())
train_prog = fleet.main_program

place = fluid.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0")))
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())

for step in range(40):
    feed = batch(step, fleet.worker_index())
    (value,) = exe.run(program=train_prog, feed=feed, fetch_list=[cost.name])
    print("step%d cost=%f" % (step, value.item()))

if len(sys.argv) > 1 and fleet.is_first_worker():
    fleet.save_persistables(exe, sys.argv[1])

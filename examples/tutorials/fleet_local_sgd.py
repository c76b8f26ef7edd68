"""LocalSGD: after some steps together, trainers meet only in every fourth step.

    bireme run --cpu -m paddle.distributed.launch --selected_gpus=0,1 --log_dir mylog \\
        examples/tutorials/fleet_local_sgd.py
"""

import os

import paddle.fluid as fluid
from mlp import batch, inputs, mlp
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

cost = mlp(*inputs())
fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))

strategy = DistributedStrategy()
strategy.use_local_sgd = True
strategy.local_sgd_is_warm_steps = 8
strategy.local_sgd_steps = 4
optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(learning_rate=0.2), strategy=strategy)
optimizer.minimize(cost, fluid.default_startup_program())

exe = fluid.Executor(fluid.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0"))))
exe.run(fluid.default_startup_program())

for step in range(40):
    feed = batch(step, fleet.worker_index())
    (value,) = exe.run(program=fleet.main_program, feed=feed, fetch_list=[cost.name])
    print("step%d cost=%f" % (step, value.item()))

"""The Fleet program with a tuned strategy: communicators, threads, dropped scopes, fused
all-reduce, and fetches in every second step only.

    bireme run --cpu -m paddle.distributed.launch --selected_gpus=0,1 --log_dir mylog \\
        examples/tutorials/fleet_tuned.py
"""

import os

import paddle.fluid as fluid
from mlp import batch, inputs, mlp
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

FETCH_FREQUENCY = 2

cost = mlp(*inputs())
fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))

dist_strategy = DistributedStrategy()
dist_strategy.nccl_comm_num = 2  # for several hosts; on one it is set back to 1
exec_strategy = fluid.ExecutionStrategy()
exec_strategy.num_threads = 3
exec_strategy.num_iteration_per_drop_scope = 30
dist_strategy.exec_strategy = exec_strategy
dist_strategy.fuse_all_reduce_ops = True

optimizer = fluid.optimizer.SGD(learning_rate=0.2)
optimizer = fleet.distributed_optimizer(optimizer, strategy=dist_strategy)
optimizer.minimize(cost, fluid.default_startup_program())

exe = fluid.Executor(fluid.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0"))))
exe.run(fluid.default_startup_program())

for step in range(40):
    feed = batch(step, fleet.worker_index())
    if step % FETCH_FREQUENCY == 0:
        (value,) = exe.run(program=fleet.main_program, feed=feed, fetch_list=[cost.name])
        print("step%d cost=%f" % (step, value.item()))
    else:
        exe.run(program=fleet.main_program, feed=feed)

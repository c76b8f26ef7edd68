"""Hierarchical all-reduce: first inside a host, then between hosts. Two hosts of four devices:

    bireme run --cpu -m paddle.distributed.launch --cluster_node_ips=10.0.0.1,10.0.0.2 \\
        --node_ip=10.0.0.1 --started_port=6170 --selected_gpus=0,1,2,3 \\
        examples/tutorials/train_fleet_static_communication_topology.py

and the same with its own --node_ip on the second. On one host the switch does nothing:

    fleetrun --cpu --gpus=0,1,2,3,4,5,6,7 \\
        examples/tutorials/train_fleet_static_communication_topology.py
"""

import os

import paddle
import paddle.fluid as fluid
from mlp import batch, inputs, mlp
from paddle.distributed import fleet

paddle.enable_static()
cost = mlp(*inputs())
fleet.init(is_collective=True)

dist_strategy = fleet.DistributedStrategy()
dist_strategy.use_hierarchical_allreduce = True
dist_strategy.hierarchical_allreduce_inter_nranks = max(1, fleet.worker_num() // 2)

optimizer = paddle.optimizer.Momentum(learning_rate=0.05, momentum=0.9)
fleet.distributed_optimizer(optimizer, dist_strategy).minimize(cost)

exe = paddle.static.Executor(paddle.CUDAPlace(int(os.environ.get("FLAGS_selected_gpus", 0))))
exe.run(paddle.static.default_startup_program())
for step in range(10):
    feed = batch(step, fleet.worker_index())
    (loss,) = exe.run(fluid.default_main_program(), feed=feed, fetch_list=[cost.name])
    if step % 5 == 0:
        print("[Epoch %d, batch %d] loss: %.5f" % (0, step, loss.item()))
print("hierarchical: %s" % fluid.default_main_program()._use_hierarchical_allreduce)

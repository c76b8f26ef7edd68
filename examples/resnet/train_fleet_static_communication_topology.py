"""ResNet-50 with hierarchical all-reduce: first inside a host, then between hosts. Two hosts of
four devices, here and with its own --node_ip on the second:

    bireme run --cpu -m paddle.distributed.launch --cluster_node_ips=10.0.0.1,10.0.0.2 \\
        --node_ip=10.0.0.1 --started_port=6170 --selected_gpus=0,1,2,3 \\
        examples/resnet/train_fleet_static_communication_topology.py [--folder IMAGES]

On one host the switch does nothing, and says so:

    fleetrun --cpu --gpus=0,1 examples/resnet/train_fleet_static_communication_topology.py
"""

import paddle
from paddle.distributed import fleet
from training import arguments, train

paddle.enable_static()
fleet.init(is_collective=True)

dist_strategy = fleet.DistributedStrategy()
dist_strategy.use_hierarchical_allreduce = True
dist_strategy.hierarchical_allreduce_inter_nranks = max(1, fleet.worker_num() // 2)

train(dist_strategy, arguments())

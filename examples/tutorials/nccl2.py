"""DistributeTranspiler without servers: every trainer averages gradients with the others.

bireme launch --mode nccl2 --trainers 2 examples/tutorials/nccl2.py
"""

import os

import paddle.fluid as fluid
from mlp import batch, inputs, mlp

trainer_id = int(os.environ["PADDLE_TRAINER_ID"])
gpu = os.environ.get("FLAGS_selected_gpus")
place = fluid.CUDAPlace(int(gpu)) if gpu else fluid.CPUPlace()

loss = mlp(*inputs())
fluid.optimizer.SGD(learning_rate=0.2).minimize(loss)

config = fluid.DistributeTranspilerConfig()
config.mode = "nccl2"
t = fluid.DistributeTranspiler(config=config)
t.transpile(
    trainer_id,
    program=fluid.default_main_program(),
    startup_program=fluid.default_startup_program(),
    trainers=os.environ["PADDLE_TRAINER_ENDPOINTS"],
    current_endpoint=os.environ["PADDLE_CURRENT_ENDPOINT"],
)

exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
for step in range(40):
    (cost,) = exe.run(feed=batch(step, trainer_id), fetch_list=[loss.name])
    print("step%d cost=%f" % (step, cost.item()))

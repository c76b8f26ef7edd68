"""DistributeTranspiler with parameter servers; one script for all roles.

bireme launch --servers 2 --trainers 2 examples/tutorials/pserver.py
"""

import os

import paddle.fluid as fluid
from mlp import batch, inputs, mlp

role = os.environ["TRAINING_ROLE"]
trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", 0))

loss = mlp(*inputs())
fluid.optimizer.SGD(learning_rate=0.2).minimize(loss)

config = fluid.DistributeTranspilerConfig()
config.slice_var_up = False
t = fluid.DistributeTranspiler(config=config)
t.transpile(
    trainer_id,
    program=fluid.default_main_program(),
    pservers=os.environ["PADDLE_PSERVERS_IP_PORT_LIST"],
    trainers=int(os.environ["PADDLE_TRAINERS_NUM"]),
    sync_mode=True,
)

exe = fluid.Executor(fluid.CPUPlace())
if role == "PSERVER":
    endpoint = os.environ["PADDLE_CURRENT_ENDPOINT"]
    program = t.get_pserver_program(endpoint)
    exe.run(t.get_startup_program(endpoint, program))
    exe.run(program)
else:
    exe.run(fluid.default_startup_program())
    program = t.get_trainer_program()
    for step in range(40):
        (cost,) = exe.run(program, feed=batch(step, trainer_id), fetch_list=[loss.name])
        print("step%d cost=%f" % (step, cost.item()))
    exe.close()

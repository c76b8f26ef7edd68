"""The same job for a real Fluid and for bireme: a small sparse and dense model with constant
initial values.

    python fluid_job.py MODULE ROLE ENDPOINTS TRAINERS MODE OUT [FOLDER]

MODULE is paddle.fluid or bireme; written for Python 3.7 and later, because Fluid needs an old one.
With FOLDER trainer 0 asks the servers to save the table there, and saves all persistables itself.
"""

import importlib
import json
import sys
import time

import numpy as np

module, role, endpoints, trainers, mode, out = sys.argv[1:7]
fluid = importlib.import_module(module)
folder = sys.argv[7] if len(sys.argv) > 7 else ""
COMMUNICATES = mode == "communicator-async"
STEPS = 150 if COMMUNICATES else 8


def constant(value):
    return fluid.ParamAttr(initializer=fluid.initializer.Constant(value))


def model():
    x = fluid.layers.data("x", shape=[6], dtype="float32")
    y = fluid.layers.data("y", shape=[1], dtype="float32")
    parts = [x]
    if "sparse" in mode:
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        table = constant(0.01)
        table.name = "table"
        parts.append(fluid.layers.embedding(ids, size=[40, 4], is_sparse=True, param_attr=table))
    hidden = fluid.layers.concat(parts, axis=1) if len(parts) > 1 else x
    wide = "wide" in mode  # a weight that is cut into slices
    size, last = (4000, 1e-4) if wide else (3, 0.2)
    hidden = fluid.layers.fc(hidden, size=size, act="tanh", param_attr=constant(0.1))
    guess = fluid.layers.fc(hidden, size=1, param_attr=constant(last))
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    rate = 1e-4 if wide else 0.05
    if "decay" in mode:
        rate = fluid.layers.exponential_decay(0.05, 3, 0.5)
    optimizer = {
        "momentum": lambda: fluid.optimizer.Momentum(rate, 0.9),
        "adam": lambda: fluid.optimizer.Adam(rate),
        "adagrad": lambda: fluid.optimizer.Adagrad(rate),
        "rmsprop": lambda: fluid.optimizer.RMSProp(rate),
    }.get(mode.rpartition("-")[2], lambda: fluid.optimizer.SGD(rate))()
    optimizer.minimize(loss)
    return loss


def batch(step, trainer):
    random = np.random.RandomState(100 * step + trainer)
    x = random.standard_normal((8, 6)).astype("float32")
    feed = {"x": x, "y": x.sum(axis=1, keepdims=True) + 1}
    if "sparse" in mode:
        feed["ids"] = random.randint(0, 40, (8, 1)).astype("int64")
    return feed


def communicating(program):
    """Fluid's threads that send and receive beside the steps, started."""
    names = importlib.import_module(module + ".communicator")
    modes = importlib.import_module(module + ".transpiler.distribute_transpiler")
    settings = {
        "communicator_max_merge_var_num": "4",
        "communicator_send_queue_size": "4",
        "communicator_independent_recv_thread": "1",
        "communicator_min_send_grad_num_before_recv": "4",
        "communicator_thread_pool_size": "2",
        "communicator_send_wait_times": "5",
        "communicator_is_sgd_optimizer": "1",
        "communicator_fake_rpc": "0",
    }
    found = names.Communicator(program, modes.DistributedMode.ASYNC, {}, settings)
    found.start()
    return found


def save(exe, program):
    """By the servers, and by this trainer."""
    asking = fluid.Program()
    attrs = {"epmap": endpoints.split(","), "dir": folder + "/notified", "lookup_table": "table"}
    asking.global_block().append_op(type="checkpoint_notify", inputs={}, outputs={}, attrs=attrs)
    exe.run(asking)
    fluid.io.save_persistables(exe, folder + "/saved", program)


def main():
    loss = model()
    trainer = int(role) if role.isdigit() else 0
    config = fluid.DistributeTranspilerConfig()
    sync = "async" not in mode
    if not sync:
        config.sync_mode = False
    if COMMUNICATES:
        config.runtime_split_send_recv = True
    transpiler = fluid.DistributeTranspiler(config=config)
    transpiler.transpile(trainer, pservers=endpoints, trainers=int(trainers), sync_mode=sync)
    exe = fluid.Executor(fluid.CPUPlace())
    if not role.isdigit():
        program, startup = transpiler.get_pserver_programs(role)
        exe.run(startup)
        exe.run(program)
        return
    program = transpiler.get_trainer_program()
    exe.run(fluid.default_startup_program())
    communicator = communicating(program) if COMMUNICATES else None
    losses = []
    for step in range(STEPS):
        (found,) = exe.run(program, feed=batch(step, trainer), fetch_list=[loss])
        losses.append(float(np.asarray(found).reshape(-1)[0]))
        if communicator is not None:
            time.sleep(0.01)  # a step of a larger model
    if communicator is not None:
        communicator.stop()
    if folder and trainer == 0:
        save(exe, program)
    with open(out, "w") as file:
        json.dump(losses, file)
    names = [p.name for p in fluid.default_main_program().all_parameters()]
    scope = fluid.global_scope()
    values = {n: np.array(scope.find_var(n).get_tensor()) for n in names}
    np.savez(out + ".npz", **values)
    exe.close()


main()

"""Half servers, half workers, under mpiexec; run by a test, never collected."""

import sys

import numpy as np

import bireme as fluid
from bireme.fleet.api.parameter_server import StrategyFactory, fleet
from bireme.fleet.api.role_makers import MPISymetricRoleMaker
from tests.fleet.api import server_job

role = MPISymetricRoleMaker()
fleet.init(role)
loss = server_job.model()
strategy = StrategyFactory.create_sync_strategy()
fleet.distributed_optimizer(fluid.optimizer.SGD(0.01), strategy).minimize(loss)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    for step in range(3):
        feed = server_job.batch(step, fleet.worker_index())
        exe.run(fleet.main_program, feed=feed, fetch_list=[loss.name])
    total = np.zeros(1)
    fleet.all_reduce_worker(np.array([fleet.worker_index() + 1.0]), total)
    sys.stdout.write(f"worker {fleet.worker_index()} of {fleet.worker_num()}: {total[0]:g}\n")
    fleet.stop_worker()
role.barrier_all()

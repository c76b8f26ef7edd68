"""Fleet of Paddle 2.x: its strategy, what it means for the optimizer, and its names."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import BiremeError, ConfigError
from bireme.fleet.api import v2, v2_functions
from bireme.fleet.api.collective import Collective
from bireme.fleet.api.parameter_server import DistributedTranspiler
from bireme.fleet.api.role_makers import Role, UserDefinedCollectiveRoleMaker, UserDefinedRoleMaker
from bireme.fleet.api.v2_strategy import CONFIGS, SCALARS, DistributedStrategy
from bireme.fleet.api.v2_wrapping import servers_of, wrapped
from bireme.fleet.scripts import v2_names
from tests.fleet.api import rank_job

ONE_HOST = ["127.0.0.1:7000", "127.0.0.1:7001"]
FLAGS = ["FLAGS_fuse_parameter_memory_size", "FLAGS_fuse_parameter_groups_size",
         "FLAGS_sync_nccl_allreduce", "FLAGS_conv_workspace_size_limit",
         "FLAGS_cudnn_exhaustive_search", "FLAGS_cudnn_batchnorm_spatial_persistent",
         "FLAGS_rpc_send_thread_num", "FLAGS_rpc_get_thread_num",
         "FLAGS_rpc_prefetch_thread_num"]  # fmt: skip


def minimized(
    strategy: DistributedStrategy, optimizer: Any = None, endpoints: list[str] | None = None
) -> Any:
    fleet = v2.Fleet()
    fleet.init(UserDefinedCollectiveRoleMaker(0, endpoints or ONE_HOST), strategy=strategy)
    loss = rank_job.model(0)
    fleet.distributed_optimizer(optimizer or fluid.optimizer.SGD(0.1)).minimize(loss)
    return fleet


def types() -> list[str]:
    return [op.type for op in fluid.default_main_program().global_block().ops]


# -- the strategy ----------------------------------------------------------------------------
def test_fields_have_the_defaults_of_2_x() -> None:
    strategy = DistributedStrategy()
    assert (strategy.fuse_grad_size_in_MB, strategy._fuse_grad_size_in_TFLOPS) == (32, 50.0)
    assert (strategy.nccl_comm_num, strategy.hierarchical_allreduce_inter_nranks) == (1, 1)
    assert strategy.localsgd_configs == {"k_steps": 1, "begin_step": 1}
    assert strategy.execution_strategy.num_threads == 1
    assert strategy.execution_strategy.num_iteration_per_drop_scope == 10


def test_a_value_of_a_wrong_type_warns_and_changes_nothing() -> None:
    strategy = DistributedStrategy()
    with pytest.warns(UserWarning, match="_fuse_grad_size_in_TFLOPS should have value of float"):
        strategy._fuse_grad_size_in_TFLOPS = 50
    with pytest.warns(UserWarning, match="fuse_grad_size_in_MB should have value of int type"):
        strategy.fuse_grad_size_in_MB = 16.0
    with pytest.warns(UserWarning, match="amp should have value of bool type"):
        strategy.amp = 1
    values = (strategy._fuse_grad_size_in_TFLOPS, strategy.fuse_grad_size_in_MB, strategy.amp)
    assert values == (50.0, 32, False)


def test_unknown_fields_are_refused_with_the_nearest_name() -> None:
    strategy = DistributedStrategy()
    with pytest.raises(TypeError, match="fuse_grad_size_in_Mb is not a attribute") as found:
        strategy.fuse_grad_size_in_Mb = 16
    assert "did you mean fuse_grad_size_in_MB?" in str(found.value)
    with pytest.raises(AttributeError, match="did you mean localsgd"):
        _ = strategy.local_sgd
    with pytest.raises(ConfigError, match="key:k_step not in localsgd_configs") as wrong:
        strategy.localsgd_configs = {"k_step": 2}
    assert "did you mean k_steps?" in str(wrong.value)
    with pytest.raises(TypeError, match="build_strategy = 3"):
        strategy.build_strategy = 3


def test_one_strategy_does_not_change_another() -> None:
    DistributedStrategy().amp_configs["init_loss_scaling"] = 2.0
    DistributedStrategy().build_strategy.fuse_bn_act_ops = True
    assert DistributedStrategy().amp_configs == CONFIGS["amp_configs"]
    assert not DistributedStrategy().build_strategy.fuse_bn_act_ops
    assert DistributedStrategy().nccl_comm_num == SCALARS["nccl_comm_num"]


def test_the_knobs_of_fusion_become_flags() -> None:
    strategy = DistributedStrategy()
    strategy.fuse_grad_size_in_MB = 16
    minimized(strategy)
    assert fluid.get_flags(FLAGS[0]) == {FLAGS[0]: 16.0}
    assert fluid.get_flags(FLAGS[1]) == {FLAGS[1]: 50}


# -- what it means ---------------------------------------------------------------------------
def test_the_default_program_carries_what_was_compiled_and_its_clone_does_not() -> None:
    strategy = DistributedStrategy()
    strategy.build_strategy.fuse_elewise_add_act_ops = True
    fleet = minimized(strategy)
    program = fluid.default_main_program()
    assert program._graph is fleet.main_program
    assert program._trainers_endpoints == ONE_HOST
    assert program._graph.program is program
    assert program.clone(for_test=True)._graph.program is program  # so it is not the clone's


def test_a_program_alone_runs_by_itself() -> None:
    fleet = minimized(DistributedStrategy(), endpoints=ONE_HOST[:1])
    assert (fleet.worker_num(), fleet.node_num(), fleet.local_rank()) == (1, 1, 0)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = rank_job.batch(0, 0)
    found = [exe.run(feed=feed, fetch_list=["mean_0.tmp_0"])[0].item() for _ in range(20)]
    assert found[-1] < found[0]


def test_threads_are_raised_and_never_lowered() -> None:
    strategy = DistributedStrategy()
    strategy.nccl_comm_num = 2  # stays, although all workers are on one host
    strategy.execution_strategy.num_threads = 7
    fleet = minimized(strategy)
    assert strategy.execution_strategy.num_threads == 7
    (met,) = [op for op in fleet.startup_program.global_block().ops if op.type == "gen_nccl_id"]
    assert met.attrs["nccl_comm_num"] == 2


def test_hierarchical_reduction_needs_several_hosts() -> None:
    strategy = DistributedStrategy()
    strategy.use_hierarchical_allreduce = True
    strategy.hierarchical_allreduce_inter_nranks = 8
    with pytest.warns(UserWarning, match="use_hierarchical_allreduce = False"):
        minimized(strategy)
    assert not fluid.default_main_program()._use_hierarchical_allreduce


@pytest.mark.parametrize("name", ["localsgd", "adaptive_localsgd"])
def test_local_sgd_averages_parameters(name: str) -> None:
    strategy = DistributedStrategy()
    setattr(strategy, name, True)
    fleet = minimized(strategy, fluid.optimizer.Momentum(0.1, 0.9))
    assert isinstance(fleet.main_program, fluid.Program)
    assert any("SNAPSHOT" in name for name in fleet.main_program.global_block().vars)


def test_local_sgd_with_adam_is_not_applied_and_says_so() -> None:
    strategy = DistributedStrategy()
    strategy.localsgd = True
    with pytest.warns(UserWarning, match="localsgd does not apply to AdamOptimizer"):
        assert isinstance(minimized(strategy, fluid.optimizer.Adam()).main_program,
                          fluid.CompiledProgram)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "optimizer", "kind"),
    [
        ("lars", fluid.optimizer.Momentum(0.1, 0.9), "LarsMomentumOptimizer"),
        ("lamb", fluid.optimizer.Adam(0.1), "LambOptimizer"),
        ("dgc", fluid.optimizer.Momentum(0.1, 0.9), "DGCMomentumOptimizer"),
        ("gradient_merge", fluid.optimizer.SGD(0.1), "GradientMergeOptimizer"),
        ("amp", fluid.optimizer.SGD(0.1), "OptimizerWithMixedPrecision"),
    ],
)
def test_strategies_exchange_or_wrap_the_optimizer(field: str, optimizer: Any, kind: str) -> None:
    strategy = DistributedStrategy()
    assert wrapped(optimizer, strategy) is optimizer
    setattr(strategy, field, True)
    assert type(wrapped(optimizer, strategy)).__name__ == kind
    minimized(strategy, optimizer)
    assert fluid.default_main_program()._trainers_endpoints == ONE_HOST


def test_what_has_no_counterpart_is_refused() -> None:
    strategy = DistributedStrategy()
    strategy.sharding = True
    with pytest.raises(BiremeError, match=r"DistributedStrategy\.sharding"):
        wrapped(fluid.optimizer.SGD(0.1), strategy)
    strategy = DistributedStrategy()
    strategy.recompute = True
    with pytest.raises(ValueError, match="recompute needs checkpoints"):
        wrapped(fluid.optimizer.SGD(0.1), strategy)


@pytest.mark.parametrize(
    ("a_sync", "k_steps", "kind"),
    [(False, None, "Sync"), (True, None, "Async"), (True, 0, "Async"), (True, 400, "Geo")],
)
def test_a_sync_chooses_the_strategy_of_servers(a_sync: bool, k_steps: Any, kind: str) -> None:
    strategy = DistributedStrategy()
    strategy.a_sync = a_sync
    if k_steps is not None:
        strategy.a_sync_configs = {"k_steps": k_steps}
    assert type(servers_of(strategy)).__name__ == f"{kind}Strategy"


def test_a_role_with_servers_splits_the_program() -> None:
    fleet = v2.Fleet()
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 2, ["127.0.0.1:6174"]))
    strategy = DistributedStrategy()
    strategy.a_sync = False
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(rank_job.model(0))
    assert fleet.is_worker()
    assert "send_barrier" in types()


def test_hasattr_answers_before_init() -> None:
    for fleet in (v2.Fleet(), Collective(), DistributedTranspiler()):
        assert hasattr(fleet, "worker_num")
        for name in ("nonsense", "_nonsense", "util", "role_maker"):
            assert not hasattr(fleet, name)
    with pytest.raises(ValueError, match="does not know the role"):
        v2.Fleet().worker_num()


def test_fleet_asks_for_init_and_for_its_own_strategy() -> None:
    with pytest.raises(ValueError, match="does not know the role"):
        v2.Fleet().distributed_optimizer(fluid.optimizer.SGD(0.1))
    with pytest.raises(ValueError, match="subclass of RoleMakerBase"):
        v2.Fleet().init(3)
    fleet = v2.Fleet()
    fleet.init(UserDefinedCollectiveRoleMaker(0, ONE_HOST))
    with pytest.raises(TypeError, match="is not a DistributedStrategy"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), fluid.BuildStrategy())


# -- names -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", list(v2_names.NAMES))
def test_every_name_of_2_x_is_here(name: str) -> None:
    module, _, attribute = v2_names.NAMES[name].partition(":")
    assert getattr(import_module(module), attribute) is not None


def test_cross_entropy_is_that_of_the_softmax_averaged() -> None:
    x = fluid.data("x", [None, 3], "float32")
    y = fluid.data("y", [None, 1], "int64")
    loss = v2_functions.cross_entropy(x, y)
    scores = np.array([[1, 2, 3], [1, 1, 1]], "float32")
    (found,) = fluid.Executor().run(feed={"x": scores, "y": [[2], [0]]}, fetch_list=[loss])
    odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert float(found) == pytest.approx(float(-np.log(odds[[0, 1], [2, 0]]).mean()), rel=1e-5)
    with pytest.raises(BiremeError, match="reduction 'max'"):
        v2_functions.cross_entropy(x, y, reduction="max")


def test_a_number_as_weight_decay_is_the_coefficient_of_l2() -> None:
    made = v2_functions.Momentum(0.1, 0.9, weight_decay=1e-4)
    assert str(made.regularization).startswith("L2Decay, regularization_coeff=0.0001")
    assert v2_functions.Adam(0.1, 0.8).regularization is None


SCRIPT = """
import os
import numpy as np
import paddle
from paddle.distributed import fleet
paddle.enable_static()
x = paddle.static.data(name="x", shape=[None, 4], dtype="float32")
y = paddle.static.data(name="y", shape=[None, 1], dtype="int64")
loss = paddle.nn.functional.cross_entropy(paddle.static.nn.fc(x, 10), y)
strategy = paddle.distributed.fleet.DistributedStrategy()
strategy.build_strategy = paddle.static.BuildStrategy()
fleet.init(is_collective=True, strategy=strategy)
optimizer = paddle.optimizer.Momentum(0.1, 0.9, weight_decay=paddle.regularizer.L2Decay(1e-4))
fleet.distributed_optimizer(optimizer).minimize(loss)
exe = paddle.static.Executor(paddle.CUDAPlace(int(os.environ.get("FLAGS_selected_gpus", 0))))
exe.run(paddle.static.default_startup_program())
feed = {"x": np.ones((2, 4), "float32"), "y": np.array([[1], [2]])}
for _ in range(3):
    (found,) = exe.run(paddle.static.default_main_program(), feed=feed, fetch_list=[loss.name])
print("loss %.3f rank %d of %d" % (found, fleet.worker_index(), fleet.worker_num()))
fleet.barrier_worker()
print(fleet.all_reduce(fleet.worker_index() + 1.0))
"""


@pytest.mark.wire
@pytest.mark.slow
def test_a_script_of_2_x_trains_on_two_processes_and_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = [sys.executable, "-m", "bireme", "run", "--cpu"]
    for words, size, total in (
        (["-m", "paddle.distributed.launch", "--gpus=0,1"], 2, 3.0), ([], 1, 1.0),
    ):  # fmt: skip
        ran = subprocess.run(
            [*run, *words, "train.py"], cwd=tmp_path, capture_output=True, text=True, env=os.environ
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"rank 0 of {size}" in ran.stdout
        assert ran.stdout.splitlines()[-1] == str(total)

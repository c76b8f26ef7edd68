"""Fleet without servers: what a strategy becomes, checkpoints, and jobs of two ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.errors import BiremeError, ConfigError, FormatError, ProgramError
from bireme.fleet.api.collective import BDFS, Collective, DistributedStrategy, LocalFS, TrainStatus
from bireme.fleet.api.role_makers import UserDefinedCollectiveRoleMaker
from tests.fleet.api import rank_job

ONE_HOST = ["127.0.0.1:7000", "127.0.0.1:7001"]
TWO_HOSTS = ["10.0.0.1:7000", "10.0.0.1:7001", "10.0.0.2:7000", "10.0.0.2:7001"]


def compiled(endpoints: list[str], strategy: DistributedStrategy, optimizer: Any = None) -> Any:
    """Fleet after `minimize` on rank 0 of some endpoints."""
    fleet = Collective()
    fleet.init(UserDefinedCollectiveRoleMaker(0, endpoints))
    loss = rank_job.model(0)
    fleet.distributed_optimizer(optimizer or fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    return fleet


# -- strategies ------------------------------------------------------------------------------
def test_on_one_host_communicators_and_threads_are_set_back() -> None:
    strategy = DistributedStrategy()
    strategy.nccl_comm_num, strategy.use_hierarchical_allreduce = 2, True
    strategy.exec_strategy.num_threads = 3
    with (
        pytest.warns(UserWarning, match="nccl_comm_num = 1"),
        pytest.warns(UserWarning, match="use_hierarchical_allreduce = False"),
    ):
        fleet = compiled(ONE_HOST, strategy)
    assert (strategy.nccl_comm_num, strategy.use_hierarchical_allreduce) == (1, False)
    assert strategy.exec_strategy.num_threads == 2
    assert (strategy.num_trainers, strategy.trainers_endpoints) == (2, ONE_HOST)
    assert isinstance(fleet.main_program, fluid.CompiledProgram)


def test_on_two_hosts_they_stay_and_give_five_threads() -> None:
    strategy = DistributedStrategy()
    strategy.nccl_comm_num, strategy.use_hierarchical_allreduce = 2, True
    strategy.hierarchical_allreduce_inter_nranks = 2
    with pytest.warns(UserWarning, match="5 threads wait"):
        fleet = compiled(TWO_HOSTS, strategy)
    (met,) = [op for op in fleet.startup_program.global_block().ops if op.type == "gen_nccl_id"]
    assert met.attrs["nccl_comm_num"] == 2
    assert met.attrs["use_hierarchical_allreduce"]
    assert met.attrs["hierarchical_allreduce_inter_nranks"] == 2


def test_local_sgd_rewrites_the_program_and_keeps_the_origin() -> None:
    strategy = DistributedStrategy()
    strategy.use_local_sgd = True
    fleet = compiled(ONE_HOST, strategy)
    assert "c_allreduce_sum" in [op.type for op in fleet.main_program.global_block().ops]
    assert "c_allreduce_sum" not in [op.type for op in fleet._origin_program.global_block().ops]


def test_one_rank_alone_trains_with_nccl2_and_not_with_local_sgd() -> None:
    assert compiled(ONE_HOST[:1], DistributedStrategy()).main_program is not None
    strategy = DistributedStrategy()
    strategy.use_local_sgd = True
    with pytest.raises(ValueError, match="nobody to reduce with"):
        compiled(ONE_HOST[:1], strategy)


def test_unknown_fields_are_kept_with_a_warning_that_names_the_nearest() -> None:
    strategy: Any = DistributedStrategy()
    with pytest.warns(UserWarning, match="no field 'nccl_com_num'") as found:
        strategy.nccl_com_num = 2
    assert "did you mean nccl_comm_num" in str(found[0].message)
    assert found[0].filename == __file__
    assert strategy.nccl_com_num == 2


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="exec_strategy = 3"):
        DistributedStrategy().exec_strategy = 3  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"collective_mode": "local_sgd"}, AssertionError, "with mode = 'nccl2'"),
        ({"forward_recompute": True}, ValueError, "needs recompute_checkpoints"),
        ({"use_dist_fc": True}, BiremeError, "use_dist_fc"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    strategy = DistributedStrategy()
    for name, value in fields.items():
        setattr(strategy, name, value)
    with pytest.raises(kind, match=message):
        compiled(ONE_HOST, strategy)


def test_local_sgd_and_lamb_do_not_go_together() -> None:
    strategy = DistributedStrategy()
    strategy.use_local_sgd = True
    with pytest.raises(ValueError, match="use_local_sgd does not go together with Lamb"):
        compiled(ONE_HOST, strategy, fluid.optimizer.LambOptimizer(0.1))


def test_recompute_keeps_its_checkpoints() -> None:
    strategy = DistributedStrategy()
    fleet = Collective()
    fleet.init(UserDefinedCollectiveRoleMaker(0, ONE_HOST))
    loss = rank_job.model(0)
    strategy.forward_recompute, strategy.recompute_checkpoints = True, ["fc_0.tmp_2"]
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    names = [
        name for op in fleet.main_program.program.global_block().ops for name in op.output_arg_names
    ]
    assert any(".subprog" in name for name in names)


def test_a_wrong_strategy_or_a_call_too_early_is_refused() -> None:
    fleet = Collective()
    with pytest.raises(ValueError, match="does not know the role"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1))
    fleet.init(UserDefinedCollectiveRoleMaker(0, ONE_HOST))
    with pytest.raises(TypeError, match="not a strategy of collective training"):
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), fluid.BuildStrategy())
    with pytest.raises(ProgramError, match="there is no program yet"):
        fleet.save_persistables(fluid.Executor(), "folder")
    with pytest.warns(UserWarning, match="should not call 'init_worker'"):
        fleet.init_worker()


# -- checkpoints -----------------------------------------------------------------------------
def trained() -> tuple[Collective, Any, Any]:
    fleet = compiled(ONE_HOST[:1], DistributedStrategy())
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    return fleet, exe, fluid.global_scope().find_var("fc_0.w_0").get_tensor()


def test_a_checkpoint_is_numbered_and_says_its_epoch(tmp_path: Path) -> None:
    fleet, exe, _ = trained()
    root = str(tmp_path / "saved")
    assert fleet.load_check_point(exe, root, 0) is None
    fleet.save_check_point(exe, root, TrainStatus(3))
    fleet.save_check_point(exe, root, TrainStatus(4))
    names = [f"__paddle_fleet_checkpoint__.{n}" for n in (0, 1)]
    assert sorted(os.listdir(root)) == names
    assert sorted(os.listdir(Path(root, names[1]))) == [
        "_paddle_fleet_param__",
        "fleet_train_status",
    ]
    assert json.loads(Path(root, names[1], "fleet_train_status").read_text()) == {"epoch_no": 4}
    before = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    exe.run(fleet.startup_program)
    assert fleet.load_check_point(exe, root, 0) == TrainStatus(4)
    after = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    assert (before == after).all()
    fleet.save_check_point(exe, root, TrainStatus(5), remain_all_checkpoint=False)
    assert os.listdir(root) == ["__paddle_fleet_checkpoint__.2"]


def test_what_a_killed_job_left_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    fleet, exe, _ = trained()
    fleet.save_check_point(exe, str(tmp_path), TrainStatus(1))
    (tmp_path / "__paddle_fleet_checkpoint__.1.tmp").mkdir()
    assert fleet.load_check_point(exe, str(tmp_path), 0) == TrainStatus(1)
    fleet.save_check_point(exe, str(tmp_path), TrainStatus(2))
    assert fleet.load_check_point(exe, str(tmp_path), 0).next() == 3


def test_bad_checkpoints_are_refused(tmp_path: Path) -> None:
    fleet, exe, _ = trained()
    with pytest.raises(ValueError, match="there is no checkpoint under"):
        fleet.load_check_point(exe, str(tmp_path), 0, ignore_empty=False)
    with pytest.raises(TypeError, match="3 is not a TrainStatus"):
        fleet.save_check_point(exe, str(tmp_path), 3)
    with pytest.raises(ValueError, match="checkpoint_num = 0"):
        fleet.clean_redundant_check_points(str(tmp_path), checkpoint_num=0)
    fleet.save_check_point(exe, str(tmp_path), TrainStatus(1))
    (tmp_path / "__paddle_fleet_checkpoint__.0" / "fleet_train_status").write_text("{}")
    with pytest.raises(FormatError, match="status cannot be read"):
        fleet.load_check_point(exe, str(tmp_path), 0)


HADOOP = """#!/bin/sh
shift; shift; shift   # fs and two -D options
case $1 in
  -ls) for f in "$2"/*; do
    [ -d "$f" ] && k=drwx || k=-rwx
    echo "$k 1 u g 0 2020-01-01 00:00 $f"
  done;;
  -test) test $2 "$3";;
  -mkdir) mkdir -p "$3";;
  -mv) mv "$2" "$3";;
  -rm) [ "$2" = -r ] && rm -r "$3" || rm "$2";;
  -put|-get) cp -r "$2" "$3";;
esac
"""


def test_checkpoints_travel_through_the_hadoop_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hadoop").write_text(HADOOP)
    (tmp_path / "bin" / "hadoop").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    fleet, exe, _ = trained()
    fs = BDFS("hdfs://host:9000", "user,password", time_out=0)
    for epoch in range(3):
        fleet.save_check_point(exe, "far", TrainStatus(epoch), fs=fs)
    fleet.clean_redundant_check_points("far", fs, 2)
    assert sorted(fs.ls_dir("far")) == [f"__paddle_fleet_checkpoint__.{n}" for n in (1, 2)]
    assert fleet.load_check_point(exe, "far", 0, fs=fs) == TrainStatus(2)
    with pytest.raises(BiremeError, match="hadoop fs -mv nothing there failed"):
        fs.mv("nothing", "there")


def test_without_hadoop_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="no command `hadoop`"):
        BDFS("hdfs://host", "u,p").ls_dir("x")


def test_a_local_disk_lists_and_deletes(tmp_path: Path) -> None:
    fs = LocalFS()
    fs.mkdir(str(tmp_path / "d"))
    (tmp_path / "f").touch()
    assert (fs.ls_dir(str(tmp_path)), fs.list_dirs(str(tmp_path))) == (["d", "f"], ["d"])
    fs.mv(str(tmp_path / "f"), str(tmp_path / "g"))
    for name in ("g", "d", "gone"):
        fs.delete(str(tmp_path / name))
    assert (fs.ls_dir(str(tmp_path)), fs.stat(str(tmp_path / "g"))) == ([], False)


# -- jobs ------------------------------------------------------------------------------------
def launched(folder: Path, *arguments: str) -> tuple[int, str, list[Any]]:
    """Run the job with two ranks: exit code, what appeared, what the ranks found."""
    command = [sys.executable, "-m", "bireme", "launch", "--mode", "nccl2", "--log-dir"]
    given = [str(folder / "log"), str(Path(rank_job.__file__)), "--out", str(folder), *arguments]
    ran = subprocess.run(
        command + given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("rank.*.json"))]
    return ran.returncode, ran.stdout, found


@pytest.mark.wire
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["nccl2", "grad_allreduce"])
def test_two_ranks_equal_one_process_on_both_batches(strategy: str, tmp_path: Path) -> None:
    code, out, found = launched(tmp_path, "--strategy", strategy)
    assert code == 0, out
    assert found[0]["params"] == found[1]["params"]
    assert found[0]["summed"] == [3.0]
    loss = rank_job.model(0)
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    for step in range(rank_job.STEPS):
        parts = [rank_job.batch(step, rank) for rank in (0, 1)]
        exe.run(feed={n: np.concatenate([p[n] for p in parts]) for n in ("x", "y")})
    for name, value in found[0]["params"].items():
        own = np.array(fluid.global_scope().find_var(name).get_tensor())
        assert np.allclose(own, value, rtol=1e-4, atol=1e-6), name
    assert "fc_0.w_0_velocity_0" in os.listdir(tmp_path / "persistables")


@pytest.mark.wire
@pytest.mark.slow
def test_local_sgd_leaves_equal_parameters_on_both_ranks(tmp_path: Path) -> None:
    code, out, found = launched(tmp_path, "--strategy", "local_sgd")
    assert code == 0, out
    assert found[0]["params"] == found[1]["params"]


@pytest.mark.wire
@pytest.mark.slow
def test_a_restarted_job_goes_on_from_its_last_epoch(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    _, _, undisturbed = launched(whole, "--epochs", "3")
    words = ["--restart", "1", "--grace", "1", "--mode", "nccl2", "--log-dir", str(broken / "log")]
    job = [str(Path(rank_job.__file__)), "--out", str(broken), "--epochs", "3", "--fail", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", "launch", *words, *job],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "ValueError: the batch is bad" in ran.stdout
    assert "restarting the job (1 of 1)" in ran.stdout
    log = (broken / "log" / "workerlog.0").read_text()
    assert [log.count(f"epoch {number}\n") for number in (0, 1)] == [1, 1]  # trained once
    found = [json.loads(path.read_text()) for path in sorted(broken.glob("rank.*.json"))]
    for rank in (0, 1):
        assert found[rank]["params"] == undisturbed[rank]["params"]

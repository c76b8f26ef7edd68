"""Fleet over parameter servers: the same programs as the transpiler's, and strategies that check
what they are told.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme import ir
from bireme.errors import BiremeError, ConfigError, ProgramError
from bireme.fleet.api.parameter_server import DistributedTranspiler, StrategyFactory
from bireme.fleet.api.role_makers import Role, UserDefinedRoleMaker
from bireme.transpiler import GeoSgdTranspiler
from tests.fleet.api import server_job

SERVERS = ["127.0.0.1:6174", "127.0.0.1:6175"]
FACTORIES = {
    "sync": StrategyFactory.create_sync_strategy,
    "half": StrategyFactory.create_half_async_strategy,
    "async": StrategyFactory.create_async_strategy,
    "geo": lambda: StrategyFactory.create_geo_strategy(4),
}


def fresh() -> Any:
    return ir.program_guard(ir.Program(), ir.Program())


def worker(index: int = 1, role: Role = Role.WORKER) -> UserDefinedRoleMaker:
    return UserDefinedRoleMaker(index, role, 2, SERVERS)


def texts(*programs: Any) -> list[str]:
    """The programs without the numbers of name scopes, which count through the process."""
    return [re.sub(r"optimizer_\d+", "optimizer", str(program)) for program in programs]


def by_fleet(strategy: str, role: Role) -> list[str]:
    with fresh(), ir.unique_name.guard():
        fleet = DistributedTranspiler()
        fleet.init(worker(1, role))
        loss = server_job.model()
        fleet.distributed_optimizer(fluid.optimizer.Adagrad(0.01), FACTORIES[strategy]()).minimize(
            loss
        )
        return texts(fleet.main_program, fleet.startup_program)


def by_transpiler(strategy: str, role: Role) -> list[str]:
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode, config.runtime_split_send_recv = False, True
    for name, value in server_job.FIELDS[strategy].items():
        setattr(config, name, value)
    with fresh(), ir.unique_name.guard():
        fluid.optimizer.Adagrad(0.01).minimize(server_job.model())
        made = GeoSgdTranspiler if strategy == "geo" else fluid.DistributeTranspiler
        transpiler = made(config)
        trainer = 1 if role == Role.WORKER else 0
        transpiler.transpile(
            trainer,
            pservers=",".join(SERVERS),
            trainers=2,
            sync_mode=False,
            current_endpoint=SERVERS[1],
        )
        if role == Role.SERVER:
            return texts(*transpiler.get_pserver_programs(SERVERS[1]))
        return texts(transpiler.get_trainer_program(), fluid.default_startup_program())


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("strategy", list(FACTORIES))
def test_every_strategy_makes_the_programs_of_the_transpiler(strategy: str, role: Role) -> None:
    assert by_fleet(strategy, role) == by_transpiler(strategy, role)


def test_a_configuration_of_the_transpiler_is_a_strategy() -> None:
    config = fluid.DistributeTranspilerConfig()
    config.slice_var_up = False
    fleet = DistributedTranspiler()
    fleet.init(worker())
    made = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), config)._strategy
    assert type(made).__name__ == "SyncStrategy"
    assert not made.get_program_config().slice_var_up
    assert config.sync_mode  # the user's own record stays as it was


# -- strategies ------------------------------------------------------------------------------
def test_the_settings_of_the_communicator_print_as_a_table() -> None:
    lines = repr(StrategyFactory.create_geo_strategy(7).get_trainer_runtime_config()).split("\n")
    assert lines == [
        "",
        "=" * 50,
        "        TrainerRuntimeConfig Overview        Value",
        "-" * 50,
        "communicator_thread_pool_size                5    ",
        "communicator_send_wait_times                 5    ",
        "=" * 50,
        "",
    ]


def test_sync_jobs_keep_queues_as_long_as_there_are_threads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategy = StrategyFactory.create_sync_strategy()
    strategy.set_trainer_runtime_config({"communicator_send_queue_size": 7})
    assert strategy.get_trainer_runtime_config().get_communicator_flags() == {
        "communicator_max_merge_var_num": "1",
        "communicator_send_wait_times": "5",
        "communicator_thread_pool_size": "5",
        "communicator_send_queue_size": "1",
    }
    assert "communicator_send_queue_size must be equal to CPU_NUM" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setter", "given", "kind", "message"),
    [
        ("program_config", {"slice_var_upp": 1}, ValueError, "did you mean slice_var_up"),
        ("program_config", 3, TypeError, "no DistributeTranspilerConfig"),
        ("trainer_runtime_config", {"send_queue_size": 1}, ValueError, "send_queue_size"),
        ("server_runtime_config", {"rpc_send_thread_num": 1}, ValueError, "_rpc_send_thread_num"),
        ("execute_strategy", {"num_threadz": 1}, ValueError, "did you mean num_threads"),
        ("build_strategy", 4, TypeError, "no BuildStrategy"),
    ],
)
def test_unknown_fields_are_refused_with_the_nearest_name(
    setter: str, given: Any, kind: type[Exception], message: str
) -> None:
    strategy = StrategyFactory.create_async_strategy()
    with pytest.raises(kind, match=message) as found:
        getattr(strategy, f"set_{setter}")(given)
    assert isinstance(found.value, BiremeError)


def test_threads_of_servers_come_from_the_strategy() -> None:
    with fresh(), ir.unique_name.guard():
        fleet = DistributedTranspiler()
        fleet.init(worker(0, Role.SERVER))
        strategy = StrategyFactory.create_async_strategy()
        strategy.set_server_runtime_config({"_rpc_send_thread_num": 3})
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(server_job.model())
        (serve,) = [
            op for op in fleet.main_program.global_block().ops if op.type == "listen_and_serv"
        ]
        assert serve.attrs["rpc_send_thread_num"] == 3


# -- misuse ----------------------------------------------------------------------------------
def test_fleet_asks_for_init_first() -> None:
    with pytest.raises(ValueError, match="does not know the role"):
        DistributedTranspiler().worker_num()
    with pytest.raises(ValueError, match="does not know the role"):
        DistributedTranspiler().distributed_optimizer(fluid.optimizer.SGD(0.1))
    with pytest.raises(TypeError, match="must be an instance of RoleMakerBase"):
        DistributedTranspiler().init(3)


def test_a_worker_serves_nothing_and_a_server_trains_nothing() -> None:
    with fresh():
        fleet = DistributedTranspiler()
        fleet.init(worker())
        with pytest.raises(ProgramError, match=r"minimize\(loss\) first"):
            fleet.init_worker() if fleet.main_program is None else None
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(server_job.model())
        with pytest.raises(ConfigError, match="belongs to a server"):
            fleet.init_server()
        with pytest.raises(TypeError, match="not an Executor"):
            fleet.save_persistables("exe", "folder")
        with pytest.raises(ValueError, match="was not distributed"):
            fleet.save_persistables(fluid.Executor(), "folder", ir.Program())


def test_a_server_without_its_model_says_so(tmp_path: Path) -> None:
    with fresh():
        fleet = DistributedTranspiler()
        fleet.init(worker(0, Role.SERVER))
        fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize(server_job.model())
        with pytest.raises(ProgramError, match="not initialised"):
            fleet.run_server()
        with pytest.raises(ValueError, match="no directory"):
            fleet.init_server(str(tmp_path / "none"))


def test_lists_of_losses_and_unknown_strategies_are_refused() -> None:
    with fresh():
        fleet = DistributedTranspiler()
        fleet.init(worker())
        loss = server_job.model()
        with pytest.raises(TypeError, match="loss must not be a list"):
            fleet.distributed_optimizer(fluid.optimizer.SGD(0.1)).minimize([loss])
        with pytest.raises(TypeError, match="is not a strategy"):
            fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), "sync")


@pytest.mark.parametrize(("index", "part"), [(0, ["a", "b", "c"]), (1, ["d", "e"])])
def test_files_are_divided_in_order_and_the_first_takes_one_more(
    index: int, part: list[str]
) -> None:
    fleet = DistributedTranspiler()
    fleet.init(worker(index))
    assert fleet.split_files(list("abcde")) == part
    assert fleet.util.get_file_shard(list("abcde")) == part
    with pytest.raises(TypeError, match="should be a list"):
        fleet.split_files("abcde")


# -- jobs ------------------------------------------------------------------------------------
def launched(folder: Path, *arguments: str) -> list[Any]:
    """Run the job with 2 + 2 processes; what its trainers found."""
    folder.mkdir()
    command = [sys.executable, "-m", "bireme", "launch", "--log-dir", str(folder / "log")]
    job = [str(Path(server_job.__file__)), "--out", str(folder), *arguments]
    ran = subprocess.run([*command, *job], capture_output=True, text=True, env=os.environ)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [json.loads((folder / f"trainer.{i}.json").read_text()) for i in range(2)]


@pytest.mark.wire
@pytest.mark.slow
def test_sync_equals_the_transpiler_bit_for_bit_and_goes_on_from_what_it_saved(
    tmp_path: Path,
) -> None:
    ours = launched(tmp_path / "fleet", "--save")
    assert ours == launched(tmp_path / "transpiler", "--api", "transpiler")
    saved = tmp_path / "fleet"
    assert sorted(p.name for p in (saved / "inference").iterdir()) == [
        "__model__", "fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0",
    ]  # fmt: skip
    assert (saved / "persistables" / "fc_0.w_0_moment_0").exists()
    again = launched(tmp_path / "again", "--load", str(saved / "persistables"))
    assert again[0]["losses"][0] < ours[0]["losses"][0] / 2
    exe = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(str(saved / "inference"), exe)
        (guess,) = exe.run(
            program, feed={feeds[0]: server_job.batch(0, 0)["x"]}, fetch_list=targets
        )
    assert guess.shape == (8, 1)


LONG = 150  # steps: parameters of async and geo come back every so many sends


@pytest.mark.wire
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["half", "async", "geo"])
def test_other_strategies_train(strategy: str, tmp_path: Path) -> None:
    with fresh(), fluid.scope_guard(fluid.Scope()):
        loss = server_job.model()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        last = range(LONG - 3, LONG)
        untrained = [exe.run(feed=server_job.batch(s, 0), fetch_list=[loss])[0] for s in last]
    found = launched(tmp_path / "fleet", "--strategy", strategy, "--steps", str(LONG))
    assert np.mean(found[0]["losses"][-3:]) < 0.8 * np.mean(untrained)


@pytest.mark.wire
def test_fluids_module_names_lead_here(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import paddle.fluid as fluid\n"
        "from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet\n"
        "from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler."
        "distributed_strategy import StrategyFactory\n"
        "from paddle.fluid.incubate.fleet.base import role_maker\n"
        "from paddle.fluid.incubate.fleet.base.fleet_base import Mode\n"
        "assert fluid.incubate.fleet.base.role_maker is role_maker\n"
        "print(type(fleet).__module__, Mode.TRANSPILER.value)\n"
    )
    command = [sys.executable, "-m", "bireme", "run", "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert (ran.stdout, ran.stderr) == ("bireme.fleet.api.parameter_server 1\n", "")

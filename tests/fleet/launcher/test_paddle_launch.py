"""Paddle's launchers: options of both generations, what they print, the variables they set."""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.errors import ConfigError
from bireme.fleet.launcher import nodes
from bireme.fleet.launcher.job import Job, seats
from bireme.fleet.launcher.paddle_arguments import OLD, V2, Parser, truth
from bireme.fleet.launcher.paddle_output import arguments_block, environment_box


def parsed(*words: str) -> argparse.Namespace:
    return Parser("paddle.distributed.launch").read([*words, "train.py", "--lr", "0.1"])


# -- options ---------------------------------------------------------------------------------
def test_options_tell_the_generation() -> None:
    parser = Parser("launch")
    assert not parser.is_v2(parsed("--selected_gpus=0,1", "--log_dir", "mylog"))
    assert parser.is_v2(parsed("--gpus=0,1"))
    assert not parser.is_v2(parsed())
    with pytest.raises(
        ConfigError, match=r"--selected_gpus is of Fluid 1\.x, --ips of Paddle 2\.x"
    ):
        parser.is_v2(parsed("--selected_gpus=0", "--ips=10.0.0.1"))


def test_what_follows_the_script_is_its_own() -> None:
    given = parsed("--selected_gpus=0,1")
    assert (given.training_script, given.training_script_args) == ("train.py", ["--lr", "0.1"])


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--seletected_gpus=0,1",), "no option --seletected_gpus", "did you mean --selected_gpus"),
        (("--zz=0",), "no option --zz", "--help lists"),
        (("--started_port=many",), "invalid int value", "--help"),
        (("--print_config=perhaps",), "neither True nor False", "--help"),
    ],
)
def test_wrong_options_are_refused_with_the_nearest(
    words: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        parsed(*words)
    assert hint in str(found.value)


def test_print_config_false_is_false() -> None:
    assert [truth(word) for word in ("False", "0", "", "True", "yes")] == [False] * 3 + [True] * 2


# -- words -----------------------------------------------------------------------------------
def test_the_block_lists_arguments_by_name() -> None:
    assert arguments_block({"gpus": None, "ips": "127.0.0.1", "backend": 1}).split("\n") == [
        "-----------  Configuration Arguments -----------",
        "backend: 1",
        "gpus: None",
        "ips: 127.0.0.1",
        "------------------------------------------------",
    ]


def test_the_box_is_that_of_the_tutorials() -> None:
    long = "127.0.0.1:11111,127.0.0.1:22222,127.0.0.1:58938,127.0.0.1:54203,127.0.0.1:44221"
    box = environment_box(
        {
            "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:53762",
            "PADDLE_TRAINERS_NUM": "8",
            "PADDLE_TRAINER_ENDPOINTS": long,
        }
    )
    assert all(line.startswith("    ") for line in box.split("\n"))
    assert [line[4:] for line in box.split("\n")] == [
        "+=======================================================================================+",
        "|                        Distributed Envs                      Value                    |",
        "+---------------------------------------------------------------------------------------+",
        "|                 PADDLE_CURRENT_ENDPOINT                 127.0.0.1:53762               |",
        "|                     PADDLE_TRAINERS_NUM                        8                      |",
        "|                PADDLE_TRAINER_ENDPOINTS  ... 0.1:58938,127.0.0.1:54203,127.0.0.1:44221|",
        "+=======================================================================================+",
    ]


# -- nodes and ports -------------------------------------------------------------------------
def old(**given: Any) -> dict[str, Any]:
    return {**OLD, **given}


def test_several_nodes_have_the_same_ports_and_ranks_by_node() -> None:
    options = old(cluster_node_ips="10.0.0.1,10.0.0.2", node_ip="10.0.0.2", started_port=6170)
    found = nodes.of_v1(options, 2, {})
    assert (found.hosts, found.own, found.port) == (("10.0.0.1", "10.0.0.2"), "10.0.0.2", 6170)
    job = Job("x.py", mode="nccl2", servers=0, host=found.own, hosts=found.hosts, start_port=6170)
    plan = seats(job, ["10.0.0.2:6170", "10.0.0.2:6171", "10.0.0.2:6172"])
    assert [seat.variables["PADDLE_TRAINER_ID"] for seat in plan] == ["2", "3"]
    assert [seat.log for seat in plan] == ["workerlog.0", "workerlog.1"]
    shared = plan[0].variables
    assert shared["PADDLE_TRAINERS_NUM"] == "4"
    assert shared["PADDLE_TRAINER_ENDPOINTS"] == (
        "10.0.0.1:6170,10.0.0.1:6171,10.0.0.2:6170,10.0.0.2:6171"
    )
    assert shared["PADDLE_GLOO_HTTP_ENDPOINT"] == "10.0.0.1:6172"


def test_ports_are_free_ones_on_one_node_and_6070_on_several() -> None:
    assert nodes.of_v1(old(), 2, {}).port == 0
    assert nodes.of_v1(old(cluster_node_ips="127.0.0.1,10.0.0.2"), 2, {}).port == 6070
    assert nodes.of_v2(V2, {"FLAGS_START_PORT": "9000"}).port == 9000


def test_a_node_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.3, is not in list"):
        nodes.of_v1(old(cluster_node_ips="10.0.0.1,10.0.0.2", node_ip="10.0.0.3"), 1, {})


CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_PORT": "7164",
    "TRAINER_PORTS_NUM": "4",
}


def test_paddle_cloud_gives_nodes_and_ports() -> None:
    cloud = old(use_paddlecloud=True)
    found = nodes.of_v1(cloud, 4, CLOUD)
    assert (found.hosts, found.own, found.port) == (("10.0.0.1", "10.0.0.2"), "10.0.0.2", 7164)
    assert nodes.of_v1(cloud, 8, CLOUD).port == 6170  # more devices than ports
    endpoints = "10.0.0.1:8000,10.0.0.1:8001,10.0.0.2:8000,10.0.0.2:8001"
    told = {**CLOUD, "DISTRIBUTED_TRAINER_ENDPOINTS": endpoints}
    assert nodes.of_v1(cloud, 2, told).port == 8000
    with pytest.raises(ConfigError, match="does not fit the nodes and devices"):
        nodes.of_v1(cloud, 4, told)
    assert nodes.of_v1(cloud, 4, {**CLOUD, "PADDLE_TRAINERS_NUM": "1"}).hosts == ("127.0.0.1",)


def test_a_wrong_cloud_names_what_was_read() -> None:
    cloud = old(use_paddlecloud=True)
    with pytest.raises(ConfigError, match="finds no nodes") as found:
        nodes.of_v1(cloud, 1, {"PADDLE_TRAINERS_NUM": "2", "POD_IP": "10.0.0.1"})
    assert "read from the environment: PADDLE_TRAINERS_NUM=2, POD_IP=10.0.0.1" in str(found.value)
    assert "not set: PADDLE_TRAINERS" in str(found.value)
    with pytest.raises(ConfigError, match=r"PADDLE_TRAINER_ID is 0, but 10\.0\.0\.2 is node 1"):
        nodes.of_v1(cloud, 1, {**CLOUD, "PADDLE_TRAINER_ID": "0"})


def test_devices_are_numbered_by_what_is_visible() -> None:
    visible = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    assert nodes.visible(["5", "7"], "--selected_gpus", visible) == ["1", "3"]
    assert nodes.visible(["5", "7"], "--selected_gpus", {}) == ["5", "7"]
    with pytest.raises(AssertionError, match="device 3 of --selected_gpus is not visible"):
        nodes.visible(["3"], "--selected_gpus", visible)


def test_listed_servers_and_workers_keep_their_ports() -> None:
    options = {**V2, "servers": "127.0.0.1:1,127.0.0.1:2", "workers": "127.0.0.1:3"}
    job = nodes.of_servers(Job("x.py", worker_log="workerlog"), options)
    plan = seats(job, job.own_endpoints)
    assert [(str(s), s.log) for s in plan] == [
        ("server 0", "serverlog.0"), ("server 1", "serverlog.1"), ("trainer 0", "workerlog.0"),
    ]  # fmt: skip
    assert plan[2].variables["PADDLE_PSERVERS_IP_PORT_LIST"] == "127.0.0.1:1,127.0.0.1:2"
    with pytest.raises(ConfigError, match="--servers and --workers go together"):
        nodes.of_servers(Job("x.py"), {**V2, "servers": "127.0.0.1:1"})


# -- as commands -----------------------------------------------------------------------------
SCRIPT = """\
import os, sys
print("rank", os.environ["PADDLE_TRAINER_ID"], os.environ["FLAGS_selected_gpus"], sys.argv[1:])
if "fail" in sys.argv and os.environ["PADDLE_TRAINER_ID"] == "1":
    print("something broke")
    sys.exit(7)
"""


def run(folder: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "bireme", "run", *words],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **environ},
    )  # fmt: skip


LAUNCH = ("-m", "paddle.distributed.launch")


@pytest.mark.wire
def test_the_launcher_of_fluid_writes_a_log_for_each_device(tmp_path: Path) -> None:
    ran = run(tmp_path, *LAUNCH, "--selected_gpus=0,1", "--log_dir", "mylog", "train.py", "--a=1")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0] == "-----------  Configuration Arguments -----------"
    assert "selected_gpus: 0,1" in lines
    assert lines[-1] == "rank 0 0 ['--a=1']"
    assert (tmp_path / "mylog" / "workerlog.1").read_text() == "rank 1 1 ['--a=1']\n"
    assert "start trainer proc:" in ran.stderr
    again = run(tmp_path, *LAUNCH, "--selected_gpus=0,1", "--log_dir", "mylog", "train.py")
    assert again.stdout.count("rank 0") == 1  # what the log held before is not shown again
    assert (tmp_path / "mylog" / "workerlog.1").read_text().count("rank 1") == 2


@pytest.mark.wire
def test_without_a_folder_all_ranks_are_on_screen_and_a_failure_ends_the_job(
    tmp_path: Path,
) -> None:
    ran = run(tmp_path, *LAUNCH, "--selected_gpus=0,1", "--print_config=False", "train.py", "fail")
    assert ran.returncode == 7
    assert "Configuration Arguments" not in ran.stdout
    assert "rank 0 0 ['fail']" in ran.stdout
    assert "ABORT!!! Out of all 2 trainers, the trainer process with rank=[1]" in ran.stdout
    assert "  | something broke" in ran.stdout


@pytest.mark.wire
def test_the_launcher_of_2_x_prints_its_box(tmp_path: Path) -> None:
    ran = run(tmp_path, *LAUNCH, "--gpus=0,1", "--cpu", "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "heter_workers: \n" in ran.stdout
    assert "launch train in CPU mode\n" in ran.stdout
    assert "|                     FLAGS_selected_gpus                        0   " in ran.stderr
    endpoints = (tmp_path / "log" / "endpoints.log").read_text().splitlines()
    assert endpoints[0] == "PADDLE_TRAINER_ENDPOINTS: "
    assert len(endpoints) == 3


@pytest.mark.wire
def test_a_typing_mistake_is_a_message_with_code_2(tmp_path: Path) -> None:
    ran = run(tmp_path, *LAUNCH, "--seletected_gpus=0,1", "train.py")
    assert ran.returncode == 2
    assert ran.stderr == (
        "bireme: there is no option --seletected_gpus\n  paddle.distributed.launch\n"
        "  hint: did you mean --selected_gpus?\n"
    )
    missing = run(tmp_path, *LAUNCH, "--selected_gpus=0", "nowhere.py")
    assert missing.returncode == 2
    assert "there is no script nowhere.py" in missing.stderr


@pytest.mark.wire
def test_a_worker_that_dies_ends_a_job_with_servers(tmp_path: Path) -> None:
    body = (
        "import os, signal, sys\nrole = os.environ['TRAINING_ROLE']\n"
        "index = os.environ.get('PADDLE_TRAINER_ID')\n"
        "sys.exit('no memory left') if index == '1' else index or signal.pause()\n"
    )
    (tmp_path / "job.py").write_text(body)
    ran = run(tmp_path, "-m", "paddle.distributed.launch_ps", "--endpoints", endpoints(2), "job.py")
    assert ran.returncode == 1
    assert "  | no memory left" in ran.stdout
    names = sorted(p.name for p in (tmp_path / "logs").glob("*log.*"))
    assert names == ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]


def endpoints(count: int) -> str:
    """Endpoints on free ports."""
    from bireme.fleet.launcher.ports import Reservation

    with Reservation(count) as held:
        return ",".join(held.endpoints)


@pytest.mark.wire
def test_a_job_that_failed_is_started_again(tmp_path: Path) -> None:
    body = (
        "import os, sys\ncount = int(os.environ['BIREME_RESTART_COUNT'])\nprint('try', count)\n"
        "sys.exit(9 if count < 2 else 0)\n"
    )
    (tmp_path / "job.py").write_text(body)
    command = [sys.executable, "-m", "bireme", "launch", "--mode", "nccl2", "--grace", "0.2"]
    for restarts, code in (("2", 0), ("1", 9)):
        ran = subprocess.run(
            [*command, "--restart", restarts, "--log-dir", restarts, "job.py"],
            cwd=tmp_path, capture_output=True, text=True, env=os.environ,
        )  # fmt: skip
        assert ran.returncode == code, ran.stdout
        assert f"restarting the job ({restarts} of {restarts})" in ran.stdout
    assert (tmp_path / "2" / "workerlog.0").read_text() == "try 0\ntry 1\ntry 2\n"


@pytest.mark.wire
def test_a_mistake_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('try')\nraise SystemExit(2)\n")
    command = [sys.executable, "-m", "bireme", "launch", "--mode", "nccl2", "--grace", "0.2"]
    ran = subprocess.run(
        [*command, "--restart", "3", "job.py"],
        cwd=tmp_path, capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    assert ran.returncode == 2, ran.stdout
    assert "the job is not restarted: exit code 2" in ran.stdout
    assert (tmp_path / "log" / "workerlog.0").read_text() == "try\n"


@pytest.mark.wire
def test_cuda_places_mean_the_cpu_with_cpu_and_name_the_way_out_without(tmp_path: Path) -> None:
    (tmp_path / "gpu.py").write_text(
        "import paddle.fluid as fluid\n"
        "exe = fluid.Executor(fluid.CUDAPlace(7))\n"
        "print(exe.place, [str(p) for p in fluid.cuda_places([0, 1])])\n"
    )
    ran = run(tmp_path, "--cpu", "gpu.py")
    assert ran.stdout == "CPUPlace ['CPUPlace', 'CPUPlace']\n", ran.stderr
    assert run(tmp_path, "gpu.py", FLAGS_place="cpu").stdout == ran.stdout
    stopped = run(tmp_path, "gpu.py")
    assert stopped.returncode == 2
    assert "CUDAPlace(7) does not exist" in stopped.stderr
    assert "bireme run --cpu" in stopped.stderr


@pytest.mark.wire
def test_run_m_runs_any_module_and_refuses_one_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    assert run(tmp_path, "-m", "mine", "--x").stdout == "__main__ ['--x']\n"
    ran = run(tmp_path, "-m", "paddle.distributed.lunch")
    assert (ran.returncode, ran.stderr.splitlines()[0]) == (
        2, "bireme: ConfigError: there is no module paddle.distributed.lunch",
    )  # fmt: skip

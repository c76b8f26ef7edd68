"""A job's seats: who gets which variables. No process is started here."""

import os
from pathlib import Path

import pytest

from bireme.errors import ConfigError
from bireme.fleet.launcher.job import Job, arguments_of, blas_threads, inherited, misplaced, seats
from bireme.fleet.role_maker import Role

ENDPOINTS = ["127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003", "127.0.0.1:1004"]


def test_every_seat_is_a_role_that_the_role_maker_accepts() -> None:
    roles = [Role.read(seat.variables) for seat in seats(Job("x.py"), ENDPOINTS)]
    assert [str(role) for role in roles] == [
        "server 127.0.0.1:1001",
        "server 127.0.0.1:1002",
        "trainer 0 of 2",
        "trainer 1 of 2",
    ]
    assert {role.servers for role in roles} == {tuple(ENDPOINTS[:2])}


def test_nccl2_seats_trainers_only() -> None:
    found = seats(Job("x.py", mode="nccl2"), ENDPOINTS[:2])
    assert [seat.log for seat in found] == ["workerlog.0", "workerlog.1"]
    assert all(Role.read(seat.variables).is_collective for seat in found)


def test_logs_are_named_by_role() -> None:
    names = [seat.log for seat in seats(Job("x.py"), ENDPOINTS)]
    assert names == ["serverlog.0", "serverlog.1", "trainerlog.0", "trainerlog.1"]


def test_each_seat_is_told_which_port_is_held_for_it() -> None:
    held = [seat.variables["BIREME_RESERVED_PORTS"] for seat in seats(Job("x.py"), ENDPOINTS)]
    assert held == ["1001", "1002", "1003", "1004"]


def test_neither_a_proxy_nor_an_old_role_reaches_a_child() -> None:
    environ = {"http_proxy": "p", "HTTPS_PROXY": "p", "TRAINING_ROLE": "PSERVER", "HOME": "/h"}
    given = inherited(environ, processes=4)
    assert "HOME" in given
    assert not {"http_proxy", "HTTPS_PROXY", "TRAINING_ROLE"} & given.keys()
    assert given["BIREME_LAUNCHER_PID"] == str(os.getpid())


def test_cores_are_shared_out_unless_the_user_has_spoken() -> None:
    cores = len(os.sched_getaffinity(0))
    assert blas_threads(1) == cores
    assert blas_threads(10 * cores) == 1
    given = inherited({"MKL_NUM_THREADS": "7"}, processes=1)
    assert (given["OMP_NUM_THREADS"], given["MKL_NUM_THREADS"]) == (str(cores), "7")


def test_a_placeholder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.touch()
    with pytest.raises(ConfigError, match=r"there is no placeholder \{rolle\}") as caught:
        Job(str(script), ("--role", "{rolle}")).check()
    assert "{role}, {index}" in str(caught.value)
    Job(str(script), ("--role", "{role}", "--json", "{}", "{a: 1}")).check()


def test_an_option_after_the_script_is_noticed_unless_the_script_has_it(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("parser.add_argument('--trainers')")
    job = Job(str(script), ("--servers", "4", "--trainers=2", "--epochs", "1"))
    assert misplaced(job.script, job.arguments, {"--servers", "--trainers"}) == ["--servers"]


@pytest.mark.parametrize(("servers", "trainers"), [(0, 1), (1, 0)])
def test_a_cluster_needs_both_roles(tmp_path: Path, servers: int, trainers: int) -> None:
    script = tmp_path / "x.py"
    script.touch()
    with pytest.raises(ConfigError, match="a cluster needs at least one"):
        Job(str(script), servers=servers, trainers=trainers).check()


def test_a_missing_script_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no script nowhere\.py"):
        Job("nowhere.py").check()


def test_each_trainer_gets_its_device() -> None:
    found = seats(Job("x.py", mode="nccl2", gpus=("4", "6")), ENDPOINTS[:2])
    assert [seat.variables["FLAGS_selected_gpus"] for seat in found] == ["4", "6"]


def test_too_few_devices_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.touch()
    with pytest.raises(ConfigError, match="1 devices for 2 trainers"):
        Job(str(script), gpus=("0",)).check()


def test_roles_are_filled_into_arguments_too() -> None:
    words = ("--role={role}", "{index}", "{endpoint}", "{servers}", "{trainers}", "{other}")
    job = Job("x.py", words)
    filled = [arguments_of(job, seat) for seat in seats(job, ENDPOINTS)]
    servers = ",".join(ENDPOINTS[:2])
    assert filled[1] == ("--role=pserver", "1", ENDPOINTS[1], servers, "2", "{other}")
    assert filled[2] == ("--role=trainer", "0", ENDPOINTS[2], servers, "2", "{other}")


def test_nccl2_arguments_list_the_trainers() -> None:
    job = Job("x.py", ("{trainers}", "{servers}"), mode="nccl2")
    (first, _) = seats(job, ENDPOINTS[:2])
    assert arguments_of(job, first) == (",".join(ENDPOINTS[:2]), "")

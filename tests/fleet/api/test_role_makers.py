"""Fluid's role makers under Fluid's names, on top of one role."""

from typing import Any

import pytest

from bireme.errors import BiremeError, ConfigError
from bireme.fleet.api.role_makers import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)

RANKS = "127.0.0.1:7000,127.0.0.1:7001,10.0.0.2:7000"
SERVERS = ["127.0.0.1:6174", "127.0.0.1:6175"]


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", "PADDLE_TRAINER_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)

    def set_all(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_a_user_defined_worker_and_server_know_their_places() -> None:
    worker = UserDefinedRoleMaker(1, Role.WORKER, 2, SERVERS)
    assert (worker.is_worker(), worker.is_server(), worker.is_first_worker()) == (
        True,
        False,
        False,
    )
    assert (worker.worker_index(), worker.worker_num(), worker.server_num()) == (1, 2, 2)
    server = UserDefinedRoleMaker(1, Role.SERVER, 2, SERVERS)
    assert (server.is_server(), server.server_index(), server.worker_num()) == (True, 1, 2)
    assert server.role.endpoint == SERVERS[1]
    assert worker.to_string() == (
        f"role: 1, current_id: 1, worker_endpoints: [], server_endpoints: {SERVERS}"
    )


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ((0, 3, 2, SERVERS), TypeError, "3 is not a role"),
        ((-1, Role.WORKER, 2, SERVERS), ValueError, "current_id = -1"),
        (("0", Role.WORKER, 2, SERVERS), TypeError, "current_id = '0'"),
        ((0, Role.WORKER, 0, SERVERS), ValueError, "worker_num = 0"),
        ((2, Role.SERVER, 9, SERVERS), ValueError, "current_id = 2 of 2"),
        ((5, Role.WORKER, 2, SERVERS), ValueError, "current_id = 5 of 2"),
        ((0, Role.WORKER, 1, []), ValueError, r"server_endpoints = \[\]"),
        ((0, Role.WORKER, 1, "a:1"), TypeError, "server_endpoints = 'a:1'"),
        ((0, Role.WORKER, 1, ["a:1", "a:1"]), ValueError, "each different"),
        ((0, Role.WORKER, 1, ["a"]), ValueError, "'a' in server_endpoints"),
    ],
)
def test_wrong_arguments_are_refused_under_the_builtin_names(
    given: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as found:
        UserDefinedRoleMaker(*given)
    assert isinstance(found.value, BiremeError)


def test_a_collective_worker_counts_hosts() -> None:
    maker = UserDefinedCollectiveRoleMaker(2, RANKS.split(","))
    assert (maker.worker_num(), maker.node_num(), maker.worker_index()) == (3, 2, 2)
    with pytest.raises(ValueError, match="current_id = 3 of 3"):
        UserDefinedCollectiveRoleMaker(3, RANKS.split(","))
    with pytest.raises(TypeError):
        UserDefinedCollectiveRoleMaker(0, None)


def test_paddle_cloud_reads_a_rank_and_knows_who_is_first(environ: Any) -> None:
    environ(PADDLE_TRAINER_ENDPOINTS=RANKS, PADDLE_TRAINER_ID="0", PADDLE_TRAINERS_NUM="3")
    maker = PaddleCloudRoleMaker(is_collective=True)
    assert maker.is_first_worker()  # the original says False on every rank
    assert maker.is_worker()
    assert (maker.worker_num(), maker.get_trainer_endpoints()) == (3, RANKS.split(","))


def test_paddle_cloud_names_what_is_missing(environ: Any) -> None:
    with pytest.raises(ConfigError, match="needs PADDLE_TRAINER_ENDPOINTS") as found:
        PaddleCloudRoleMaker(is_collective=True).generate_role()
    assert "not set: TRAINING_ROLE, PADDLE_TRAINING_ROLE" in str(found.value)
    with pytest.raises(ConfigError, match="finds no role") as found:
        PaddleCloudRoleMaker().generate_role()
    assert "launch_ps" in str(found.value)


def test_a_server_in_a_collective_job_is_refused(environ: Any) -> None:
    environ(TRAINING_ROLE="PSERVER", PADDLE_TRAINER_ENDPOINTS=RANKS)
    with pytest.raises(ConfigError, match="a collective job has no servers"):
        PaddleCloudRoleMaker(is_collective=True).generate_role()


def test_a_general_role_maker_needs_everybody(environ: Any) -> None:
    environ(
        TRAINING_ROLE="TRAINER",
        PADDLE_PSERVERS_IP_PORT_LIST=",".join(SERVERS),
        PADDLE_TRAINER_ID="0",
        PADDLE_TRAINERS_NUM="2",
    )
    with pytest.raises(ConfigError, match="endpoints of all servers and workers"):
        GeneralRoleMaker(path="./tmp").generate_role()


def test_a_role_maker_without_a_rule_says_so() -> None:
    with pytest.raises(ConfigError, match="does not say which role"):
        RoleMakerBase().is_worker()


def test_one_worker_gathers_alone(environ: Any) -> None:
    maker = UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:7000"])
    maker.barrier_worker()
    assert maker.all_gather("x") == ["x"]
    assert maker.gathering.all_reduce([1, 2]).tolist() == [1, 2]
    assert maker.gathering.all_reduce(3.5, "max") == 3.5
    with pytest.raises(BiremeError, match="servers do not meet"):
        maker.barrier_all()
    with pytest.raises(BiremeError, match="all_reduce mode 'mean'"):
        maker.gathering.all_reduce(1, "mean")


def test_workers_that_cannot_meet_are_told_what_to_set(
    environ: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PADDLE_GLOO_HTTP_ENDPOINT", raising=False)
    with pytest.raises(ConfigError, match="do not know where to meet"):
        UserDefinedRoleMaker(1, Role.WORKER, 2, SERVERS).barrier_worker()

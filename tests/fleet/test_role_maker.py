"""The environment describes a role, or is refused with a message that says what to set."""

import subprocess
import sys

import pytest

from bireme.errors import ConfigError
from bireme.fleet.role_maker import Role

SERVERS = "127.0.0.1:6174,127.0.0.1:6175"
SERVER = {
    "TRAINING_ROLE": "PSERVER",
    "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS,
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:6175",
}
TRAINER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS,
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ID": "1",
}
RANK = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:7000,127.0.0.1:7001",
    "PADDLE_TRAINER_ID": "1",
}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


def test_an_empty_environment_is_local_training() -> None:
    role = Role.read({})
    assert (role.kind, role.trainers, role.is_first) == ("local", 1, True)


def test_a_server_knows_its_endpoint_and_the_number_of_trainers() -> None:
    role = Role.read(SERVER)
    assert role.is_server
    assert (role.endpoint, role.trainers) == ("127.0.0.1:6175", 2)


def test_a_server_may_be_named_by_address_and_port() -> None:
    environ = without(SERVER, "PADDLE_CURRENT_ENDPOINT")
    role = Role.read({**environ, "POD_IP": "127.0.0.1", "PADDLE_PORT": "6174"})
    assert role.endpoint == "127.0.0.1:6174"


def test_a_trainer_knows_its_number_and_the_servers() -> None:
    role = Role.read(TRAINER)
    assert role.is_trainer
    assert not role.is_collective
    assert not role.is_first
    assert (role.trainer_id, role.servers) == (1, tuple(SERVERS.split(",")))


def test_trainers_without_servers_are_a_collective() -> None:
    role = Role.read(RANK)
    assert role.is_collective
    assert (role.trainers, role.endpoint) == (2, "127.0.0.1:7001")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TRAINING_ROLE": "WORKER"}, "'WORKER' is not a role"),
        (without(SERVER, "PADDLE_PSERVERS_IP_PORT_LIST"), "which is not set"),
        (without(SERVER, "PADDLE_CURRENT_ENDPOINT"), "does not know its own endpoint"),
        (without(SERVER, "PADDLE_TRAINERS_NUM"), "PADDLE_TRAINERS_NUM is not set"),
        ({**SERVER, "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:9"}, "127.0.0.1:9 is unknown"),
        ({**SERVER, "PADDLE_PSERVERS_IP_PORT_LIST": "a:1,a:1"}, "duplicate endpoint a:1"),
        ({**SERVER, "PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b"}, "'b' in PADDLE_PSERVERS"),
        ({**SERVER, "PADDLE_PSERVERS_IP_PORT_LIST": "a:99999"}, "'a:99999' in PADDLE_PSERVERS"),
        (without(TRAINER, "PADDLE_TRAINER_ID"), "PADDLE_TRAINER_ID is not set"),
        ({**TRAINER, "PADDLE_TRAINER_ID": "2"}, "trainer id 2 is out of range"),
        ({**TRAINER, "PADDLE_TRAINER_ID": "one"}, "'one' is not an integer"),
        ({**TRAINER, "PADDLE_TRAINERS_NUM": "0"}, "'0' is not an integer >= 1"),
        (without(TRAINER, "PADDLE_PSERVERS_IP_PORT_LIST"), "a trainer needs PADDLE_PSERVERS"),
        ({**RANK, "PADDLE_TRAINERS_NUM": "3"}, "2 trainer endpoints for 3 trainers"),
        ({**RANK, "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:7000"}, "not its place in the list"),
        ({**RANK, "PADDLE_TRAINING_ROLE": "PSERVER"}, "contradict each other"),
        (
            {**SERVER, "POD_IP": "127.0.0.1", "PADDLE_PORT": "6174"},
            "PADDLE_PORT say 127.0.0.1:6174",
        ),
    ],
)
def test_a_wrong_environment_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Role.read(environ)


def test_a_refusal_lists_what_was_read_and_what_is_missing() -> None:
    with pytest.raises(ConfigError) as found:
        Role.read(without(TRAINER, "PADDLE_TRAINERS_NUM"))
    text = str(found.value)
    assert (
        "read from the environment: TRAINING_ROLE=TRAINER, PADDLE_TRAINER_ID=1, "
        f"PADDLE_PSERVERS_IP_PORT_LIST={SERVERS}" in text
    )
    assert "not set: PADDLE_TRAINING_ROLE, PADDLE_TRAINER_ENDPOINTS, PADDLE_TRAINERS_NUM" in text


def test_a_script_ends_with_a_message_and_code_2() -> None:
    code = "from bireme.fleet.role_maker import Role; Role.from_env()"
    environ = {**TRAINER, "PADDLE_TRAINER_ID": "5"}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("bireme: trainer id 5 is out of range")
    assert "Traceback" not in ran.stderr


def test_a_wrong_flag_is_a_message_too() -> None:
    code = "from bireme.fleet.role_maker import Role; Role.from_env()"
    environ = {"FLAGS_rpc_deadline": "soon"}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr.startswith("bireme: FLAGS_rpc_deadline = 'soon' is not an integer")

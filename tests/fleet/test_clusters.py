"""Roles from the variables of other launchers, as their manuals describe them."""

import os

import pytest

from bireme.errors import ConfigError
from bireme.fleet.api.role_makers import PaddleCloudRoleMaker
from bireme.fleet.clusters import CLUSTERS, ranks_in
from bireme.fleet.launcher.foreign import adopted
from bireme.fleet.role_maker import Role

# what a process finds in its environment, with the variables that play no part left out
TORCHRUN = {  # torchrun --nproc-per-node 2, second process
    "RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
OPEN_MPI = {  # mpiexec -n 2, second process
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {  # srun -N 3 -n 5, fourth task
    "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[09-10],login", "SLURM_STEP_NODELIST": "gpu[09-10],login",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_TASKS_PER_NODE": "2(x2),1",
}  # fmt: skip
KUBERNETES = {
    "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "PADDLE_TRAINERS_NUM": "3",
    "MASTER_ADDR": "train-0.workers",
}  # fmt: skip
PS_LITE = {  # tracker of dmlc-core, second worker; some trackers leave the servers' variable set
    "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1", "DMLC_SERVER_ID": "0", "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "2", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
}  # fmt: skip
PADDLE_JOB = {  # Kubeflow's training operator, 3 Worker replicas, second pod
    "PADDLE_JOB_ID": "mnist", "PADDLE_NNODES": "3", "PADDLE_MASTER": "mnist-worker-0:37777",
    "HOSTNAME": "mnist-worker-1", "PYTHONUNBUFFERED": "0",
}  # fmt: skip
PADDLE_JOB_PS = {  # 1 Master and 2 Workers, second worker
    **PADDLE_JOB, "PADDLE_MASTER": "mnist-master-0:37777", "PADDLE_TRAINER_NUM": "1",
}  # fmt: skip
TF_JOB = {
    "TF_CONFIG": '{"cluster": {"ps": ["j-ps-0.ns.svc:2222", "j-ps-1.ns.svc:2222"], "chief": '
    '["j-chief-0.ns.svc:2222"], "worker": ["j-worker-0.ns.svc:2222"]}, "task": {"type": "worker", '
    '"index": 0}, "environment": "cloud"}'
}
OPERATOR = {  # paddle-operator, second ps of 2 with 2 workers
    "POD_IP": "wide-ps-1", "PADDLE_TRAINER_ID": "1", "TRAINING_ROLE": "PSERVER",
    "PADDLE_TRAINING_ROLE": "PSERVER", "TRAINER_PORTS_NUM": "20", "PADDLE_PORT": "2379",
    "PADDLE_PSERVERS_IP_PORT_LIST": "wide-ps-0:2379,wide-ps-1:2379",
    "PADDLE_TRAINER_ENDPOINTS": "wide-worker-0:2379,wide-worker-1:2379",
    "PADDLE_TRAINERS": "wide-worker-0,wide-worker-1", "PADDLE_TRAINERS_NUM": "2",
}  # fmt: skip
SERVERS = {"PADDLE_PSERVERS_IP_PORT_LIST": "ps:6174"}


@pytest.mark.parametrize(
    ("environ", "rank", "endpoints"),
    [
        (TORCHRUN, 1, "127.0.0.1:29501 127.0.0.1:29502"),  # torchrun listens at its own port
        (OPEN_MPI, 1, "127.0.0.1:6170 127.0.0.1:6171"),
        (MPICH, 1, "127.0.0.1:6170 127.0.0.1:6171"),
        (SLURM, 3, "gpu09:6170 gpu09:6171 gpu10:6170 gpu10:6171 login:6170"),
        (PADDLE_JOB, 1, " ".join(f"mnist-worker-{i}:37777" for i in range(3))),
        (KUBERNETES, 1, "train-0.workers:6170 train-1.workers:6170 train-2.workers:6170"),
        ({**OPEN_MPI, "PADDLE_PORT": "7000"}, 1, "127.0.0.1:7000 127.0.0.1:7001"),
    ],
)
def test_a_launcher_of_others_makes_a_collective(
    environ: dict[str, str], rank: int, endpoints: str
) -> None:
    peers = tuple(endpoints.split())
    expected = Role("trainer", rank, len(peers), (), peers, peers[rank])
    assert Role.read(environ) == Role.read_collective(environ) == expected


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, MPICH, SLURM, KUBERNETES])
def test_with_servers_it_makes_trainers(environ: dict[str, str]) -> None:
    role = Role.read({**environ, **SERVERS})
    assert (role.kind, role.servers, role.is_collective) == ("trainer", ("ps:6174",), False)
    assert role == Role.read({**environ, **SERVERS, "TRAINING_ROLE": "TRAINER"})


def test_the_role_maker_of_paddle_cloud_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("PADDLE_", "TRAINING_"))]:
        monkeypatch.delenv(name)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    maker = PaddleCloudRoleMaker(is_collective=True)
    assert (maker.worker_index(), maker.worker_num(), maker.node_num()) == (3, 5, 3)


@pytest.mark.parametrize("environ", [TORCHRUN, OPEN_MPI, MPICH, SLURM, KUBERNETES])
def test_the_variables_of_paddle_cloud_come_first(environ: dict[str, str]) -> None:
    rank = {
        "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": "a:1,b:1",
    }  # fmt: skip
    assert Role.read({**environ, **rank}) == Role.read(rank)
    server = {
        "TRAINING_ROLE": "PSERVER", "PADDLE_CURRENT_ENDPOINT": "ps:6174", **SERVERS,
        "PADDLE_TRAINERS_NUM": "2",
    }  # fmt: skip
    assert Role.read({**environ, **server}) == Role.read(server)


def test_hosts_that_a_launcher_does_not_name_are_asked_for() -> None:
    elsewhere = {**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}
    with pytest.raises(ConfigError, match="torchrun does not say on which hosts") as found:
        Role.read(elsewhere)
    assert "PADDLE_TRAINER_ENDPOINTS" in str(found.value.hint)
    role = Role.read({**elsewhere, "PADDLE_TRAINER_ENDPOINTS": "a:1,b:1"})
    assert (role.trainer_id, role.endpoint) == (1, "b:1")


def test_tasks_that_slurm_deals_out_in_turn_are_not_put_on_wrong_hosts() -> None:
    cyclic = {**SLURM, "SLURM_NODEID": "0"}  # task 3 would be on the second node
    with pytest.raises(ConfigError, match="Slurm does not say on which hosts"):
        Role.read(cyclic)


@pytest.mark.parametrize(
    "environ",
    [
        {"JOB_COMPLETION_INDEX": "4"},  # one of many separate experiments
        {k: v for k, v in SLURM.items() if "STEP" not in k},  # a batch script, outside srun
        {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_a_process_that_belongs_to_no_group_trains_by_itself(environ: dict[str, str]) -> None:
    assert Role.read(environ).kind == "local"


def test_the_innermost_launcher_counts() -> None:
    assert Role.read({**SLURM, **TORCHRUN}).trainers == 2
    direct = {**SLURM, "PMI_RANK": "3", "PMI_SIZE": "5"}  # srun --mpi=pmi2: Slurm knows the hosts
    assert Role.read(direct) == Role.read(SLURM)


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("n1", "n1"),
        ("n[1,3-4]", "n1 n3 n4"),
        ("a-[08-10]-x,b", "a-08-x a-09-x a-10-x b"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
    ],
)
def test_slurms_lists_of_nodes_are_written_out(nodes: str, names: str) -> None:
    hosts = names.split()
    environ = {
        "SLURM_PROCID": "0", "SLURM_NTASKS": str(len(hosts)), "SLURM_STEP_NODELIST": nodes,
    }  # fmt: skip
    ranks = ranks_in(environ)
    assert ranks is not None
    assert [endpoint.partition(":")[0] for endpoint in ranks.endpoints] == hosts


def test_a_wrong_rank_says_whose_it_is() -> None:
    with pytest.raises(ConfigError, match="trainer id 7 is out of range") as found:
        Role.read({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "7"})
    assert "read from the environment and Open MPI" in str(found.value)


@pytest.mark.parametrize(
    ("environ", "rank", "trainers", "servers"),
    [
        (PS_LITE, 1, 2, "127.0.0.1:9092 127.0.0.1:9093"),
        ({**PADDLE_JOB_PS, "PADDLE_TRAINERS_NUM": "2"}, 1, 2, "mnist-master-0:37777"),
        (TF_JOB, 1, 2, "j-ps-0.ns.svc:2222 j-ps-1.ns.svc:2222"),
        (
            {**OPERATOR, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINING_ROLE": "TRAINER"},
            1, 2, "wide-ps-0:2379 wide-ps-1:2379",
        ),
    ],
)  # fmt: skip
def test_trainers_of_launchers_that_know_servers(
    environ: dict[str, str], rank: int, trainers: int, servers: str
) -> None:
    role = Role.read(environ)
    assert (role.kind, role.trainer_id, role.trainers) == ("trainer", rank, trainers)
    assert role.servers == tuple(servers.split())


KUBERNETES_SERVER = {**KUBERNETES, "TRAINING_ROLE": "PSERVER", "POD_IP": "10.0.0.7",
                     "PADDLE_PSERVERS_IP_PORT_LIST": "ps-0.ps:6174,ps-1.ps:6174"}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "endpoint", "trainers"),
    [
        ({**PS_LITE, "DMLC_ROLE": "server", "DMLC_SERVER_ID": "1"}, "127.0.0.1:9093", 2),
        (
            {
                **PADDLE_JOB_PS, "HOSTNAME": "mnist-master-0", "PADDLE_MASTER": "10.0.0.7:37777",
                "PADDLE_SERVER_NUM": "1", "PADDLE_TRAINERS_NUM": "2",
            },
            "mnist-master-0:37777", 2,
        ),
        ({"TF_CONFIG": TF_JOB["TF_CONFIG"].replace('"worker", "index": 0', '"ps", "index": 1')},
         "j-ps-1.ns.svc:2222", 2),
        (OPERATOR, "wide-ps-1:2379", 2),
        (KUBERNETES_SERVER, "ps-1.ps:6174", 3),
        (
            {
                **SLURM, "TRAINING_ROLE": "PSERVER", "SLURM_PROCID": "0",
                "PADDLE_TRAINERS_NUM": "3", "PADDLE_PSERVERS_IP_PORT_LIST": "gpu09:6170",
            },
            "gpu09:6170", 3,
        ),
    ],
)  # fmt: skip
def test_servers_of_launchers(environ: dict[str, str], endpoint: str, trainers: int) -> None:
    role = Role.read(environ)
    assert (role.kind, role.endpoint, role.trainers) == ("server", endpoint, trainers)


def test_servers_whose_hosts_are_not_named_are_asked_for() -> None:
    elsewhere = {**PS_LITE, "DMLC_PS_ROOT_URI": "10.0.0.1"}
    with pytest.raises(ConfigError, match="needs PADDLE_PSERVERS_IP_PORT_LIST"):
        Role.read(elsewhere)
    role = Role.read({**elsewhere, "PADDLE_PSERVERS_IP_PORT_LIST": "a:1,b:1"})
    assert (role.servers, role.trainer_id) == (("a:1", "b:1"), 1)


def test_a_scheduler_has_nothing_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        Role.read({**PS_LITE, "DMLC_ROLE": "scheduler"})
    assert end.value.code == 0
    assert "needs no scheduler" in caplog.text


def test_kubeflow_does_not_count_workers_beside_masters() -> None:
    with pytest.raises(ConfigError, match="how many of the 3 pods are workers"):
        Role.read(PADDLE_JOB_PS)
    assert Role.read({**PADDLE_JOB_PS, "PADDLE_NNODES": "2", "HOSTNAME": "mnist-worker-0"})


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({**TORCHRUN, "PADDLE_TRAINERS_NUM": "4"}, "PADDLE_TRAINERS_NUM is 4, and torchrun says 2"),
        ({**PS_LITE, "TRAINING_ROLE": "PSERVER"}, "TRAINING_ROLE is PSERVER, and ps-lite says"),
        ({**KUBERNETES_SERVER, "JOB_COMPLETION_INDEX": "2"}, "PADDLE_PSERVER_ID = '2' is no place"),
        ({k: v for k, v in PS_LITE.items() if k != "DMLC_WORKER_ID"}, "DMLC_WORKER_ID is not set"),
        ({"TF_CONFIG": "{cluster"}, "TF_CONFIG is not what a TFJob sets"),
        ({**OPERATOR, "PADDLE_CURRENT_ENDPOINT": "x:1"}, "PADDLE_CURRENT_ENDPOINT is x:1, POD_IP"),
        ({**OPERATOR, "PADDLE_TRAINING_ROLE": "TRAINER"}, "contradict each other"),
    ],
)
def test_variables_that_contradict_each_other_are_named(
    environ: dict[str, str], names: str
) -> None:
    with pytest.raises(ConfigError, match=names):
        Role.read(environ)


@pytest.mark.parametrize("index", range(5))
def test_the_first_ranks_are_servers_if_told_so(index: int) -> None:
    task = {**SLURM, "SLURM_PROCID": str(index), "SLURM_NODEID": str(index // 2)}
    hosts = "gpu09:6170 gpu09:6171 gpu10:6170 gpu10:6171 login:6170".split()
    role = Role.read({**task, "BIREME_SERVERS": "2"})
    assert (role.servers, role.trainers) == (tuple(hosts[:2]), 3)
    assert role.trainer_endpoints == tuple(hosts[2:])
    assert role.endpoint == hosts[index]
    assert role.is_server == (index < 2)
    assert role.trainer_id == max(0, index - 2)
    again = Role.read(role.variables)  # in PaddleCloud's words
    assert again == role


def test_servers_need_trainers() -> None:
    with pytest.raises(ConfigError, match="BIREME_SERVERS = 2 leaves no trainer"):
        Role.read({**OPEN_MPI, "BIREME_SERVERS": "2"})
    assert Role.read({**OPEN_MPI, "BIREME_SERVERS": "0"}) == Role.read(OPEN_MPI)


def test_every_launcher_is_tested() -> None:
    recorded = (PS_LITE, TORCHRUN, OPEN_MPI, MPICH, SLURM, PADDLE_JOB, TF_JOB, KUBERNETES)
    every = [ranks_in(e) for e in recorded]
    assert [ranks.cluster for ranks in every if ranks] == [cluster.name for cluster in CLUSTERS]


def test_a_script_finds_its_own_port_where_the_environment_names_the_first() -> None:
    environ = {**SLURM, "BIREME_SERVERS": "4", "PADDLE_PORT": "7000"}
    first = Role.read(environ)
    adopted((), environ)
    assert (environ["PADDLE_PORT"], environ["PADDLE_CURRENT_ENDPOINT"]) == ("7001", "gpu10:7001")
    assert Role.read(environ) == first

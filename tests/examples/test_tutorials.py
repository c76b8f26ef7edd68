"""The scripts of examples/tutorials run as their first lines say, on the CPU."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = [pytest.mark.wire, pytest.mark.slow]

TUTORIALS = Path(__file__).resolve().parents[2] / "examples" / "tutorials"
LAUNCH = ("run", "--cpu", "-m", "paddle.distributed.launch")


def bireme(folder: Path, *words: str, **environ: str) -> str:
    """What a command of bireme prints; it must succeed."""
    ran = subprocess.run(
        [sys.executable, "-m", "bireme", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def costs(out: str) -> list[float]:
    return [float(value) for value in re.findall(r"step\d+ cost=([\d.]+)", out)]


def learns(found: list[float]) -> bool:
    return sum(found[-3:]) < 0.5 * sum(found[:3])


def test_servers_and_trainers_of_one_script_learn(tmp_path: Path) -> None:
    out = bireme(tmp_path, "launch", "--servers", "2", "--trainers", "2",
                 str(TUTORIALS / "pserver.py"))  # fmt: skip
    assert learns(costs(out))
    assert learns(costs((tmp_path / "log" / "trainerlog.1").read_text()))


def test_trainers_without_servers_learn(tmp_path: Path) -> None:
    out = bireme(tmp_path, "launch", "--mode", "nccl2", str(TUTORIALS / "nccl2.py"))
    assert learns(costs(out))


@pytest.mark.parametrize("devices", ["0,1", "0,1,2,3,4,5,6,7"])
def test_the_fleet_program_learns_on_two_and_eight_processes(devices: str, tmp_path: Path) -> None:
    script = str(TUTORIALS / "fleet_mlp.py")
    out = bireme(
        tmp_path, *LAUNCH, f"--selected_gpus={devices}", "--log_dir", "mylog", script, "saved"
    )
    assert learns(costs(out))
    logs = sorted(path.name for path in (tmp_path / "mylog").glob("workerlog.*"))
    assert logs == [f"workerlog.{device}" for device in devices.split(",")]
    assert (tmp_path / "saved" / "fc_0.w_0").exists()


def test_the_tuned_program_fetches_every_second_step(tmp_path: Path) -> None:
    script = str(TUTORIALS / "fleet_tuned.py")
    out = bireme(tmp_path, *LAUNCH, "--selected_gpus=0,1", script, FLAGS_sync_nccl_allreduce="1")
    found = re.findall(r"step(\d+) cost", out)
    assert sorted(set(map(int, found))) == list(range(0, 40, 2))
    assert "nccl_comm_num = 1, since all trainers are on one host" in out


def test_local_sgd_learns(tmp_path: Path) -> None:
    script = str(TUTORIALS / "fleet_local_sgd.py")
    out = bireme(tmp_path, *LAUNCH, "--selected_gpus=0,1", "--log_dir", "mylog", script)
    assert learns(costs(out))


def test_eight_processes_on_two_nodes_reduce_by_node(
    tmp_path: Path, free_port: Callable[[], int]
) -> None:
    script = str(TUTORIALS / "train_fleet_static_communication_topology.py")
    nodes, port = ("127.0.0.1", "127.0.0.2"), free_port()

    def node(address: str) -> str:
        return bireme(
            tmp_path, *LAUNCH, "--selected_gpus=0,1,2,3", f"--cluster_node_ips={','.join(nodes)}",
            f"--node_ip={address}", f"--started_port={port}", "--log_dir", address, script,
        )  # fmt: skip

    with ThreadPoolExecutor(2) as pool:
        outs = list(pool.map(node, nodes))
    assert all("hierarchical: True" in out for out in outs)
    losses = [float(x) for x in re.findall(r"batch \d\] loss: ([\d.]+)", outs[0])]
    assert losses[-1] < losses[0]


def test_on_one_node_reduction_is_flat_and_says_so(tmp_path: Path) -> None:
    script = str(TUTORIALS / "train_fleet_static_communication_topology.py")
    out = bireme(tmp_path, *LAUNCH, "--gpus=0,1", script)
    assert "use_hierarchical_allreduce = False, since all workers are on one host" in out
    assert "hierarchical: False" in out


def test_the_fused_program_trains(tmp_path: Path) -> None:
    script = str(TUTORIALS / "train_fleet_static_op_fusion.py")
    out = bireme(tmp_path, *LAUNCH, "--gpus=0,1", script)
    assert "the number of all_reduce ops is 1." in out
    assert re.search(r"\[Epoch 0, batch 5\] loss: [\d.]+, acc1: [\d.]+, acc5: [\d.]+", out)


SMALL = ("--size", "32", "--batch", "8", "--batches", "6")
PRINTED = r"\[Epoch 0, batch [05]\] loss: \d+\.\d{5}, acc1: \d\.\d{5}, acc5: \d\.\d{5}"


def in_order(out: str, *lines: str) -> bool:
    """Whether the lines follow one another in the output, with others between."""
    return re.search(".*?".join(map(re.escape, lines)), out, re.DOTALL) is not None


def test_resnet50_prints_the_lines_of_the_tutorial_on_fusion(tmp_path: Path) -> None:
    script = str(TUTORIALS.parent / "resnet" / "train_fleet_static_op_fusion.py")
    out = bireme(tmp_path, *LAUNCH, "--gpus=0,1", script, *SMALL)
    assert in_order(
        out,
        "-----------  Configuration Arguments -----------",
        "Default use collective mode",
        "Distributed Envs",
        "Currently, fuse_broadcast_ops only works under Reduce mode.",
        "---  detected 16 subgraphs",
        "---  detected 16 subgraphs",
        "Find momentum operators : 161, and 161 for dense gradients. To make the speed faster, "
        "those optimization are fused during training.",
        "Find all_reduce operators: 161. To make the speed faster, some all_reduce ops are fused "
        "during training, after fusion, the number of all_reduce ops is 6.",
        "[Epoch 0, batch 0] loss: ",
        "[Epoch 0, batch 5] loss: ",
    )
    assert len(re.findall(PRINTED, out)) == 2


def test_resnet50_prints_the_lines_of_the_tutorial_on_topology(tmp_path: Path) -> None:
    script = str(TUTORIALS.parent / "resnet" / "train_fleet_static_communication_topology.py")
    out = bireme(tmp_path, *LAUNCH, "--gpus=0,1", script, *SMALL)
    assert in_order(
        out,
        "Distributed Envs",
        "use_hierarchical_allreduce = False, since all workers are on one host",
        "after fusion, the number of all_reduce ops is 5.",
        "[Epoch 0, batch 0] loss: ",
        "[Epoch 0, batch 5] loss: ",
    )
    assert len(re.findall(PRINTED, out)) == 2


def test_images_are_read_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(3):
            image.new("RGB", (9, 7), (label * 255, 0, 0)).save(tmp_path / name / f"{i}.png")
    monkeypatch.syspath_prepend(str(TUTORIALS.parent / "resnet"))
    images = __import__("images").Images(str(tmp_path), 4)
    assert (images.classes, images.count) == (2, 6)
    for pixels, labels in images.batches(0, 1, 2, 3):
        assert pixels.shape == (3, 3, 4, 4)
        assert (pixels[:, 0, 0, 0] == labels[:, 0]).all()

"""HDFSClient over file systems of fsspec, and Fleet's checkpoints there."""

from pathlib import Path

import numpy as np
import pytest

import bireme as fluid
from bireme.contrib.hdfs import HDFSClient, getfilelist, multi_download, multi_upload
from bireme.errors import ConfigError, PeerError
from bireme.fleet.api import hdfs as fleet_hdfs
from bireme.fleet.api.collective import Collective, RemoteFS, TrainStatus
from bireme.fleet.scripts import names

pytest.importorskip("upath", reason="bireme[remote] is not installed")


@pytest.fixture(params=["memory", "local"])
def configs(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Settings whose root is empty."""
    (tmp_path / "far").mkdir()
    root = tmp_path / "far"
    return {"fs.default.name": f"{request.param}://{root}", "hadoop.job.ugi": "user,password"}


@pytest.fixture
def near(tmp_path: Path) -> Path:
    """Three local files in two directories."""
    (tmp_path / "near" / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (tmp_path / "near" / name).write_text(f"this is {name}\n")
    return tmp_path / "near"


def test_files_go_there_and_come_back(configs: dict[str, str], near: Path, tmp_path: Path) -> None:
    client = HDFSClient("/no/hadoop", configs)
    client.makedirs("/d")
    assert client.upload("/d/a", str(near / "a"))
    assert not client.upload("/d/a", str(near / "b"))
    assert client.upload("/d/a", str(near / "b"), overwrite=True)
    assert (client.is_exist("/d/a"), client.is_dir("/d/a"), client.is_dir("/d")) == (1, 0, 1)
    assert client.download("/d/a", str(tmp_path / "back" / "a"))
    assert (tmp_path / "back" / "a").read_text() == "this is b\n"
    assert not client.download("/d/a", str(tmp_path / "back" / "a"))
    assert not client.download("/d/none", str(tmp_path / "back" / "none"))
    assert not client.rename("/d/none", "/d/x")
    assert client.rename("/d/a", "/d/x")
    assert client.ls("/d") == ["/d/x"]
    assert client.delete("/d")
    assert not client.is_exist("/d/x")


def test_trainers_share_the_files_of_a_directory(
    configs: dict[str, str], near: Path, tmp_path: Path
) -> None:
    client = HDFSClient("/no/hadoop", configs)
    multi_upload(client, "/d", str(near))
    assert sorted(client.lsr("/d")) == ["/d/a", "/d/b", "/d/sub/c"]
    out = tmp_path / "out"
    shares = [multi_download(client, "/d", str(out), trainer, 2) for trainer in (0, 1)]
    assert [len(share) for share in shares] == [2, 1]
    assert sorted([*shares[0], *shares[1]]) == getfilelist(str(out))
    assert (out / "sub" / "c").read_text() == "this is sub/c\n"


def test_the_client_of_fleet_reads_and_uploads_directories(
    configs: dict[str, str], near: Path, tmp_path: Path
) -> None:
    client = fleet_hdfs.HDFSClient("/no/hadoop", configs)
    assert client.upload("/d", str(near))
    assert not client.upload("/d", str(near))
    assert client.cat("/d/sub/c") == "this is sub/c"
    assert (client.is_file("/d/a"), client.is_file("/d"), client.cat("/d/none")) == (1, 0, "")
    assert sorted(client.lsr("/d", excludes=["sub"])) == ["/d/a", "/d/b"]
    assert client.download("/d", str(tmp_path / "back"))
    assert (tmp_path / "back" / "sub" / "c").exists()
    files = list("abcde")
    assert [client.split_files(files, i, 2) for i in (0, 1)] == [["a", "b", "c"], ["d", "e"]]


def test_what_is_missing_is_told(configs: dict[str, str], near: Path) -> None:
    with pytest.raises(ConfigError, match=r"fs\.default\.name is ''"):
        HDFSClient("/no/hadoop", {})
    client = HDFSClient("/no/hadoop", configs)
    with pytest.raises(PeerError, match="cannot write /d/none"):
        client.put("/d/none", str(near / "none"))
    with pytest.raises(ConfigError, match="does not unzip"):
        client.download("/d", "d", unzip=True)


def test_scripts_find_it_under_fluids_names() -> None:
    found = names.find("paddle.fluid.contrib.utils", "HDFSClient")
    assert found is HDFSClient
    assert names.find("paddle.fluid.contrib.utils", "multi_download") is multi_download
    found = names.find("paddle.fluid.incubate.fleet.utils.hdfs", "HDFSClient")
    assert found is fleet_hdfs.HDFSClient


def test_checkpoints_of_fleet_go_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root, fs = f"memory:/{tmp_path}/far", RemoteFS()
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        fluid.layers.fc(fluid.layers.data("x", [2]), 1)
    weight, exe = main.all_parameters()[0], fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        before = np.array(fluid.global_scope().find_var(weight.name).get_tensor())
        for epoch in range(3):
            Collective().save_check_point(exe, root, TrainStatus(epoch), main, fs)
        Collective().clean_redundant_check_points(root, fs, 2)
        assert len(fs.list_dirs(root)) == 2
        exe.run(startup)
        assert Collective().load_check_point(exe, root, 0, main, fs) == TrainStatus(2)
        after = np.array(fluid.global_scope().find_var(weight.name).get_tensor())
        np.testing.assert_array_equal(before, after)

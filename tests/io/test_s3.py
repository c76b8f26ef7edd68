"""A store that speaks S3, on loopback: data, models and checkpoints of a job that is killed.

Needs moto's server and s3fs.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.export import save_onnx
from bireme.paths import path_of

pytestmark = [pytest.mark.wire, pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).resolve().parents[2]
STEPS, KILLED_AT = 40, 25


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    started = server.ThreadedMotoServer(port=0, verbose=False)
    started.start()
    _, port = started.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "none")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import s3fs

        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket"
    started.stop()


def test_a_model_is_saved_there_loaded_and_exported(bucket: str) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 4])
        y = fluid.layers.fc(x, 3, act="softmax")
    exe, given = fluid.Executor(fluid.CPUPlace()), np.ones((2, 4), "float32")
    with fluid.scope_guard(fluid.Scope()):
        exe.run(startup)
        (wanted,) = exe.run(main, {"x": given}, [y])
        fluid.io.save_inference_model(f"{bucket}/model", ["x"], [y], exe, main)
    with fluid.scope_guard(fluid.Scope()):
        program, names, targets = fluid.io.load_inference_model(f"{bucket}/model", exe)
        np.testing.assert_array_equal(exe.run(program, {names[0]: given}, targets)[0], wanted)
    save_onnx(f"{bucket}/model", f"{bucket}/model.onnx")
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path_of(f"{bucket}/model.onnx").read_bytes())
    np.testing.assert_allclose(session.run(None, {"x": given})[0], wanted, atol=1e-5)


def test_a_data_set_is_read_from_there(bucket: str) -> None:
    path_of(f"{bucket}/data/part-0").write_text("2 1 2 1 0.5\n1 3 1 1.5\n")
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()):
        ids = fluid.data("ids", [None, 1], "int64", lod_level=1)
        label = fluid.data("label", [None, 1])
    made: Any = fluid.DatasetFactory().create_dataset("QueueDataset")
    made.set_batch_size(2)
    made.set_use_var([ids, label])
    made.set_filelist([f"{bucket}/data/part-0"])
    (feed,) = made.feeds()
    np.testing.assert_array_equal(np.array(feed["ids"]).ravel(), [1, 2, 3])
    np.testing.assert_array_equal(np.array(feed["label"]).ravel(), [0.5, 1.5])


KILLED = f"""
import os, pathlib, resume
whole, killed = resume.batch, pathlib.Path("killed")

def batch(step, trainer, size=32):
    if (step, trainer) == ({KILLED_AT}, 1) and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), 9)
    return whole(step, trainer, size)

if "FLAGS_checkpoint_dir" in os.environ:
    resume.batch = batch
resume.main({STEPS})
"""


def test_a_killed_job_goes_on_from_there(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)

    def launched(*options: str, **variables: str) -> tuple[str, str]:
        """What was printed, and the loss after the last twenty steps."""
        paths = {"PYTHONPATH": str(ROOT / "examples"), **variables}
        done = subprocess.run(
            [sys.executable, "-m", "bireme", "launch", *options, "killed.py"],
            cwd=tmp_path, env={**os.environ, **paths}, text=True, capture_output=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stdout.split("step 20: ")[-1].split()[1]

    _, wanted = launched()
    saving = {
        "FLAGS_checkpoint_dir": f"{bucket}/kept",
        "FLAGS_checkpoint_every_steps": "10",
    }
    printed, found = launched("--restart", "1", **saving)
    assert "restarting it alone (1 of 1)" in printed
    assert found == wanted
    verified = [
        sys.executable,
        "-m",
        "bireme",
        "checkpoint",
        "verify",
        saving["FLAGS_checkpoint_dir"],
    ]
    done = subprocess.run(verified, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STEPS}-" in done.stdout

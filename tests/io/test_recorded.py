"""Models that Fluid 1.8.5 saved load here, compute what they computed there, and go on training.

With FLUID_PYTHON naming a Python that has PaddlePaddle 1.8.5, the other way round as well.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.ir.proto import to_bytes

RECORDED = Path(__file__).parent.parent / "golden" / "fluid185"
EXPECTED = json.loads((RECORDED / "expected.json").read_text())
LENGTHS = [2, 1, 3]
PEER = os.environ.get("FLUID_PYTHON", "")


def build() -> tuple[Any, Any, Any, Any]:
    """The recorded model: main and startup program, probabilities, loss."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [5], dtype="float32")
        label = fluid.layers.data("label", [1], dtype="int64")
        ids = fluid.layers.data("ids", [1], dtype="int64", lod_level=1)
        emb = fluid.layers.embedding(ids, [11, 3], param_attr=fluid.ParamAttr(name="emb"))
        both = fluid.layers.concat([x, fluid.layers.sequence_pool(emb, "sum")], axis=1)
        prob = fluid.layers.fc(fluid.layers.fc(both, 6, act="tanh"), 3, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prob, label))
        fluid.optimizer.Adam(0.01).minimize(loss)
    return main, startup, prob, loss


def feed(step: int, *, label: bool = True) -> dict[str, Any]:
    rs = np.random.RandomState(step)
    ids = rs.randint(0, 11, size=(6, 1)).astype("int64")
    found = {"ids": fluid.create_lod_tensor(ids, [LENGTHS], fluid.CPUPlace())}
    found["x"] = rs.standard_normal((3, 5)).astype("float32")
    if label:
        found["label"] = rs.randint(0, 3, size=(3, 1)).astype("int64")
    return found


@pytest.fixture
def exe() -> Iterator[Any]:
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as made:
        yield made


@pytest.mark.parametrize(
    ("folder", "files"), [("inference", (None, None)), ("inference_combined", ("model", "params"))]
)
def test_a_recorded_inference_model_computes_the_recorded_output(
    exe: Any, folder: str, files: tuple[str | None, str | None]
) -> None:
    program, feeds, fetches = fluid.io.load_inference_model(str(RECORDED / folder), exe, *files)
    assert feeds == ["x", "ids"]
    (out,) = exe.run(program, feed(9, label=False), fetches)
    np.testing.assert_allclose(out, EXPECTED["prob"], atol=1e-6)


def load_separate(exe: Any, main: Any) -> None:
    fluid.io.load_persistables(exe, str(RECORDED / "vars"), main)


def load_combined(exe: Any, main: Any) -> None:
    fluid.io.load_persistables(exe, str(RECORDED / "combined"), main, filename="all")


def load_state(exe: Any, main: Any) -> None:
    fluid.load(main, str(RECORDED / "state" / "model"), exe)


@pytest.mark.parametrize("load", [load_separate, load_combined, load_state])
def test_a_recorded_training_goes_on(exe: Any, load: Any) -> None:
    main, startup, _, loss = build()
    exe.run(startup)
    load(exe, main)
    losses = [float(exe.run(main, feed(s), [loss])[0][0]) for s in range(3, 6)]
    np.testing.assert_allclose(losses, EXPECTED["after"], rtol=1e-5)


def test_what_was_loaded_is_saved_byte_for_byte(exe: Any, tmp_path: Path) -> None:
    main, startup, _, _ = build()
    exe.run(startup)
    load_separate(exe, main)
    fluid.io.save_persistables(exe, str(tmp_path / "vars"), main)
    fluid.io.save_persistables(exe, str(tmp_path / "combined"), main, filename="all")
    for folder in ("vars", "combined"):
        names = sorted(p.name for p in (RECORDED / folder).iterdir())
        assert sorted(p.name for p in (tmp_path / folder).iterdir()) == names
        for name in names:
            mine = (tmp_path / folder / name).read_bytes()
            assert mine == (RECORDED / folder / name).read_bytes(), name


def test_an_inference_model_survives_our_own_save(exe: Any, tmp_path: Path) -> None:
    main, startup, prob, _ = build()
    exe.run(startup)
    load_separate(exe, main)
    names = fluid.io.save_inference_model(str(tmp_path), ["x", "ids"], [prob], exe, main)
    assert names == [prob.name]
    program, _, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
    (out,) = exe.run(program, feed(9, label=False), fetches)
    np.testing.assert_allclose(out, EXPECTED["prob"], atol=1e-6)


THERE = """
import sys, json
import numpy as np
import paddle.fluid as fluid
folder = sys.argv[1]
LENGTHS = [2, 1, 3]
def feed(step):
    rs = np.random.RandomState(step)
    ids = rs.randint(0, 11, size=(6, 1)).astype("int64")
    f = {"ids": fluid.create_lod_tensor(ids, [LENGTHS], fluid.CPUPlace())}
    f["x"] = rs.standard_normal((3, 5)).astype("float32")
    f["label"] = rs.randint(0, 3, size=(3, 1)).astype("int64")
    return f
exe = fluid.Executor(fluid.CPUPlace())
program, feeds, fetches = fluid.io.load_inference_model(folder + "/model", exe)
given = feed(9)
out = exe.run(program, feed={n: given[n] for n in feeds}, fetch_list=fetches)[0]
train = fluid.Program.parse_from_string(open(folder + "/train.pb", "rb").read())
fluid.io.load_persistables(exe, folder + "/vars", train)
name = open(folder + "/loss").read()
losses = [float(exe.run(train, feed=feed(s), fetch_list=[name])[0][0]) for s in range(3, 6)]
print(json.dumps({"out": out.tolist(), "losses": losses}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not PEER, reason="FLUID_PYTHON names no Python with PaddlePaddle 1.8.5")
def test_the_original_computes_and_trains_what_we_saved(exe: Any, tmp_path: Path) -> None:
    main, startup, prob, loss = build()
    exe.run(startup)
    load_separate(exe, main)
    fluid.io.save_inference_model(str(tmp_path / "model"), ["x", "ids"], [prob], exe, main)
    fluid.io.save_persistables(exe, str(tmp_path / "vars"), main)
    (tmp_path / "train.pb").write_bytes(to_bytes(main))
    (tmp_path / "loss").write_text(loss.name)
    done = subprocess.run(
        [PEER, "-c", THERE, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found["out"], EXPECTED["prob"], atol=1e-6)
    np.testing.assert_allclose(found["losses"], EXPECTED["after"], rtol=1e-5)

"""Training scripts in the style of Fluid 1.x run unedited, and learn.

With FLUID_PYTHON naming a Python that has PaddlePaddle 1.8.5, they print the same numbers there:
both load the parameters that bireme drew and saved in a run without training. Long runs drift apart:
a sign near zero that rounding turns is enough.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent
FLUID = os.environ.get("FLUID_PYTHON", "")
RUN = [sys.executable, "-W", "ignore", "-m", "bireme", "run"]
LOSS = re.compile(r"\w*(?:loss|cost|ppl)\w*:? (-?\d+\.\d+)")

pytestmark = [pytest.mark.wire, pytest.mark.slow]


class Script(NamedTuple):
    """A script, and the arguments with which it saves parameters without training them."""

    path: str
    untrained: str
    arguments: str = ""
    agreement: float = 1e-4


LOCAL = [
    Script("language/basic_lstm_lm.py", "--max_epoch 1 --base_learning_rate 0"),
    Script("language/bert.py", "--epoch 0"),
    Script("language/seq2seq.py", "--pass_num 0", agreement=1e-3),
    Script("language/transformer.py", "--epoch 0", agreement=1e-3),
    Script("recommendation/deepfm.py", "--num_epoch 0"),
    Script("recommendation/din.py", "--epoch_num 0"),
    Script("recommendation/word2vec.py", "--num_passes 0", "--is_local --is_sparse"),
    Script("vision/cyclegan.py", "--epoch 0", agreement=2e-3),
    Script("vision/metric_learning.py", "--total_iter_num 0"),
    Script("vision/ocr_attention.py", "--pass_num 0"),
    Script("vision/ocr_ctc.py", "--pass_num 0"),
    Script("vision/resnet.py", "--num_epochs 1 --lr 0"),
    Script("vision/ssd.py", "--epoc_num 0"),
    # after batch normalization of few values, signs near zero differ, and leaky slopes with them
    Script("vision/yolov3.py", "--max_iter 1 --learning_rate 0", "--max_iter 12", 0.06),
]


def printed(folder: Path, command: Sequence[str]) -> str:
    """What a command prints in a folder of its own; it must not fail."""
    folder.mkdir()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def lines(text: str) -> list[str]:
    """The lines that tell a loss or a sentence that was found, numbers taken out."""
    kept = [line for line in text.splitlines() if LOSS.search(line) or " best " in line]
    return [re.sub(r"-?\d+\.\d+", "?", line) for line in kept]


def losses(text: str) -> list[float]:
    """Every loss among the printed lines, in order."""
    return [float(number) for number in LOSS.findall(text)]


@pytest.mark.parametrize("script", LOCAL, ids=lambda script: Path(script.path).stem)
def test_a_script_learns_and_prints_what_fluid_prints(tmp_path: Path, script: Script) -> None:
    path, drawn = str(SCRIPTS / script.path), str(tmp_path / "drawn")
    start = [path, *script.arguments.split(), *script.untrained.split(), "--model_dir", drawn]
    printed(tmp_path / "first", [*RUN, *start])
    command = [path, *script.arguments.split(), "--init_model", drawn]
    text = printed(tmp_path / "ours", [*RUN, *command])
    ours = losses(text)
    third = len(ours) // 3
    assert third
    assert np.isfinite(ours).all()
    assert np.mean(ours[-third:]) < 0.9 * np.mean(ours[:third]), ours
    if FLUID:
        of_fluid = printed(tmp_path / "fluid", [FLUID, "-W", "ignore", *command])
        assert lines(text) == lines(of_fluid)
        np.testing.assert_allclose(ours, losses(of_fluid), rtol=script.agreement)


@pytest.mark.parametrize(
    ("path", "arguments", "local"),
    [
        ("recommendation/din.py", "--is_local 0", "--epoch_num 2"),
        ("recommendation/word2vec.py", "--is_sparse", "--is_local --num_passes 2"),
    ],
)
def test_roles_are_filled_into_the_arguments_of_a_script(
    tmp_path: Path, path: str, arguments: str, local: str
) -> None:
    """Two servers, two trainers; what trainer 0 saved is trained further by one process."""
    saved = tmp_path / "saved"
    script = str(SCRIPTS / path)
    cluster = [*RUN[:-1], "launch", "--servers", "2", "--trainers", "2", script]
    filled = "--role {role} --trainer_id {index} --endpoints {servers} --trainers {trainers}"
    filled += f" --current_endpoint {{endpoint}} --model_dir {saved} {arguments}"
    found = losses(printed(tmp_path / "job", [*cluster, *filled.split()]))
    assert found[-1] < 0.95 * found[0], found
    further = [script, *local.split(), "--init_model", str(saved)]
    ours = losses(printed(tmp_path / "further", [*RUN, *further]))
    assert ours[-1] < 0.95 * found[0]
    if FLUID:
        theirs = losses(printed(tmp_path / "fluid", [FLUID, "-W", "ignore", *further]))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)

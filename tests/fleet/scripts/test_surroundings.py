"""What Python, NumPy and Pillow had in Fluid's time is there under `bireme run`."""

import subprocess
import sys
from pathlib import Path

import pytest

from bireme.fleet.scripts import removed, text_forms

BODY = """
import collections, time, inspect, fractions, math
import numpy as np
import paddle.fluid as fluid
from distutils.util import strtobool
from distutils.version import LooseVersion
assert strtobool("yes") and LooseVersion("1.10.0") > LooseVersion("1.9")
assert issubclass(list, collections.Iterable) and time.clock() > 0
assert fractions.gcd(4, 6) == 2
assert inspect.getargspec(lambda a, b=1: a).args == ["a", "b"]
assert np.float is float and np.bool is not None and np.asscalar(np.array([2])) == 2
assert np.product([2, 3]) == 6 and np.NaN != np.NaN and np.float_ is np.float64
loss, rows = fluid.Executor(fluid.CPUPlace()).run(fetch_list=[
    fluid.layers.fill_constant([1, 1], "float32", 0.25),
    fluid.layers.fill_constant([2, 1], "float32", 3)])
print("%f %d" % (loss, loss), float(loss), int(loss), math.sqrt(loss), "%f" % (2 * loss))
print(*("%d: %.2f" % (i, row) for i, row in enumerate(rows)))
"""


@pytest.mark.wire
def test_old_names_work_and_fetched_arrays_of_one_element_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BODY)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bireme", "run", "train.py"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "0.250000 0 0.25 0 0.5 0.500000",
        "0: 3.00 1: 3.00",
    ]


def test_versions_compare_by_their_parts() -> None:
    version = removed.LooseVersion
    assert version("1.10") > version("1.9") > "1.8.5"
    assert version("2.0.0rc1") < version("2.0.1")
    assert str(version("1.8.5")) == "1.8.5"


def test_a_word_that_is_no_truth_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="'perhaps'"):
        removed.strtobool("perhaps")


def test_text_forms_agree_with_fluid() -> None:
    # recorded from 1.8.5
    assert [text_forms.round(x) for x in (-0.5, 0.5, 2.5, -2.5, 1)] == [-1.0, 1.0, 3.0, -3.0, 1.0]
    assert text_forms.round(2.675, 2) == 2.68
    assert text_forms.to_text([b"a", "b"]) == ["a", "b"]
    assert text_forms.to_text({"a": b"b"}) == {"a": "b"}
    assert text_forms.to_bytes(["x", b"y"]) == [b"x", b"y"]
    kept = [b"a"]
    assert text_forms.to_text(kept, inplace=True) is kept
    assert kept == ["a"]
    assert text_forms.get_exception_message(ValueError("hi")) == "hi"

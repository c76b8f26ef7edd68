"""Watching runs: values that are not finite are named, operators are timed."""

import numpy as np
import pytest

from bireme import flags
from bireme.errors import ProgramError
from bireme.runtime.executor import Executor
from bireme.runtime.observe import start_recording, stop_recording
from bireme.runtime.scope import Scope

from .programs import PLACE, Builder


@pytest.fixture
def checking():
    flags.set_flags({"check_nan_inf": True})


def logs():
    b = Builder()
    b.op("scale", "z", X=b.op("log", "y", X=b.data("x", [-1])), scale=2.0)
    return b


@pytest.mark.usefixtures("checking")
def test_the_first_operator_that_is_not_finite_is_named():
    b = logs()
    with Executor(PLACE) as exe, np.errstate(all="ignore"):
        x = np.array([1, -1, 0], "float32")
        with pytest.raises(ProgramError, match="'log' wrote 1 NaN and 1 infinite of 3") as caught:
            exe.run(b.program, {"x": x}, ["z"], scope=Scope())
        assert "programs.py" in str(caught.value)
        assert exe.run(b.program, {"x": x[:1]}, ["z"], scope=Scope())[0].tolist() == [0]


def test_without_the_flag_nothing_is_checked():
    b = logs()
    with Executor(PLACE) as exe, np.errstate(all="ignore"):
        (z,) = exe.run(b.program, {"x": -np.ones(1, "float32")}, ["z"], scope=Scope())
    assert np.isnan(z).all()


def test_a_recording_holds_every_operator_in_order():
    b = logs()
    with Executor(PLACE) as exe:
        start_recording()
        exe.run(b.program, {"x": np.ones(4, "float32")}, ["z"], scope=Scope())
        spans = stop_recording().spans
        exe.run(b.program, {"x": np.ones(4, "float32")}, ["z"], scope=Scope())
    assert [span.type for span in spans] == ["log", "scale"]
    assert spans[0].start <= spans[0].stop <= spans[1].start
    assert spans[0].bytes == 16
    assert stop_recording().spans == []

"""What `bireme launch` leaves of a job: a recording, event files, one trace; and its dashboard."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from bireme.errors import ConfigError
from bireme.fleet.launcher import observing
from bireme.fleet.launcher.job import Job
from bireme.fleet.telemetry.recording import replayed

LAUNCH = [sys.executable, "-m", "bireme", "launch", "--servers", "1", "--trainers", "1"]
DEMO = str(Path(__file__).parents[3] / "fleet" / "demo_script.py")


@pytest.mark.parametrize(
    ("wish", "module", "extra"),
    [("dashboard", "bokeh", "dashboard"), ("tensorboard", "tensorboardX", "tensorboard")],
)
def test_what_is_missing_is_said_before_anything_starts(
    wish: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"bireme\[{extra}\]"):
        observing.check(Job(__file__, **{wish: True}))


def test_a_dashboard_needs_admin_ports() -> None:
    with pytest.raises(ConfigError, match="--no-admin"):
        Job(__file__, dashboard=True, admin=False).check()


def test_recordings_of_an_earlier_job_are_no_part_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "trace.trainer.7.json").write_text("{}")
    said: list[str] = []
    job = Job(__file__, trace=True)
    assert observing.prepare_trace(job, tmp_path) == {"FLAGS_trace_dir": str(tmp_path)}
    observing.write_trace(job, tmp_path, said.append)
    assert "no trace" in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.wire
def test_a_job_leaves_a_recording_event_files_and_a_trace(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    words = [*LAUNCH, "--trace", "--tensorboard", "events", DEMO, "60"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "trace: log/trace.json" in ran.stdout
    last = replayed(tmp_path / "log")[-1].snapshot
    assert last is not None
    assert [one.process.exit_code for one in last.observed] == [0, 0]
    events = json.loads((tmp_path / "log" / "trace.json").read_text())["traceEvents"]
    named = {e["pid"]: e["args"]["name"].split(" (")[0] for e in events if e["name"] ==
             "process_name"}  # fmt: skip
    found = {(named[e["pid"]], e["name"]) for e in events if e["ph"] == "X"}
    assert {("trainer 0", "backward"), ("trainer 0", "mul"), ("server 0", "apply")} <= found
    starts = [e["ts"] for e in events if e["ph"] == "X" and e["name"] == "forward"]
    assert len(starts) >= 60
    again = [sys.executable, "-m", "bireme", "trace", "--out", "again.json"]
    assert subprocess.run(again, cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "again.json").exists()


@pytest.mark.wire
def test_who_has_ended_a_job_and_why_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text(
        "import os, time\n"
        "if os.environ['TRAINING_ROLE'] == 'TRAINER': raise ValueError('no data')\n"
        "time.sleep(60)\n"  # until the launcher ends it
    )
    words = [*LAUNCH, "--grace", "0.1", "fail.py"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    last = replayed(tmp_path / "log")[-1].snapshot
    assert last is not None
    server, trainer = (one.process for one in last.observed)
    assert (trainer.exit_code, trainer.error, trainer.blamed) == (1, "ValueError: no data", True)
    assert not server.blamed


@pytest.mark.slow
@pytest.mark.wire
def test_a_dashboard_is_served_while_the_job_runs(tmp_path: Path) -> None:
    pytest.importorskip("bokeh", reason="bireme[dashboard] is not installed")
    (tmp_path / "wait.py").write_text(
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"  # a file is the event
    )
    words = [*LAUNCH, "--dashboard", "wait.py"]
    job = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    try:
        url = next(line for line in job.stdout if line.startswith("dashboard: ")).split()[-1]
        with urllib.request.urlopen(url, timeout=30) as page:
            text = page.read().decode()
        assert "bireme" in text
        assert "cdn.bokeh.org" not in text
        (tmp_path / "go").touch()
        rest = job.stdout.read()
    finally:
        job.terminate() if job.poll() is None else None
        job.wait(30)
        job.stdout.close()
    assert "bireme dashboard --log-dir log" in rest
    with pytest.raises(OSError):  # noqa: PT011  # it is gone with the job
        urllib.request.urlopen(url, timeout=5)

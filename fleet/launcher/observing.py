"""What a launcher does so that its job can be looked at: the recording, event files for
TensorBoard, the dashboard, a trace of the whole run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bireme.errors import ConfigError
from bireme.extras import library

from ..telemetry import trace
from ..telemetry.job_file import Process
from ..telemetry.recording import Recorder
from ..telemetry.tensorboard import EventFiles
from .dashboard_process import shown
from .job import Job

__all__ = ["check", "observed", "prepare_trace", "write_trace"]

TRACE = "trace.json"
Say = Callable[[str], None]


def check(job: Job) -> None:
    """Whether everything that the job asks for is installed, before anything starts.

    Raises:
        ConfigError: a library is missing.
    """
    if job.dashboard:
        library("bokeh", "dashboard", "--dashboard")
    if job.tensorboard:
        library("tensorboardX", "tensorboard", "--tensorboard")


@contextmanager
def observed(
    job: Job, log_dir: Path, find: Callable[[], Sequence[Process]], say: Say
) -> Iterator[None]:
    """Record the job during the block if its processes have admin ports, and show it if asked."""
    if not job.admin:
        yield
        return
    with ExitStack() as stack:
        files = EventFiles(Path(job.tensorboard)) if job.tensorboard else None
        if files is not None:
            stack.callback(files.close)
        also = None if files is None else files.take
        try:
            recorder = Recorder(log_dir, find, append=job.append, also=also)
            stack.callback(_end, recorder, say)
        except OSError as error:  # a log ends no job
            say(f"the job is not recorded: cannot write {error.filename}: {error.strerror}")
        if job.dashboard:
            stack.enter_context(shown(log_dir, say))
        yield


def _end(recorder: Recorder, say: Say) -> None:
    recorder.close()
    if recorder.fault:
        say(f"the recording has ended early: {recorder.fault}")


# -- the trace -----------------------------------------------------------------------------------
def prepare_trace(job: Job, log_dir: Path) -> Mapping[str, str]:
    """Variables for every process; recordings of an earlier job are removed."""
    if not job.trace:
        return {}
    for path in log_dir.glob("trace.*.json"):
        path.unlink(missing_ok=True)
    return {"FLAGS_trace_dir": str(log_dir.absolute())}


def write_trace(job: Job, log_dir: Path, say: Say) -> None:
    """Put together what the processes have recorded."""
    if not job.trace:
        return
    try:
        trace.write(trace.merged(trace.left_in(log_dir)), log_dir / TRACE)
    except ConfigError as error:  # the job's own exit code counts
        say(f"no trace: {error}")
    else:
        say(f"trace: {log_dir / TRACE}, to be opened at https://ui.perfetto.dev")

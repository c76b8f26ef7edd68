"""The commands that look at a job: top, dashboard, trace, tensorboard."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from .telemetry.job_file import Process

__all__ = ["COMMANDS"]

log_dir_option = click.option(
    "--log-dir", default="log", show_default=True, type=click.Path(path_type=Path),
    help="Where the launcher of the job writes its logs.",
)  # fmt: skip


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Ctrl-C is how one leaves what is live."""
    from .signals import INTERRUPTED, ending

    try:
        with ending():
            yield
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise


def _finder(endpoints: Sequence[str], log_dir: Path) -> "Callable[[], Sequence[Process]]":
    """How to list the processes: those of the endpoints, else those of the job's file."""
    from .telemetry.asking import named
    from .telemetry.job_file import read

    return (lambda: named(endpoints)) if endpoints else (lambda: read(log_dir))


@click.command(short_help="A live table of a running cluster.")
@log_dir_option
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--interval", default=1.0, show_default=True, help="Seconds between two tables.")
@click.argument("endpoints", nargs=-1)
def top(endpoints: tuple[str, ...], log_dir: Path, once: bool, interval: float) -> None:
    """Watch a running cluster: one row per process, asked at its admin port.

    A job that `bireme launch` started from here is found by itself (--log-dir, if it was given
    one). For any other, set FLAGS_admin_port in each process and name the ports as HOST:PORT.

    \b
    state      running, starting, waits for trainer N, no answer, done, or exit CODE
    step       steps of a trainer, updates of a server
    loss       what minimize() was called on, if the script fetches it
    wait       how long a step waits for its round and the new parameters
    stale      others' steps between a trainer's pull and its push (0 in sync)
    in/s out/s bytes of gradients, parameters and rows

    \b
    bireme launch train.py &         bireme top
    bireme top --once --log-dir build/run/log
    bireme top 10.0.0.1:8000 10.0.0.2:8000
    """
    from .launcher.top import show
    from .signals import ending

    with ending() if once else _until_interrupted():
        show(_finder(endpoints, log_dir), once=once, interval=max(0.1, interval))


@click.command(short_help="A running or finished cluster in the browser.")
@log_dir_option
@click.option("--port", default=8787, show_default=True, help="Port on loopback; 0 picks one.")
@click.option("--any-port", is_flag=True, help="Take another port if that one is taken.")
@click.argument("endpoints", nargs=-1)
def dashboard(endpoints: tuple[str, ...], log_dir: Path, port: int, any_port: bool) -> None:
    """Show a job in the browser: processes, where step time goes, losses, staleness, bytes,
    memory, where slices lie, errors and logs.

    A running job that `bireme launch` started from here is followed, a finished one replayed from
    its log folder. For processes started otherwise, name their admin ports as HOST:PORT. The page
    is served on loopback only; from another machine use ssh -L 8787:localhost:8787 HOST. Needs
    Bokeh: pip install 'bireme[dashboard]'.

    \b
    bireme launch train.py &         bireme dashboard
    bireme dashboard --log-dir build/run/log
    bireme dashboard 10.0.0.1:8000 10.0.0.2:8000
    """
    from .dashboard.server import serve
    from .lifeline import follow_launcher

    follow_launcher()
    with _until_interrupted():
        ports = (port, 0) if any_port else (port,)
        serve(endpoints, log_dir, ports, lambda line: print(line, flush=True))


@click.command(short_help="One Chrome or Perfetto trace of all processes.")
@log_dir_option
@click.option("--seconds", default=2.0, show_default=True, type=click.FloatRange(0.01, 60),
              help="How long a running job is recorded.")  # fmt: skip
@click.option("--out", default="trace.json", show_default=True, type=click.Path(path_type=Path),
              help="The file to write.")  # fmt: skip
@click.argument("endpoints", nargs=-1)
def trace(endpoints: tuple[str, ...], log_dir: Path, seconds: float, out: Path) -> None:
    """Record what all processes of a job do, operator by operator, as one trace on one clock.

    A running job is recorded for some seconds from now on; of a finished one, what `bireme launch
    --trace` has recorded is put together. Open the file at https://ui.perfetto.dev or in Chrome at
    chrome://tracing. While it is recorded a job is slower: every operator is timed, and servers
    run updates one by one.

    \b
    bireme launch train.py &         bireme trace --seconds 3
    bireme trace 10.0.0.1:8000 10.0.0.2:8000
    """
    from .telemetry import trace as traces
    from .telemetry.asking import named
    from .telemetry.job_file import read_job

    job = None if endpoints else read_job(log_dir)
    if job is None or job.running:
        processes = named(endpoints) if job is None else job.processes
        parts = traces.recorded(processes, seconds)
    else:
        parts = traces.left_in(log_dir)
    made = traces.merged(parts)
    traces.write(made, out)
    click.echo(f"{out}: {len(made['traceEvents']):,} events of {len(parts)} processes")


@click.command(short_help="TensorBoard event files of a recorded cluster.")
@log_dir_option
@click.argument("folder", type=click.Path(path_type=Path))
def tensorboard(log_dir: Path, folder: Path) -> None:
    """Write the recording of a job to FOLDER as event files: `tensorboard --logdir FOLDER` shows
    them, a run per process.

    To write them while a job runs, start it with bireme launch --tensorboard FOLDER. Needs
    tensorboardX: pip install 'bireme[tensorboard]'.

    \b
    bireme tensorboard --log-dir log events
    """
    from .telemetry.recording import replayed
    from .telemetry.tensorboard import EventFiles

    files = EventFiles(folder)
    lines = replayed(log_dir)
    runs = files.write(line.snapshot for line in lines if line.snapshot)
    files.close()
    click.echo(f"{folder}: {runs} runs")


COMMANDS: tuple[click.Command, ...] = (top, dashboard, trace, tensorboard)

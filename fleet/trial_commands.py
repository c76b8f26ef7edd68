"""The commands that try a script out: explain, verify, chaos."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from bireme.errors import ConfigError

from .launcher.job import MODES, misplaced

__all__ = ["COMMANDS", "PASS_ON", "note_misplaced"]

PASS_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}
INTERSPERSED = {"ignore_unknown_options": True}


def note_misplaced(script: str, arguments: tuple[str, ...]) -> None:
    """Say which options of the running command the script gets instead, because of their place."""
    if not Path(script).is_file():
        return  # an error that names it follows
    options = {name for each in click.get_current_context().command.params for name in each.opts}
    for word in misplaced(script, arguments, options):
        click.echo(f"note: {word} stands after {script}, which gets it; put it before", err=True)


def _sized(command: Any) -> Any:
    """The options that say what cluster a command is about."""
    for option in (
        click.option("--mode", type=click.Choice(MODES), default="pserver", show_default=True,
                     help="The kind of cluster; the script must choose the same."),
        click.option("--trainers", default=2, show_default=True, help="Trainers."),
        click.option("--servers", default=2, show_default=True, help="Parameter servers."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command(context_settings=PASS_ON, short_help="How a script would be split.")
@_sized
@click.option("--draw", type=click.Path(path_type=Path), help="Write the plan as SVG, too.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def explain(
    script: str,
    arguments: tuple[str, ...],
    servers: int,
    trainers: int,
    mode: str,
    draw: Path | None,
) -> None:
    """Show how SCRIPT would be split over servers, without starting any.

    The script runs as trainer 0 up to its call of transpile(); then the plan is printed: every
    variable, its slices, their rows and bytes, the server that owns them, and why; what each
    server holds and runs; and how the trainer's program changed.

    \b
    bireme explain --servers 3 examples/digits.py
    bireme explain --draw plan.svg examples/digits.py
    """
    from .explain import split_of

    note_misplaced(script, arguments)
    split = split_of(script, arguments, servers, trainers, mode)
    click.echo(split.explain())
    if draw is not None:
        draw.write_text(split.draw())


@click.command(context_settings=INTERSPERSED, short_help="A cluster beside one process; a program.")
@_sized
@click.option("--steps", default=20, show_default=True, help="Steps to compare.")
@click.option("--keep", type=click.Path(path_type=Path),
              help="Keep recordings and logs in this folder.")  # fmt: skip
@click.option("--show", is_flag=True, help="Print a saved program as text, too.")
@click.option("--draw", type=click.Path(path_type=Path),
              help="Draw a saved program, too: NAME.svg or NAME.dot.")  # fmt: skip
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def verify(
    path: Path,
    arguments: tuple[str, ...],
    servers: int,
    trainers: int,
    mode: str,
    steps: int,
    keep: Path | None,
    show: bool,
    draw: Path | None,
) -> None:
    """Check that a cluster learns what one process would, or that a saved program is valid.

    \b
    bireme verify train.py --servers 2 --trainers 4
    bireme verify model/
    bireme verify --draw model.svg model/__model__

    PATH is a script: it runs as a cluster, then as one process that is fed the batches of all
    trainers, for the first --steps steps. A table shows for each parameter how far the two are
    apart, how far rounding may take them, and the first step after which they were farther. The
    exit code is 1 if one was. One process must be able to run the script: local training, without
    variables of a role. Arguments that bireme does not know, and all after --, are the script's.

    PATH is a saved model's folder, a __model__ file, or a program's text: a program is valid when
    every operator is known and has the slots of its row, every name is declared, and every value is
    written before it is read. The first fault is told with its operator, and the exit code is 2.
    """
    if path.suffix == ".py":
        from .chaos.against_local import verify_script
        from .chaos.jobs import Size

        with _folder(keep, "bireme-verify-") as folder:
            size = Size(servers, trainers, mode)
            sys.exit(verify_script(str(path), arguments, size, steps, folder, click.echo))
    from bireme.drawing import program_graph as drawing

    from .explain import program_at, summary

    program = program_at(path)
    if show:
        click.echo(str(program))
    if draw is not None:
        drawing.draw(program, draw)
    click.echo(summary(program))


@click.command(context_settings=INTERSPERSED, short_help="A job under faults.")
@_sized
@click.option("--seed", default=0, show_default=True, help="What the schedule is drawn from.")
@click.option("--count", default=5, show_default=True, help="Faults in a run.")
@click.option("--faults", "kinds", default="",
              help="Kinds of faults, with commas.  [default: all]")  # fmt: skip
@click.option("--tolerance", default=0.0, show_default=True,
              help="How far results may be apart, by the largest parameter.")  # fmt: skip
@click.option("--seconds", default=0.0, help="Continue with the next seeds for so long.")
@click.option("--keep", type=click.Path(path_type=Path),
              help="Keep results and logs in this folder.  [default: a temporary one]")  # fmt: skip
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def chaos(
    script: str,
    arguments: tuple[str, ...],
    servers: int,
    trainers: int,
    mode: str,
    keep: Path | None,
    **options: Any,
) -> None:
    """Run SCRIPT as an undisturbed cluster, then with faults, and compare the parameters.

    \b
    bireme chaos train.py --servers 2 --trainers 4 --seed 7
    bireme chaos train.py --faults kill,stop --count 10
    FLAGS_checkpoint_dir=x FLAGS_checkpoint_every_steps=50 bireme chaos train.py --seconds 7200

    \b
    kill     SIGKILL of a process
    stop     SIGSTOP of a process, for longer or shorter than the heartbeat
    cut      close all connections of a process
    slow     limit what a process sends to 64 KiB/s, for up to 2 s
    disk     the checkpoint directory refuses writes, for up to 2 s
    restart  end the whole job by SIGTERM and start it again

    The schedule is drawn from --seed, and counted in steps of trainer 0, so it can be repeated. The
    launcher restarts the job after a failure. With FLAGS_checkpoint_dir in the environment each
    run has its own checkpoint directory, and a script that calls load_checkpoint resumes from it.
    The exit code is 1 if a run does not end, leaves a process or a port behind, or ends with
    different parameters. Arguments that bireme does not know, and all after --, are the script's.
    """
    from .chaos.disturbed import Plan
    from .chaos.disturbed import chaos as disturb
    from .chaos.jobs import Size

    with _folder(keep, "bireme-chaos-") as folder:
        plan = Plan(script, arguments, Size(servers, trainers, mode), **options)
        sys.exit(disturb(plan, folder, click.echo))


@contextmanager
def _folder(keep: Path | None, prefix: str) -> Iterator[Path]:
    """A folder for a command's files: the user's, or one that goes with the block."""
    from .signals import ending

    with ending():
        if keep is not None:
            if keep.exists() and any(keep.iterdir()):
                raise ConfigError(f"{keep} is not empty", hint="name a new folder with --keep")
            keep.mkdir(parents=True, exist_ok=True)
            yield keep.absolute()
            return
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)


COMMANDS: tuple[click.Command, ...] = (explain, verify, chaos)

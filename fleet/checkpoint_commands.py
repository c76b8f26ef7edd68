"""`bireme checkpoint`: what lies in a directory of checkpoints, for people and scripts."""

import sys

import click

from bireme.paths import path_of

__all__ = ["checkpoint"]


@click.group(short_help="List, check, compare and convert checkpoints.")
def checkpoint() -> None:
    """Look at the checkpoints of a job, without the script that wrote them.

    PATH is the folder of one checkpoint, or a directory of them (FLAGS_checkpoint_dir), which
    stands for the newest complete one. Both may be URLs that fsspec knows.

    \b
    bireme checkpoint list run7
    bireme checkpoint verify run7
    bireme checkpoint diff run7/step-000000001000-18e9f88ce2fc31ef run8
    """


@checkpoint.command("list", short_help="The checkpoints in a directory.")
@click.argument("directory")
def list_(directory: str) -> None:
    """List the checkpoints in DIRECTORY, newest first: step, run, size, and whether they are
    complete. Manifests are read, arrays are not: see `verify`.
    """
    from .checkpoint_reports import list_all

    click.echo(list_all(path_of(directory)))


@checkpoint.command(short_help="The parts and variables of a checkpoint.")
@click.argument("path")
def show(path: str) -> None:
    """Show what a checkpoint holds: each process's part with the positions of its readers, and
    every variable with its dtype, shape, size and owners.
    """
    from .checkpoint_reports import show as text

    click.echo(text(path_of(path)))


@checkpoint.command(short_help="Whether every byte is as it was saved.")
@click.argument("path")
def verify(path: str) -> None:
    """Read a checkpoint, or all in a directory, and compare every checksum. The exit code is 1
    unless all of them are complete and undamaged.
    """
    from .checkpoint_reports import verify as verified

    text, well = verified(path_of(path))
    click.echo(text)
    sys.exit(int(not well))


@checkpoint.command(short_help="Remove old checkpoints.")
@click.option("--keep", type=click.IntRange(min=1), default=3, show_default=True,
              help="How many complete checkpoints stay.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.argument("directory")
def prune(directory: str, keep: int, dry_run: bool) -> None:
    """Remove all but the newest complete checkpoints in DIRECTORY, and incomplete ones older than
    the newest complete one.
    """
    from .checkpoint_reports import remove_old

    click.echo(remove_old(path_of(directory), keep, dry_run))


@checkpoint.command(short_help="How two checkpoints differ.")
@click.argument("first")
@click.argument("second")
def diff(first: str, second: str) -> None:
    """Compare the variables of two checkpoints bit for bit, however many servers saved each. The
    exit code is 1 if they differ.
    """
    from .checkpoint_reports import diff as compared

    text, equal = compared(path_of(first), path_of(second))
    click.echo(text)
    sys.exit(int(not equal))


@checkpoint.command(short_help="Write the variables in another format.")
@click.option("--format", "form", type=click.Choice(("fluid", "npz")), default="fluid",
              show_default=True,
              help="fluid: files as of save_persistables. npz: one NumPy file.")  # fmt: skip
@click.argument("path")
@click.argument("to")
def convert(path: str, to: str, form: str) -> None:
    """Write the variables of a checkpoint to TO, which must not exist: slices are joined, rows of
    tables stand in the order of their ids.
    """
    from .checkpoint_reports import convert as converted

    click.echo(converted(path_of(path), path_of(to), form))

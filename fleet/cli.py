"""The `bireme` command line: names the commands, each of which lives in its own file."""

import click


@click.group()
def main() -> None:
    """bireme runs Fluid programs on parameter servers and collectives."""

"""`python -m bireme` is the `bireme` command."""

from bireme.fleet.cli import main

if __name__ == "__main__":
    main(prog_name="bireme")

"""`python -m bireme` is the `bireme` command."""

import sys

try:
    from bireme.fleet.cli import main
except ModuleNotFoundError as missing:
    if (missing.name or "bireme").startswith("bireme"):
        raise
    sys.exit(
        f"bireme: {sys.executable} has no package {missing.name}\n"
        "  hint: python -m pip install -e . in the checkout, or use the environment of `make run`"
    )

if __name__ == "__main__":
    main(prog_name="bireme")

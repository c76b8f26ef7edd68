"""Lay the package out as symbolic links under build/types, for tools that only look at files.

Type checkers and protoc do not run the import system, and the files of `bireme.transpiler` stand in
`transpiler/`. After this, `build/types/bireme/transpiler` is that directory.
"""

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "types"


def main() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    places: dict[str, str] = settings["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(OUT, ignore_errors=True)
    for name in sorted(places):  # "bireme" first, then "bireme.x"
        target = OUT.joinpath(*name.split("."))
        if "." in name:
            target.symlink_to(ROOT / places[name])
        else:
            target.mkdir(parents=True)
            for entry in (ROOT / places[name]).iterdir():
                if entry.name != "__pycache__":
                    (target / entry.name).symlink_to(entry)


if __name__ == "__main__":
    main()

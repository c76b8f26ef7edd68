"""What is installed is what stands in the tree: one name, every folder, every data file."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bireme

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = SETTINGS["tool"]["setuptools"]["packages"]
PLACES = SETTINGS["tool"]["setuptools"]["package-dir"]


def folder(package: str) -> Path:
    """The directory of a package under the map."""
    home = max((p for p in PLACES if f"{package}.".startswith(f"{p}.")), key=len)
    rest = package.removeprefix(home).strip(".")
    return ROOT.joinpath(PLACES[home], *rest.split(".")) if rest else ROOT / PLACES[home]


def test_every_folder_with_code_is_a_listed_package() -> None:
    found = set()
    for home, place in PLACES.items():
        for init in (ROOT / place).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / place).parts
            found.add(".".join([home, *parts]))
    assert found == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_listed_package_stands_where_the_map_says(package: str) -> None:
    assert (folder(package) / "__init__.py").is_file()


def test_the_version_is_said_once() -> None:
    assert bireme.__version__ == SETTINGS["project"]["version"]


def test_importing_bireme_is_quick_and_quiet() -> None:
    """Neither the wire, nor a device, nor numpy is loaded by the import alone."""
    code = (
        "import sys, bireme; print(sorted({'grpc', 'cupy', 'numpy', 'click'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_building_a_program_loads_neither_grpc_nor_cupy() -> None:
    code = (
        "import sys, bireme as fluid; x = fluid.layers.data('x', [4]); y = fluid.layers.fc(x, 2); "
        "fluid.Executor(fluid.CPUPlace()); print(sorted({'grpc', 'cupy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

"""What is installed is what stands in the tree: one name, every folder, every data file."""

import os
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
    """Libraries that only some processes need are not loaded by the import alone."""
    heavy = {"grpc", "google.protobuf", "cupy", "numpy", "click", "rich", "prometheus_client"}
    code = f"import sys, bireme; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_script_and_its_launcher_start_without_numpy(tmp_path: Path) -> None:
    """Eight processes start at once: what a script does not import, it does not wait for."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, paddle.fluid, bireme.fleet.launcher.watch\n"
        "print([name for name in ('numpy', 'grpc', 'bireme.ops') if name in sys.modules])"
    )
    command = [sys.executable, "-m", "bireme.fleet.scripts.script", str(script)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_building_a_program_loads_no_grpc_protobuf_or_cupy() -> None:
    code = (
        "import sys, bireme as fluid; x = fluid.layers.data('x', [4]); y = fluid.layers.fc(x, 2); "
        "fluid.Executor(fluid.CPUPlace()); "
        "print(sorted({'grpc', 'google.protobuf', 'cupy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "environment"),
    [([], ".venv"), (["PYTHON=/opt/bin/python3.13"], ".venv-python3.13")],
)
def test_each_interpreter_that_make_is_told_has_its_own_environment(
    words: list[str], environment: str
) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHON", "MAKEFLAGS")}
    command = ["make", "-n", "-B", "test", *words]  # whether or not it is there already
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=env)
    assert f"{environment}/bin/pytest" in done.stdout
    assert ("for p in /opt/bin/python3.13;" in done.stdout) == bool(words)

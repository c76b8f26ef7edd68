"""The floors of the house: who may import whom. To change a rule, change its table here, openly."""

import ast
import re
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.source_tree import (
    HOMES,
    MODULES,
    ROOT,
    imports,
    label,
    module_of,
    package_of,
    reached,
    sources,
    tree,
)

# From the bottom up: a package imports itself and what stands on floors below its own.
FLOORS = (
    "errors logs progress_bars protos sites text_tables version",
    "flags ending forks",
    "extras",
    "job_token paths",
    "failures",
    "ir",
    "drawing",
    "arrays",
    "monitoring",
    "recovery",
    "reader",
    "ops",
    "param_attr initializer regularizer",
    "layers",
    "clip nets",
    "autodiff",
    "passes",
    "optimizer",
    "runtime",
    "io",
    "dataset export",
    "net",
    "collective",
    "average contrib core debugger distributed evaluator install_check metrics profiler",
    "__init__",
    "framework",
    "transpiler pserver trainer",
    "fleet",
    "__main__",
)
FLEET_FLOORS = (  # the same inside fleet/; scripts and launchers know no Fleet
    "certs clusters lifeline log_relay metrics progress signals step_recorder",
    "log_lines",
    "scripts",
    "role_maker",
    "telemetry",
    "dashboard launcher api",
    "chaos checkpoint_reports demo demo_script explain ray",
    "checkpoint_commands telemetry_commands trial_commands",
    "cli",
)
FLOOR_OF = {package: i for i, row in enumerate(FLOORS) for package in row.split()}
FLEET_FLOOR_OF = {part: i for i, row in enumerate(FLEET_FLOORS) for part in row.split()}
TRANSPILER_KNOWS = {
    "transpiler",
    "errors",
    "flags",
    "ir",
    "ops",
    "text_tables",
}  # no arrays, sockets or files
SCHEMAS_KNOWN_TO = {"ir", "io", "net", "pserver", "trainer", "protos"}

# What may be imported in a function, or by a name that is text, and why.
_FACE = "the public face names every floor, and loads one when it is asked for"
_ROW = "a row of the op table names its provider, which knows a role or a network"
_CUPY = "CuPy is optional, and loads with the first program on a device"
_GRPC = "gRPC must not load with a program that talks to nobody over it"
_RICH = "only commands and explain() print tables, and only terminals show bars"
_PADDLE = "`import paddle.x` gives an old script our module"
_CHECK = "`bireme check` asks whether a script's imports are here"
_CLI = "`bireme --help` must not load what its commands need"
HIDDEN = {
    ("bireme/__init__.py", "MODULES_ELSEWHERE.get(name, f'bireme.{name}')"): _FACE,
    ("bireme/__init__.py", "_NAMES[name]"): _FACE,
    ("bireme/extras.py", "module"): "libraries that only some uses need",
    (
        "bireme/layers/__init__.py",
        "'bireme.layers.program_readers'",
    ): "queues and processes load there",
    ("bireme/runtime/planner.py", "module"): _ROW,
    ("bireme/runtime/compiled_forms.py", "'numba'"): "numba is optional",
    ("bireme/runtime/compiled_forms.py", "f'bireme.ops.compiled.{module}'"): "numba loads there",
    ("bireme/arrays/namespaces.py", "'cupy'"): _CUPY,
    ("bireme/arrays/places.py", "'cupy'"): _CUPY,
    ("bireme/collective/nccl.py", "'cupy.cuda.nccl'"): _CUPY,
    ("bireme/ops/cudnn.py", "'cudnn'"): "cuDNN's frontend is optional",
    ("bireme/arrays/dnnl.py", "importlib.metadata"): "slow, and only for who may use oneDNN",
    ("bireme/collective/mpi.py", "mpi4py.MPI"): "mpi4py is optional, and starts MPI when it loads",
    ("bireme/collective/register.py", "bireme.net.grpc_client"): _GRPC,
    ("bireme/collective/register.py", "bireme.net.grpc_server"): _GRPC,
    ("bireme/ir/program.py", "bireme.ir.proto"): "protobuf loads when a program is read from bytes",
    ("bireme/monitoring/admin.py", "bireme.monitoring.admin_server"): "an HTTP server few ask for",
    ("bireme/text_tables.py", "rich.console.Console"): _RICH,
    ("bireme/progress_bars.py", "rich.console.Console"): _RICH,
    ("bireme/progress_bars.py", "rich.progress.BarColumn"): _RICH,
    ("bireme/progress_bars.py", "rich.progress.Progress"): _RICH,
    ("bireme/progress_bars.py", "rich.progress.TextColumn"): _RICH,
    ("bireme/progress_bars.py", "rich.progress.TimeRemainingColumn"): _RICH,
    ("fleet/cli.py", "bireme.progress_bars"): _CLI,
    ("bireme/text_tables.py", "rich.table.Table"): _RICH,
    ("bireme/text_tables.py", "rich.text.Text"): _RICH,
    ("bireme/reader/decorators.py", "bireme.reader.workers"): "cloudpickle, which few readers need",
    ("fleet/scripts/script.py", "name"): "a module that the user names",
    ("fleet/scripts/script.py", "module"): "a module that the user names",
    ("fleet/scripts/script.py", "bireme.fleet.step_recorder"): "NumPy loads with it",
    ("fleet/cli.py", "bireme.fleet.demo"): _CLI,
    ("fleet/trial_commands.py", "bireme.fleet.chaos.against_local"): _CLI,
    ("fleet/trial_commands.py", "bireme.fleet.chaos.jobs"): _CLI,
    ("fleet/trial_commands.py", "bireme.fleet.chaos.disturbed"): _CLI,
    ("fleet/cli.py", "bireme.fleet.certs"): _CLI,
    ("fleet/checkpoint_commands.py", "bireme.fleet.checkpoint_reports"): _CLI,
    ("fleet/certs.py", "trustme"): "trustme is optional",
    ("fleet/trial_commands.py", "bireme.fleet.explain"): _CLI,
    ("fleet/cli.py", "bireme.flags"): _CLI,
    ("fleet/cli.py", "bireme.fleet.launcher.emit"): _CLI,
    ("fleet/cli.py", "bireme.fleet.launcher.keeper"): _CLI,
    ("fleet/cli.py", "bireme.fleet.lifeline"): _CLI,
    ("fleet/cli.py", "bireme.fleet.launcher.foreign"): _CLI,
    ("fleet/cli.py", "bireme.fleet.launcher.watch"): _CLI,
    ("fleet/cli.py", "bireme.fleet.scripts.script"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.dashboard.server"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.launcher.top"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.lifeline"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.signals"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.telemetry.asking"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.telemetry.job_file"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.telemetry.recording"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.telemetry.tensorboard"): _CLI,
    ("fleet/telemetry_commands.py", "bireme.fleet.telemetry.trace"): _CLI,
    ("fleet/dashboard/server.py", "bireme.fleet.dashboard.app"): "Bokeh is optional",
    ("fleet/cli.py", "bireme.fleet.scripts.check"): _CLI,
    ("fleet/cli.py", "bireme.fleet.signals"): _CLI,
    ("fleet/trial_commands.py", "bireme.fleet.signals"): _CLI,
    ("fleet/scripts/uncaught.py", "bireme.fleet.scripts.advice"): "only an error needs advice",
    ("fleet/scripts/plot.py", "'matplotlib.pyplot'"): "matplotlib is optional",
    ("bireme/arrays/blas.py", "threadpoolctl.ThreadpoolController"): "it looks at every library",
    ("fleet/trial_commands.py", "bireme.drawing.program_graph"): _CLI,
    ("fleet/cli.py", "bireme.export"): _CLI,
    ("fleet/scripts/compat.py", "home"): _PADDLE,
    ("fleet/scripts/compat.py", "module"): _PADDLE,
    ("fleet/scripts/compat.py", "name"): _PADDLE,
    ("fleet/scripts/names.py", "home"): _PADDLE,
    ("fleet/scripts/names.py", "module"): _PADDLE,
    ("fleet/scripts/names.py", "name"): _PADDLE,
    ("fleet/scripts/removed.py", "module"): "a module that the standard library had",
    ("fleet/scripts/script_reader.py", "'paddle'"): _CHECK,
    ("fleet/scripts/script_reader.py", "reached"): _CHECK,
    ("fleet/scripts/script_reader.py", "top"): _CHECK,
}
NAMED_IN_TEXT = (
    "bireme/__init__.py",
    "bireme/layers/__init__.py",
    "bireme/ops/",  # providers, of which there is a test
    "fleet/launcher/runner.py",  # what `python -m` runs in a child
    "fleet/scripts/names.py",  # where the names of Fluid are here
    "fleet/scripts/v2_names.py",  # and those of Paddle 2.x
)
ATTRIBUTES = {"bireme.version"}  # of operators, not modules
PROVIDERS = {
    "bireme.trainer.operators:Communication",
    "bireme.pserver.shell.serve:Serving",
    "bireme.collective.operators:Collectives",
    "bireme.collective.pipeline:PipelineStages",
}
CIRCLES = {"ir"}  # a program, its blocks and its variables know one another
SCRIPTS = {  # run by their path, as a user's are
    "fleet/demo_script.py",
    "fleet/ray/function.py",
    "fleet/scripts/children/paddle/__init__.py",
}

MAY_USE = {  # a library that only these files import
    "grpc": ("bireme/net/", "protos/"),
    "cupy": ("bireme/arrays/namespaces.py", "bireme/collective/nccl.py"),
    "cupyx": ("bireme/arrays/namespaces.py", "bireme/collective/nccl.py"),
    "mpi4py": ("bireme/collective/mpi.py",),
    "bokeh": ("fleet/dashboard/",),
    "tornado": ("fleet/dashboard/",),
    "click": (
        "fleet/cli.py",
        "fleet/checkpoint_commands.py",
        "fleet/telemetry_commands.py",
        "fleet/trial_commands.py",
    ),
    "rich": (
        "bireme/text_tables.py",
        "bireme/progress_bars.py",
        "fleet/launcher/display.py",
        "fleet/launcher/top.py",
    ),
    "prometheus_client": ("bireme/monitoring/exposition.py", "bireme/monitoring/admin_server.py"),
    "trustme": ("fleet/certs.py",),
    "numba": ("bireme/ops/compiled/loops.py",),
    "cudnn": ("bireme/ops/cudnn.py",),
}


def wrong(problem: Callable[[Path], object], *homes: str) -> dict[str, object]:
    """The files in which something is not as it should be, and what."""
    return {label(path): found for path in sources(*homes) if (found := problem(path))}


# -- floors ------------------------------------------------------------------------------------
def test_imports_only_go_down() -> None:
    def upward(path: Path) -> dict[str, int]:
        own = FLOOR_OF[package_of(module_of(path))]
        return {name: FLOOR_OF[name] for name in reached(path) if FLOOR_OF[name] >= own}

    assert wrong(upward) == {}


def test_every_floor_is_there() -> None:
    assert set(map(package_of, MODULES)) == set(FLOOR_OF)


def part_of(module: str) -> str:
    """`bireme.fleet.api.epochs` belongs to `api`, `bireme.fleet` itself to nothing."""
    return f"{module}..".split(".")[2]


def test_imports_inside_fleet_only_go_down() -> None:
    def upward(path: Path) -> set[str]:
        own = part_of(module_of(path))
        parts = {part_of(i.target) for i in imports(path) if i.target.startswith("bireme.fleet.")}
        return {name for name in parts - {own} if FLEET_FLOOR_OF[name] >= FLEET_FLOOR_OF[own]}

    assert wrong(upward, "fleet") == {}


def test_every_floor_of_fleet_is_there() -> None:
    found = {part_of(module) for module in MODULES if module.startswith("bireme.fleet.")}
    assert found == set(FLEET_FLOOR_OF)


def test_the_transpiler_knows_programs_only() -> None:
    assert wrong(lambda path: reached(path) - TRANSPILER_KNOWS, "transpiler") == {}


def test_the_transpiler_sees_numpy_in_one_file_only() -> None:
    found = [
        label(p) for p in sources("transpiler") for i in imports(p) if i.name.startswith("numpy")
    ]
    assert found == ["transpiler/shuffling.py"]


def test_schemas_are_known_to_few() -> None:
    knowing = {package_of(module_of(path)) for path in sources() if "protos" in reached(path)}
    assert knowing <= SCHEMAS_KNOWN_TO


def test_no_files_of_a_package_import_one_another_in_a_circle() -> None:
    for package in set(FLOOR_OF) - CIRCLES:
        files = {m: p for m, p in MODULES.items() if package_of(m) == package}
        graph = {m: {i.target for i in imports(p)} & (set(files) - {m}) for m, p in files.items()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as circle:
            pytest.fail(f"{package}: {' <- '.join(circle.args[1])}")


# -- what is hidden ----------------------------------------------------------------------------
_LOADERS = {"import_module", "__import__", "find_spec", "load_module", "exec_module", "run_module"}


def hidden(path: Path) -> Iterator[str]:
    """Imports in functions, and what importlib is asked for."""
    yield from (i.target for i in imports(path) if i.hidden)
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    for call in calls:
        if _named(call.func) in _LOADERS:
            yield ast.unparse(call.args[0])
    called = {call.func for call in calls}
    for node in ast.walk(tree(path)):
        if _named(node) in _LOADERS and node not in called:
            yield f"{ast.unparse(node)}, for somebody else to call"


def _named(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def test_imports_that_are_hidden_are_the_listed_ones() -> None:
    found = {(label(path), what) for path in sources() for what in hidden(path)}
    assert found == set(HIDDEN)


def test_modules_are_named_in_text_by_the_listed_files_only() -> None:
    spelled = re.compile(r"bireme(\.\w+)+(:\w+)?")
    found = {
        f"{label(path)}: {node.value}"
        for path in sources()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if spelled.fullmatch(node.value) and node.value.partition(":")[0] in MODULES
        if not label(path).startswith(NAMED_IN_TEXT) and node.value not in ATTRIBUTES
    }
    assert found == set()


def test_late_bindings_are_the_listed_ones() -> None:
    """The op table names a provider above it as text, and only these."""
    texts = {
        node.value
        for path in sources("bireme/ops")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {text for text in texts if re.fullmatch(r"bireme\.[\w.]+:\w+", text)} == PROVIDERS


# -- manners -----------------------------------------------------------------------------------
def heads(path: Path) -> set[str]:
    """The top-level names that a file imports."""
    return {i.name.partition(".")[0] for i in imports(path) if i.level == 0}


def test_nobody_imports_a_bare_directory_name() -> None:
    assert wrong(lambda path: heads(path) & (set(HOMES) - {"bireme"})) == {}


def test_a_mapped_directory_imports_itself_relatively() -> None:
    def absolute(path: Path) -> list[str]:
        home = label(path).partition("/")[0]
        if home == "bireme" or label(path) in SCRIPTS:
            return []
        own = f"bireme.{home}."
        return [i.name for i in imports(path) if not i.level and f"{i.name}.".startswith(own)]

    assert wrong(absolute) == {}


def test_relative_imports_stay_inside_their_directory() -> None:
    def outside(path: Path) -> list[str]:
        depth = len(path.relative_to(ROOT).parts) - 1
        home = label(path).partition("/")[0]
        allowed = depth if home != "bireme" else 1  # inside bireme/x, go across by full name
        return [i.name for i in imports(path) if i.level > max(1, allowed)]

    assert wrong(outside) == {}


def test_scarce_libraries_are_imported_in_named_files() -> None:
    def elsewhere(path: Path) -> dict[str, tuple[str, ...]]:
        found = {library: MAY_USE.get(library, ("",)) for library in heads(path)}
        return {name: homes for name, homes in found.items() if not label(path).startswith(homes)}

    assert wrong(elsewhere) == {}


def test_references_are_counted_in_one_file_only() -> None:
    found = {
        label(path)
        for path in sources()
        if any("getrefcount" in ast.unparse(n) for n in ast.walk(tree(path)) if _named(n))
        or any(i.name.endswith("getrefcount") for i in imports(path))
    }
    assert found == {"bireme/arrays/ownership.py"}


PRINTING = (  # commands, and what they start: their output is the terminal's
    "fleet/chaos/",
    "fleet/launcher/",
)


def test_only_commands_print_to_stderr() -> None:
    """Others have loggers, `bireme.logs`."""

    def printed(path: Path) -> set[int]:
        calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
        return {call.lineno for call in calls if _to_stderr(call)}

    assert not {name for name in wrong(printed) if not name.startswith(PRINTING)}


def _to_stderr(call: ast.Call) -> bool:
    """Whether a call writes to stderr: print(file=sys.stderr), sys.stderr.write, os.write(2)."""
    words = {word.arg: ast.unparse(word.value) for word in call.keywords}
    if _named(call.func) == "print":
        return words.get("file", "").endswith("stderr")
    said = ast.unparse(call.func)
    return said.endswith(("stderr.write", "stderr.writelines")) or (
        said.endswith("os.write") and ast.unparse(call.args[0]) == "2"
    )


def test_no_stream_of_the_process_is_replaced() -> None:
    def replaced(path: Path) -> set[str]:
        targets = (target for node in ast.walk(tree(path)) for target in _targets(node))
        return {ast.unparse(target) for target in targets} & {"sys.stdout", "sys.stderr"}

    assert wrong(replaced) == {}


# -- names and modes ---------------------------------------------------------------------------
_SUFFIX = re.compile(
    r"\\?(@GRAD|@RENAME|\.block(\\|\d|$)|\.trainer_|\.pserver_|\.delta$|\.subprog_|_bak$|\.local_bak)"
)
_MARKS = {"@LR_DECAY_COUNTER@", "@EMPTY@", "@TRAINER_ID@", "kLookupTablePath"}
_MODES = {"SYNC", "ASYNC", "HALF_ASYNC", "GEO"}
_MODE_NAMES = {"mode", "_mode", "distributed_mode"}


def test_only_one_module_knows_the_suffixes_of_names() -> None:
    """Others call it; a slot such as X@GRAD is a name of its own."""

    def suffixes(path: Path) -> set[str]:
        return {
            f"{node.lineno}: {node.value}"
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if _SUFFIX.match(node.value) or node.value in _MARKS
        }

    assert wrong(suffixes).keys() == {"bireme/ir/names.py"}


def test_only_one_module_numbers_the_modes() -> None:
    def assigned(path: Path) -> set[str]:
        targets = (target for node in ast.walk(tree(path)) for target in _targets(node))
        return {_named(target) for target in targets} & _MODES

    def compared(path: Path) -> set[str]:
        return {
            ast.unparse(node)
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Compare) and _named(node.left) in _MODE_NAMES
            if any(isinstance(n, ast.Constant) and type(n.value) is int for n in ast.walk(node))
        }

    assert wrong(assigned).keys() == {"bireme/ir/modes.py"}
    assert wrong(compared) == {}


def _targets(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]


def test_no_module_reaches_for_another_modules_underscore() -> None:
    found = [
        f"{label(path)}: {i.name}"
        for path in sources()
        for i in imports(path)
        if (i.level or i.name.startswith("bireme")) and re.search(r"(^|\.)_(?!_)\w", i.name)
    ]
    assert found == []

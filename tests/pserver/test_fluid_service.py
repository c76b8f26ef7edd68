"""Fluid's service beyond a step: saving at a trainer's word, and reads without rounds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.arrays.values import SelectedRows
from bireme.errors import BiremeError, ConfigError, ProtocolError, UnknownName
from bireme.monitoring.counters import tally
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.grpc_server import Method
from bireme.protos import transport_pb2
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.fluid import FluidService
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates
from tests.support.cluster import descending, tiny_server

GOLDEN = Path(__file__).parents[1] / "golden" / "fluid185" / "notified"
VALUES = np.arange(15, dtype=np.float32).reshape(5, 3)
ROWS = SelectedRows(np.array([7, 3, 1, 50, 99]), VALUES, 100)
SERVICE = "/sendrecv.SendRecvService/"
Ask = Callable[..., bytes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    flags.set_flags({"checkpoint_dir": str(tmp_path)})
    return tmp_path


@pytest.fixture
def service() -> Callable[[], Any]:
    """The methods of a server that holds a dense table, rows by id, and a slice."""
    program, scope = tiny_server("s0", 1, params=("dense", "rows", "cut.block1"))
    scope.var("dense").put(VALUES)
    scope.var("rows").put(ROWS)
    scope.var("cut.block1").put(VALUES[:2])
    (op,) = program.global_block().ops
    settings = read_settings(op, program)
    updates = Updates(program, settings, scope, descending(program, scope))

    @asynccontextmanager
    async def running() -> AsyncIterator[dict[str, Method]]:
        server = Server(Core(settings), updates, tick=60.0)
        try:
            yield FluidService(server, updates, 1).methods()
        finally:
            server.close()

    return running


@pytest.fixture
def ask(service: Callable[[], Any]) -> Ask:
    """One call."""

    def call(method: str, **said: Any) -> bytes:
        async def answer() -> bytes:
            async with service() as methods:
                found: bytes = await methods[SERVICE + method](
                    encode_variable(Variable(**said)), "peer"
                )
                return found

        return asyncio.run(answer())

    return call


def notify(ask: Ask, path: Path | str) -> bytes:
    return ask("CheckpointNotify", name="SAVE@CHECKPOINTNOTIFY", out_name=str(path))


@pytest.mark.parametrize("table", ["dense", "rows"])
def test_a_table_is_saved_as_fluids_server_saves_it(ask: Ask, root: Path, table: str) -> None:
    assert notify(ask, root / "step-7" / f"{table}_0") == b""
    assert (root / "step-7" / f"{table}_0").read_bytes() == (GOLDEN / table).read_bytes()


def test_of_a_table_that_is_cut_a_server_saves_its_slice(ask: Ask, root: Path) -> None:
    notify(ask, root / "cut_1")
    assert (root / "cut_1").read_bytes().endswith(VALUES[:2].tobytes())


@pytest.mark.parametrize("path", ["/etc/dense_0", "{root}/../dense_0", "", "dense_0"])
def test_nothing_is_written_elsewhere(ask: Ask, root: Path, path: str) -> None:
    with pytest.raises(ProtocolError, match="only below its own FLAGS_checkpoint_dir"):
        notify(ask, path.format(root=root))


@pytest.mark.parametrize(
    ("said", "error"),
    [({"name": "dense"}, ProtocolError), ({"out_name": "{root}/none_0"}, UnknownName),
     ({"out_name": "{root}/dense"}, UnknownName)],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused(
    ask: Ask, root: Path, said: dict[str, str], error: type[BiremeError]
) -> None:
    given = {"name": "SAVE@CHECKPOINTNOTIFY", "out_name": f"{root}/dense_0"}
    changed = {key: text.format(root=root) for key, text in said.items()}
    with pytest.raises(error):
        ask("CheckpointNotify", **{**given, **changed})
    assert list(root.iterdir()) == []


def test_a_disk_that_refuses_is_counted_and_ends_nothing(
    ask: Ask, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "file").write_text("in the way")
    before = tally.unsaved
    assert notify(ask, root / "file" / "dense_0") == b""
    assert tally.unsaved == before + 1
    assert "dense_0 was not saved" in caplog.text


def test_a_monomer_is_a_variable_as_it_is(ask: Ask) -> None:
    found = decode_variable(ask("GetMonomerVariable", name="dense"))
    assert found.name == "dense"
    assert np.asarray(found.value).tolist() == VALUES.tolist()
    assert ask("GetMonomerVariable", name="none") == b""
    assert ask("GetMonomerBarrier", name="dense") == b""


def test_a_trainer_that_does_not_exist_is_refused_and_its_connection_is_nobody_s(
    service: Callable[[], Any],
) -> None:
    async def answers() -> None:
        async with service() as methods:
            said = encode_variable(Variable(name="dense", trainer=-1))
            with pytest.raises(ConfigError, match="trainer id -1"):
                await methods[SERVICE + "GetVariable"](said, "peer")
            barrier = encode_variable(Variable(name="BATCH_BARRIER@RECV"))
            assert await methods[SERVICE + "SendVariable"](barrier, "peer") == b""

    asyncio.run(answers())


def test_the_methods_served_are_those_of_the_schema(service: Callable[[], Any]) -> None:
    async def served() -> set[str]:
        async with service() as methods:
            return {path.removeprefix(SERVICE) for path in methods}

    declared = transport_pb2.DESCRIPTOR.services_by_name["SendRecvService"].methods_by_name
    assert asyncio.run(served()) == set(declared)

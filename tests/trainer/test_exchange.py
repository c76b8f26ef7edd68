"""Trainers and servers together, with function calls for sockets: rounds, faults, and how a job
ends.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme.arrays.values import SelectedRows
from bireme.errors import Aborted, ConfigError, DeadlineExceeded, PeerLost, ProtocolError
from bireme.ir import VarType
from bireme.net.carriers import Unreachable
from bireme.net.frames import Decoder, decode, encode
from bireme.net.heartbeat import Times
from bireme.net.messages import Abort, Heartbeat
from bireme.pserver.rules.members import Limits
from bireme.trainer import native_server
from tests.support.cluster import Cluster, cluster, descending, side_by_side, tiny_server
from tests.support.faults import Faults
from tests.support.thorough import seeds

FAST = Limits(silence=0.6, join=1.0, patience=5.0, farewell=0.2)
QUICK = Times(beat=0.05, silence=0.6, away=0.6, deadline=5.0, join=1.0, grace=5.0)


def start(made: Cluster, servers: int = 1, **how: Any) -> list[str]:
    names = [f"s{i}" for i in range(servers)]
    for name in names:
        program, scope = tiny_server(name, **how)
        made.serve(program, scope, descending(program, scope))
    return names


def training(
    made: Cluster,
    trainer: int,
    steps: int,
    names: list[str],
    *,
    mode: int = 0,
    dial: Any = None,
    size: int = 4,
) -> Callable[[], Any]:
    """A trainer whose gradient is trainer + 1 + step; gives what it pulled, step by step."""

    def run() -> list[float]:
        one = made.trainer(trainer, dial)
        suffix = f".trainer_{trainer}" if mode == 0 else ""
        wanted = {name: ("w",) for name in names}
        seen = [one.servers.exchange(wanted)]
        for step in range(steps):
            for name in names:
                one.servers.push(
                    name, {f"w@GRAD{suffix}": np.full(size, trainer + 1 + step, np.float32)}
                )
            if mode == 0:
                one.servers.barrier(names, strict=True)
            seen.append(one.servers.exchange(wanted))
        one.close()
        arrays = [found[names[0]]["w"] for found in seen]
        assert all(len(set(array.tolist())) == 1 for array in arrays)
        return [float(array[0]) for array in arrays]

    return run


def test_two_trainers_and_two_servers_see_the_same_parameters_after_every_step() -> None:
    with cluster() as made:
        names = start(made, servers=2)
        tasks = {f"t{i}": training(made, i, 5, names) for i in range(2)}
        seen = side_by_side(tasks)
        expected = [-float(sum(1.5 + s for s in range(n))) for n in range(6)]
        assert seen["t0"] == seen["t1"] == expected
        for server in made.servers.values():
            server.result()


def test_one_trainer_and_one_server_work() -> None:
    with cluster() as made:
        names = start(made, trainers=1)
        assert training(made, 0, 3, names)() == [0, -1, -3, -6]


def test_sixteen_trainers_share_one_server() -> None:
    with cluster() as made:
        names = start(made, trainers=16)
        seen = side_by_side({f"t{i}": training(made, i, 3, names) for i in range(16)})
        assert len({tuple(values) for values in seen.values()}) == 1
        made.servers["s0"].result()


@pytest.mark.parametrize("seed", seeds(3, 12))
@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "shared"])
def test_sync_gives_the_same_numbers_under_any_trouble(seed: int, size: int) -> None:
    with cluster() as made:
        names = start(made, servers=2, size=size)
        faults = Faults(seed)
        dial = faults.dial(made.dial)
        tasks = {f"t{i}": training(made, i, 6, names, dial=dial, size=size) for i in range(2)}
        seen = side_by_side(tasks)
        assert seen["t0"] == seen["t1"] == [-sum(1.5 + s for s in range(n)) for n in range(7)]
        assert faults.count


@pytest.mark.parametrize("seed", seeds(3, 12))
@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "shared"])
def test_async_applies_every_push_once_under_any_trouble(seed: int, size: int) -> None:
    with cluster() as made:
        names = start(made, mode=2, size=size)
        dial = Faults(seed).dial(made.dial)
        how: dict[str, Any] = {"mode": 2, "dial": dial, "size": size}
        ended = side_by_side({f"t{i}": training(made, i, 6, names, **how) for i in range(2)})
        assert all(isinstance(seen, list) for seen in ended.values())
        made.servers["s0"].result()
        total = sum(trainer + 1 + step for trainer in range(2) for step in range(6))
        assert set(made.servers["s0"].updates.value("w").tolist()) == {-total}


def test_a_trainer_that_finishes_early_contributes_nothing_and_the_divisor_stays() -> None:
    with cluster() as made:
        names = start(made)
        tasks = {"t0": training(made, 0, 3, names), "t1": training(made, 1, 1, names)}
        seen = side_by_side(tasks)
        assert seen["t0"] == [0, -1.5, -2.5, -4.0]


def test_sparse_gradients_and_look_ups_travel() -> None:
    with cluster() as made:
        program, scope = tiny_server(trainers=1)
        made.serve(program, scope, descending(program, scope))
        table = np.arange(20, dtype=np.float32).reshape(10, 2)
        scope.var("table").put(table)
        one = made.trainer(0)
        rows = one.servers.look_up({"s0": {"table": np.array([7, 0, 7], np.int64)}})["s0"]["table"]
        assert rows.tolist() == table[[7, 0, 7]].tolist()
        with pytest.raises(ProtocolError, match="outside 0 to 9"):
            one.servers.look_up({"s0": {"table": np.array([10], np.int64)}})


def test_a_sparse_gradient_arrives_with_its_rows() -> None:
    with cluster() as made:
        program, scope = tiny_server(trainers=1)
        program.global_block().var("w@GRAD.trainer_0").type = VarType.SELECTED_ROWS
        server = made.serve(program, scope, lambda block: lambda: None)
        one = made.trainer(0)
        sent = SelectedRows(np.array([2, 2]), np.ones(2, np.float32), 4)
        one.servers.push("s0", {"w@GRAD": sent})
        one.servers.barrier(["s0"], strict=True)
        one.servers.exchange({"s0": ()})
        got = server.updates.value("w@GRAD.trainer_0")
        assert isinstance(got, SelectedRows)
        assert got.rows.tolist() == [2, 2]
        assert got.height == 4


# -- refusals ----------------------------------------------------------------------------------
def test_a_gradient_of_the_wrong_shape_is_refused_with_both_shapes() -> None:
    with cluster() as made:
        start(made, trainers=1)
        one = made.trainer(0)
        one.servers.push("s0", {"w@GRAD": np.zeros(5, np.float32)})
        with pytest.raises(ProtocolError, match=r"float32\[5\], but .* float32\[4\]"):
            one.servers.exchange({"s0": ("w",)})


def test_a_variable_that_no_server_holds_is_refused_with_near_names() -> None:
    with cluster() as made:
        start(made, trainers=1, params=("weight",))
        with pytest.raises(KeyError, match="holds no variable 'weihgt'"):
            made.trainer(0).servers.exchange({"s0": ("weihgt",)})


def test_a_sync_program_at_an_async_server_is_refused() -> None:
    with cluster() as made:
        start(made, mode=2)
        with pytest.raises(ConfigError, match="synchronous, but server s0 is not"):
            made.trainer(0).servers.barrier(["s0"], strict=True)


def test_a_trainer_id_out_of_range_is_refused() -> None:
    with cluster() as made:
        start(made)
        with pytest.raises(ConfigError, match="out of range"):
            made.trainer(2).servers.greet(["s0"])


def test_damaged_bytes_do_not_hurt_the_server() -> None:
    with cluster() as made:
        names = start(made, trainers=1)
        wire = made.dial("s0")
        assert b"FormatError" in wire.call(b"nonsense", 5)
        stream = wire.exchange(5)
        stream.write([b"BR\x01\x00" + bytes(30)])
        stream.end()
        assert stream.receive(Decoder()).message.kind == "FormatError"
        beat = encode(Heartbeat(trainer=0, incarnation=0, step=0))
        assert b"not introduced" in wire.call(beat, 5)
        assert training(made, 0, 1, names)() == [0, -1]


# -- how a job ends ----------------------------------------------------------------------------
def test_a_trainer_that_gives_up_ends_the_others_with_its_cause() -> None:
    with cluster(FAST, QUICK) as made:
        names = start(made, servers=2)
        first, second = made.trainer(0), made.trainer(1)
        second.servers.greet(names)

        def waits() -> Any:
            first.servers.push("s0", {"w@GRAD.trainer_0": np.ones(4, np.float32)})
            first.servers.barrier(names, strict=True)
            return first.servers.exchange({"s0": ("w",)})

        def fails() -> None:
            second.abort("ValueError: bad batch")

        ended = side_by_side({"first": waits, "second": fails})
        assert isinstance(ended["first"], Aborted)
        assert "trainer 1 gave up: ValueError: bad batch" in str(ended["first"])
        with pytest.raises(Aborted, match="bad batch"):
            made.servers["s0"].result()


def test_a_silent_trainer_is_named_by_servers_and_trainers() -> None:
    with cluster(FAST, QUICK) as made:
        start(made)
        first, second = made.trainer(0), made.trainer(1)
        second.servers.greet(["s0"])
        second.silence()
        first.servers.push("s0", {"w@GRAD.trainer_0": np.ones(4, np.float32)})
        first.servers.barrier(["s0"], strict=True)
        with pytest.raises(PeerLost, match="trainer 1 is lost"):
            first.servers.exchange({"s0": ("w",)})
        with pytest.raises(PeerLost, match="trainer 0 waited for it"):
            made.servers["s0"].result()


class Ended:
    """A way to a server whose process has ended; the heartbeat hears the cause meanwhile."""

    def __init__(self, inner: Any, hear: Callable[[], None]) -> None:
        self._inner = inner
        self._hear = hear
        self.ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        if self.ended:
            self._hear()
            raise Unreachable("refused")
        return bytes(self._inner.call(request, timeout, wait))


def test_the_end_of_a_server_is_blamed_on_who_caused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_server, "HEARTBEATS_TURN", 20.0)
    ways: list[Ended] = []

    def hear() -> None:
        first.job.fail(Aborted("trainer 1 gave up: bad batch", peer="trainer 1"))

    def dial(endpoint: str) -> Any:
        ways.append(Ended(made.dial(endpoint), hear))
        return ways[-1]

    with cluster(FAST, replace(QUICK, silence=20.0, away=20.0)) as made:
        start(made)
        first = made.trainer(0, dial)
        first.servers.greet(["s0"])
        first.silence()
        first.servers.native[0].process = SimpleNamespace(ended=True)  # type: ignore[assignment]
        ways[0].ended = True
        made.servers["s0"].kill()
        with pytest.raises(Aborted, match="bad batch"):
            first.servers.exchange({"s0": ("w",)})


def test_a_trainer_that_computes_learns_of_the_end_by_heartbeat() -> None:
    patient = Limits(silence=20.0, join=5.0, patience=20.0, farewell=20.0)  # on a busy machine too
    with cluster(patient, replace(QUICK, silence=20.0, away=20.0)) as made:
        start(made)
        stuck: list[Exception] = []
        heard = threading.Event()

        def leave(error: Exception) -> None:
            stuck.append(error)
            heard.set()

        busy, other = made.trainer(0, on_stuck=leave, grace=0.1), made.trainer(1)
        busy.servers.greet(["s0"])
        other.servers.greet(["s0"])
        other.abort("out of memory")
        assert heard.wait(20)
        assert "out of memory" in str(stuck[0])


class Late:
    """A way to a server on which the word that a trainer gives up takes its time."""

    def __init__(self, endpoint: Any, told: list[str]) -> None:
        self._endpoint = endpoint
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        if isinstance(decode([request]).message, Abort):
            if self.endpoint == "s0":
                raise DeadlineExceeded("frozen")
            threading.Event().wait(0.3)
            self._told.append(self.endpoint)
        answer: bytes = self._endpoint.call(request, timeout, wait)
        return answer


@pytest.mark.parametrize("end", ["abort", "close"])
def test_whoever_finds_a_server_lost_ends_only_when_the_others_know(end: str) -> None:
    """Otherwise they see its connection end, and blame it."""
    with cluster(FAST, QUICK) as made:
        names = start(made, servers=2, trainers=1)
        told: list[str] = []
        one = made.trainer(0, lambda name: Late(made.dial(name), told))
        one.servers.greet(names)
        lost = PeerLost("server s0 is lost: silent for 2 s", peer="server s0", step=1)
        finding = threading.Thread(target=one.job.fail, args=(lost,))  # as a heartbeat does
        finding.start()
        while one.job.failure is None:
            pass
        with pytest.raises(PeerLost):
            one.job.check()
        if end == "abort":
            one.abort("PeerLost: server s0 is lost")
        else:
            one.close()
        assert told == ["s1"]
        finding.join()


def test_a_server_that_is_gone_is_named_with_the_step() -> None:
    with cluster(FAST, QUICK) as made:
        start(made, trainers=1)
        faults = Faults(0, rate=0.0, kinds=("lose",))
        one = made.trainer(0, faults.dial(made.dial))
        for _ in range(2):
            one.servers.push("s0", {"w@GRAD": np.ones(4, np.float32)})
            one.servers.barrier(["s0"], strict=True)
            one.servers.exchange({"s0": ("w",)})
        faults.rate = 1.0
        one.servers.push("s0", {"w@GRAD": np.ones(4, np.float32)})
        with pytest.raises(PeerLost, match=r"server s0 is lost.* at step 2"):
            one.servers.exchange({"s0": ("w",)})

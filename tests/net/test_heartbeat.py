"""When a trainer counts a server as lost: no socket, and a clock that the endpoint moves."""

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bireme.errors import BiremeError, DeadlineExceeded, PeerLost
from bireme.net import heartbeat
from bireme.net import messages as m
from bireme.net.carriers import Unreachable
from bireme.net.frames import encode
from bireme.net.heartbeat import Heartbeat, Times

NEVER = float("inf")
TIMES = Times(beat=0.001, silence=2.0, away=4.0)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Beats:
    """An endpoint that takes these seconds for one beat after the other, then ends the test."""

    endpoint = "s0"

    def __init__(
        self,
        clock: Clock,
        seconds: Iterator[float] | list[float],
        report: Callable[[BiremeError], None] | None = None,
        refuses: Callable[[], bool] = lambda: False,
        ended: bool = False,
        at: socket.socket | None = None,
    ) -> None:
        self._reported: list[BiremeError] = []
        self._clock = clock
        self._seconds = iter(seconds)
        self._refuses = refuses
        beat = m.Heartbeat(trainer=0, incarnation=1, step=5)
        report = report or self._reported.append
        endpoint: Any = self
        fileno = at.fileno if at else lambda: -1
        process = SimpleNamespace(ended=ended, fileno=lambda: -1)
        peer: Any = SimpleNamespace(process=process, patience=0.0, fileno=fileno)
        self._heartbeat = Heartbeat(endpoint, lambda: beat, report, TIMES, peer)

    def run(self) -> list[BiremeError]:
        """What it has reported."""
        self._heartbeat._run()
        return self._reported

    def call(self, request: bytes, timeout: float, wait: bool = False) -> bytes:
        takes = next(self._seconds, None)
        if takes is None:
            self._heartbeat.stop()
            takes = 0.0
        self._clock.now += min(takes, timeout)
        if self._refuses():
            raise Unreachable("refused")
        if takes > timeout:
            raise DeadlineExceeded("no answer")
        return encode(m.Accepted())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(heartbeat, "time", made)
    return made


def test_a_server_that_takes_long_for_every_answer_is_alive(clock: Clock) -> None:
    def seconds() -> Iterator[float]:
        while clock.now < 110.0:
            yield 1.9

    assert Beats(clock, seconds()).run() == []


def test_a_frozen_server_is_lost_soon_after_its_time(clock: Clock) -> None:
    began = clock.now
    (lost,) = Beats(clock, [0.0, NEVER, NEVER, NEVER]).run()
    assert isinstance(lost, PeerLost)
    assert "server s0 is lost: silent for 2." in str(lost)
    assert clock.now - began <= 1.5 * TIMES.silence


def test_a_trainer_that_stood_still_itself_asks_once_more(clock: Clock) -> None:
    def seconds() -> Iterator[float]:
        yield NEVER
        clock.now += 60.0
        yield 0.1

    assert Beats(clock, seconds()).run() == []


def test_a_server_whose_process_has_ended_is_lost_at_once(clock: Clock) -> None:
    began = clock.now
    (lost,) = Beats(clock, [0.01], refuses=lambda: True, ended=True).run()
    assert isinstance(lost, PeerLost)
    assert clock.now - began < 0.1


def test_a_server_that_refuses_connections_for_a_while_is_not_lost(clock: Clock) -> None:
    def refuses() -> bool:
        return 101.0 < clock.now < 101.0 + 0.9 * TIMES.away

    assert Beats(clock, [0.1] * 300, refuses=refuses).run() == []
    assert clock.now > 101.0 + TIMES.away


def test_a_server_that_refuses_connections_for_ever_is_lost_at_the_limit(clock: Clock) -> None:
    began = clock.now
    (lost,) = Beats(clock, [0.1] * 300, refuses=lambda: True).run()
    assert isinstance(lost, PeerLost)
    assert TIMES.away <= clock.now - began < 1.1 * TIMES.away


def test_silence_after_refusals_does_not_shorten_the_limit(clock: Clock) -> None:
    """Behind a proxy that has come back, a server may need a moment."""

    def seconds() -> Iterator[float]:
        while clock.now < 100.0 + 0.8 * TIMES.away:
            yield 0.1
        yield NEVER
        yield 0.1

    assert Beats(clock, seconds(), refuses=lambda: clock.now < 100.0 + 0.8 * TIMES.away).run() == []


def test_what_a_server_has_said_before_it_ended_is_read_first(clock: Clock) -> None:
    here, there = socket.socketpair()
    told = threading.Event()
    order: list[str] = []

    def refuses() -> bool:
        told.set()
        return True

    def read() -> None:
        told.wait()
        order.append(here.recv(100).decode())

    with here:
        there.send(b"trainer 1 is lost")
        there.close()
        beats = Beats(
            clock, [0.01], lambda lost: order.append("reported"), refuses, ended=True, at=here
        )
        reader = threading.Thread(target=read)
        reader.start()
        beats.run()
        reader.join()
    assert order == ["trainer 1 is lost", "reported"]

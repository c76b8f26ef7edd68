"""A server of Fluid 1.8 as a trainer sees it: the link's second kind of peer.

Fluid's wire has one call per variable and no call numbers. Gradients leave as they come; the rest
of an exchange (barrier, gets, fetch barrier) happens in `result`, each part after the answers to
the one before. The file knows Fluid's names and order of calls, no programs.
"""

import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping

import numpy as np

from bireme import flags
from bireme.errors import BiremeError, PeerLost, ProtocolError, UnsupportedError
from bireme.rpc import messages as m
from bireme.rpc.fluid_client import FluidCall, FluidWire
from bireme.rpc.fluid_codec import Variable, decode_variable, encode_variable
from bireme.rpc.layouts import Value
from bireme.rpc.liveness import Times
from bireme.rpc.tally import tally
from bireme.rpc.wire import Unreachable

__all__ = ["FluidPeer"]

SYNC, UNKNOWN = 0, -1
BATCH, FETCH, COMPLETE = "BATCH_BARRIER@RECV", "FETCH_BARRIER@RECV", "COMPLETE@RECV"
AT_ONCE, SUFFIX, COUNTER = "@WITHOUT_BARRIER@RECV", ".trainer_", "@LR_DECAY_COUNTER@"
PAUSE = 0.1


class FluidPeer:
    """A Fluid server and the exchange that is open with it. One thread uses it at a time; `cancel`
    may come from any.
    """

    door: int | None = None  # its answers are waited for in `result`

    def __init__(
        self,
        wire: FluidWire,
        trainer: int,
        times: Times,
        failure: Callable[[], BiremeError | None],
    ) -> None:
        self.wire = wire
        self.mode = UNKNOWN  # until a program's first step shows how its servers run
        self._trainer = trainer
        self._times = times
        self._failure = failure
        self._retries = int(flags.get("rpc_retry_times"))
        self._sends: deque[FluidCall] = deque()
        self._running: set[FluidCall] = set()
        self._held: list[tuple[str, Value]] = []
        self._step = 0
        self._round = False  # whether this exchange closes a round
        self._met = False  # whether the startup's fetch barrier has been said
        self._names: tuple[str, ...] = ()
        self._gated = True
        self._ids: Mapping[str, Value] | None = None

    @property
    def name(self) -> str:
        return f"server {self.wire.endpoint}"

    @property
    def open(self) -> bool:
        """Whether an exchange has begun."""
        return bool(self._sends or self._held or self._round)

    # -- writing ---------------------------------------------------------------------------
    def push(self, step: int, name: str, value: Value) -> None:
        """Send a gradient. Before it is known whether rounds are played here, one that does not
        say so by its name is held back until the step ends.
        """
        self._step = step
        if SUFFIX in name and not name.startswith(COUNTER):
            self.mode = SYNC
        if self.mode == UNKNOWN:
            self._held.append((name, value))
        else:
            self._send(name, value)

    def push_all(self, step: int, values: Mapping[str, Value]) -> None:
        """Send several gradients: one call each, as this wire has it."""
        for name, value in values.items():
            self.push(step, name, value)

    def _suffixed(self, name: str) -> str:
        """A lone trainer's program leaves out what a server of rounds expects."""
        lone = self.mode == SYNC and SUFFIX not in name
        return f"{name}{SUFFIX}{self._trainer}" if lone else name

    def _send(self, name: str, value: Value) -> None:
        counts = name.startswith(COUNTER)
        wire_name = name if counts else self._suffixed(name)
        message = encode_variable(Variable(wire_name, trainer=self._trainer, value=value))
        tally.sent += len(message)
        if counts:  # the learning rate follows it, so it keeps its place among the gradients
            self._settle(0)
            self._answer(self._begin("DistributeNotify", message))
        else:
            self._settle(max(1, int(flags.get("rpc_send_thread_num"))) - 1)
            self._sends.append(self._begin("SendVariable", message))

    def _settle(self, most: int) -> None:
        """Wait until at most so many sends are under way."""
        while len(self._sends) > most:
            self._answer(self._sends.popleft())

    def rounds(self, strict: bool) -> bool:
        """Whether a barrier belongs here: Fluid's servers do not say, so the program does."""
        return strict or self.mode == SYNC

    def barrier(self, step: int) -> None:
        """Close the round of this trainer."""
        self._step, self._round, self.mode = step, True, SYNC

    def pull(
        self,
        step: int,
        names: tuple[str, ...],
        gated: bool = True,
        lent: Container[str] = (),
    ) -> None:
        """Ask for variables; `result` brings them."""
        self._step, self._names, self._gated, self._ids = step, names, gated, None

    def look_up(self, step: int, ids: Mapping[str, Value]) -> None:
        """Ask for rows of tables; `result` brings them."""
        self._step, self._ids = step, ids

    # -- reading ---------------------------------------------------------------------------
    def receive(self) -> bool:
        """There is no door to read from."""
        return False

    def result(self) -> dict[str, Value]:
        """What the exchange brings; it is over then.

        Raises:
            PeerLost: the server cannot be reached.
            DeadlineExceeded: it waits for somebody for longer than FLAGS_rpc_deadline.
            BiremeError: the server refused, or the job has failed elsewhere.
        """
        try:
            return self._rows() if self._ids is not None else self._exchange()
        finally:
            self._running.clear()

    def _exchange(self) -> dict[str, Value]:
        held, self._held = self._held, []
        if held and not self._round:
            self.mode = 1  # any that plays no rounds
        for name, value in held:
            self._send(name, value)
        self._settle(0)
        closing, self._round = self._round, False
        if closing:
            self._barrier("SendVariable", BATCH)
        found = self._values(self._names)
        if closing or not self._met:
            self._met = True
            self._barrier("GetVariable", FETCH)
        return found

    def _barrier(self, method: str, name: str) -> None:
        """Barriers are counted and belong to nobody: a repeat could end another's round."""
        self._answer(self._begin(method, encode_variable(Variable(name=name))), retries=0)

    def _values(self, names: Iterable[str]) -> dict[str, Value]:
        method, ending = ("GetVariable", "") if self._gated else ("GetVariableNoBarrier", AT_ONCE)
        questions = {
            name: (method, Variable(name + ending, out_name=name, trainer=self._trainer))
            for name in names
        }
        return self._asked(questions, int(flags.get("rpc_get_thread_num")))

    def _rows(self) -> dict[str, Value]:
        ids, self._ids = self._ids or {}, None
        at = self.wire.endpoint
        questions = {
            table: (
                "PrefetchVariable",
                Variable(
                    f"prefetch_send@{at}",
                    f"prefetch_recv@{at}",
                    table,
                    value=np.asarray(asked, np.int64).reshape(-1, 1),
                ),
            )
            for table, asked in ids.items()
        }
        return self._asked(questions, int(flags.get("rpc_prefetch_thread_num")))

    def _asked(self, questions: Mapping[str, tuple[str, Variable]], limit: int) -> dict[str, Value]:
        """All answers, with at most `limit` calls under way."""
        calls: deque[tuple[str, FluidCall]] = deque()
        found: dict[str, Value] = {}
        for name, (method, said) in questions.items():
            if len(calls) >= max(1, limit):
                self._take(*calls.popleft(), found)
            calls.append((name, self._begin(method, encode_variable(said))))
        while calls:
            self._take(*calls.popleft(), found)
        return found

    def _take(self, name: str, call: FluidCall, found: dict[str, Value]) -> None:
        message = self._answer(call)
        tally.received += len(message)
        value = decode_variable(message).value if message else None
        if value is None:
            raise ProtocolError(
                f"{self.name} holds no variable '{name}'",
                peer=self.name,
                hint="all processes must run the same script with the same endpoints",
            )
        found[name] = np.array(value) if isinstance(value, np.ndarray) else value

    # -- calls -----------------------------------------------------------------------------
    def _begin(self, method: str, message: bytes) -> FluidCall:
        call = self.wire.start(method, message, self._times.deadline)
        self._running.add(call)
        return call

    def _answer(self, call: FluidCall, retries: int | None = None) -> bytes:
        """A call's answer, over as many attempts as FLAGS_rpc_retry_times allows."""
        most = 1 + (self._retries if retries is None else retries)
        while True:
            self._check()
            try:
                answer = call.result()
            except Unreachable as error:
                self._check()
                if call.attempts >= most:
                    raise self._lost(call.attempts, error) from None
                tally.retries += 1
                tally.note(error)
                time.sleep(PAUSE * call.attempts)
                call.again()
                continue
            self._running.discard(call)
            return answer

    def _check(self) -> None:
        failure = self._failure()
        if failure is not None:
            raise failure

    def _lost(self, attempts: int, error: Exception) -> PeerLost:
        return PeerLost(
            f"{self.name} is lost after {attempts} attempts, at step {self._step} ({error})",
            peer=self.name,
            step=self._step,
            hint="see that server's log; the number is FLAGS_rpc_retry_times",
        )

    # -- the end ---------------------------------------------------------------------------
    def say(self, message: m.Message, timeout: float, wait: bool = False) -> m.Message:
        """Tell that this trainer has finished; Fluid's wire has no word for giving up.

        Raises:
            UnsupportedError: no Fluid server understands this.
        """
        if isinstance(message, m.Complete):
            said = encode_variable(Variable(name=COMPLETE, trainer=self._trainer))
            self.wire.start("SendVariable", said, timeout).result()
        elif not isinstance(message, m.Abort):
            raise UnsupportedError(
                f"{self.name} is one of Fluid's and knows no {type(message).__name__}",
                hint="save from a trainer, or use bireme's servers",
            )
        return m.Accepted()

    def close(self) -> None:
        """Free the connection."""
        self.wire.close()

    def cancel(self) -> None:
        """Wake whoever waits in `result`."""
        for call in list(self._running):
            call.cancel()

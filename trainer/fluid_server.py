"""A server of Fluid 1.8 as a trainer sees it: the pool's second kind of server.

Fluid's wire has one call per variable and no call numbers. Gradients leave as they come; the rest
of an exchange (barrier, gets, fetch barrier) happens in `result`, each part after the answers to
the one before. The file knows Fluid's names and order of calls, no programs.
"""

import time
from collections import deque
from collections.abc import Container, Iterable, Mapping

import numpy as np

from bireme import flags
from bireme.errors import PeerLost, ProtocolError, UnsupportedError
from bireme.ir import DistributedMode
from bireme.ir.names import is_counter, is_of_trainer, of_trainer
from bireme.monitoring.counters import tally
from bireme.net import messages as m
from bireme.net.carriers import Unreachable
from bireme.net.fluid.client import FluidCall, FluidWire
from bireme.net.fluid.codec import Variable, decode_variable, encode_variable
from bireme.net.layouts import Value

from .job_state import JobState

__all__ = ["FluidServer"]

UNKNOWN = -1
BATCH, FETCH, COMPLETE = "BATCH_BARRIER@RECV", "FETCH_BARRIER@RECV", "COMPLETE@RECV"
AT_ONCE = "@WITHOUT_BARRIER@RECV"
PAUSE = 0.1


class FluidServer:
    """A Fluid server and the exchange that is open with it. One thread uses it at a time; `cancel`
    may come from any.
    """

    def __init__(self, endpoint: FluidWire, job: JobState) -> None:
        self.endpoint = endpoint
        self.mode: int = UNKNOWN  # until a program's first step shows how its servers run
        self.step = 0
        self._job = job
        self._times = job.times
        self._retries = int(flags.get("rpc_retry_times"))
        self._sends: deque[FluidCall] = deque()
        self._running: set[FluidCall] = set()
        self._held: list[tuple[str, Value]] = []
        self._round = False  # whether this exchange closes a round
        self._met = False  # whether the startup's fetch barrier has been said
        self._names: tuple[str, ...] = ()
        self._gated = True
        self._ids: Mapping[str, Value] | None = None

    @property
    def name(self) -> str:
        return f"server {self.endpoint.endpoint}"

    @property
    def open(self) -> bool:
        """Whether an exchange has begun."""
        return bool(self._sends or self._held or self._round)

    # -- writing ---------------------------------------------------------------------------
    def push(self, values: Mapping[str, Value]) -> None:
        """Send gradients, one call each, as this wire has it. Before it is known whether rounds
        are played here, one that does not say so by its name is held back until the step ends.
        """
        for name, value in values.items():
            self._push(name, value)

    def _push(self, name: str, value: Value) -> None:
        if is_of_trainer(name) and not is_counter(name):
            self.mode = DistributedMode.SYNC
        if self.mode == UNKNOWN:
            self._held.append((name, value))
        else:
            self._send(name, value)

    def _suffixed(self, name: str) -> str:
        """A lone trainer's program leaves out what a server of rounds expects."""
        lone = self.mode == DistributedMode.SYNC and not is_of_trainer(name)
        return of_trainer(name, self._job.trainer) if lone else name

    def _send(self, name: str, value: Value) -> None:
        counts = is_counter(name)
        wire_name = name if counts else self._suffixed(name)
        message = encode_variable(Variable(wire_name, trainer=self._job.trainer, value=value))
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
        return strict or self.mode == DistributedMode.SYNC

    def barrier(self) -> None:
        """Close the round of this trainer."""
        self._round, self.mode = True, DistributedMode.SYNC

    def pull(self, names: tuple[str, ...], gated: bool = True, lent: Container[str] = ()) -> None:
        """Ask for variables; `result` brings them."""
        self._names, self._gated, self._ids = names, gated, None

    def look_up(self, ids: Mapping[str, Value]) -> None:
        """Ask for rows of tables; `result` brings them."""
        self._ids = ids

    # -- reading ---------------------------------------------------------------------------
    def fileno(self) -> int:
        """Its answers are waited for in `result`."""
        return -1

    def arrived(self) -> dict[str, Value] | None:
        """See `fileno`."""
        return None

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
            name: (method, Variable(name + ending, out_name=name, trainer=self._job.trainer))
            for name in names
        }
        return self._asked(questions, int(flags.get("rpc_get_thread_num")))

    def _rows(self) -> dict[str, Value]:
        ids, self._ids = self._ids or {}, None
        at = self.endpoint.endpoint
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
        call = self.endpoint.start(method, message, self._times.deadline)
        self._running.add(call)
        return call

    def _answer(self, call: FluidCall, retries: int | None = None) -> bytes:
        """A call's answer, over as many attempts as FLAGS_rpc_retry_times allows."""
        most = 1 + (self._retries if retries is None else retries)
        while True:
            self._job.check()
            try:
                answer = call.result()
            except Unreachable as error:
                self._job.check()
                if call.attempts >= most:
                    raise self._lost(call.attempts, error) from None
                tally.retries += 1
                tally.note(error)
                time.sleep(PAUSE * call.attempts)
                call.again()
                continue
            self._running.discard(call)
            return answer

    def _lost(self, attempts: int, error: Exception) -> PeerLost:
        return PeerLost(
            f"{self.name} is lost after {attempts} attempts, at step {self.step} ({error})",
            peer=self.name,
            step=self.step,
            hint="see that server's log; the number is FLAGS_rpc_retry_times",
        )

    # -- the end ---------------------------------------------------------------------------
    def say(self, message: m.Message, timeout: float, wait: bool = False) -> m.Message:
        """Tell that this trainer has finished; Fluid's wire has no word for giving up.

        Raises:
            UnsupportedError: no Fluid server understands this.
        """
        if isinstance(message, m.Complete):
            said = encode_variable(Variable(name=COMPLETE, trainer=self._job.trainer))
            self.endpoint.start("SendVariable", said, timeout).result()
        elif not isinstance(message, m.Abort):
            raise UnsupportedError(
                f"{self.name} is one of Fluid's and knows no {type(message).__name__}",
                hint="save from a trainer, or use bireme's servers",
            )
        return m.Accepted()

    def close(self) -> None:
        """Free the connection."""
        self.endpoint.close()

    def cancel(self) -> None:
        """Wake whoever waits in `result`."""
        for call in list(self._running):
            call.cancel()

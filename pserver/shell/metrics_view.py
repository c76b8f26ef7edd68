"""A server's metrics as the admin port shows them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bireme.monitoring.counters import Histogram, Sample

from ..rules.core import Core

__all__ = ["MetricsView"]


class MetricsView:
    """A server's metrics as the admin port shows them."""

    def __init__(
        self,
        core: Core,
        endpoint: str,
        mode: str,
        clock: Callable[[], float],
        beside: Callable[[], Iterable[Sample]] = tuple,
        shards: Callable[[], Iterable[Mapping[str, Any]]] = tuple,
    ) -> None:
        self._core = core
        self._beside = beside  # what the shell and the tables know
        self.shards = shards
        self._endpoint = endpoint
        self._mode = mode
        self._clock = clock  # seconds since 1970, for the times of heartbeats

    def totals(self) -> dict[str, float]:
        metrics = self._core.metrics
        return {
            "steps": self._core.version,
            "sent": metrics.sent,
            "received": metrics.received,
            "waits": metrics.waits.count,
            "waited": metrics.waits.total,
            "update": metrics.updates.total,
            "send": metrics.replies.total,
        }

    def samples(self) -> Iterable[Sample]:
        core, metrics = self._core, self._core.metrics
        yield Sample("bireme_steps_total", core.version, {"role": "server", "trainer": ""})
        yield _bytes("push", "received", metrics.received)
        yield _bytes("pull", "sent", metrics.sent)
        yield Sample("bireme_rpc_deduplicated_total", metrics.repeats, {"method": "exchange"})
        yield Sample("bireme_barrier_wait_seconds", metrics.waits, {"barrier": "round"})
        yield Sample("bireme_barrier_waiting", len(core.calls.parked), {"barrier": "round"})
        yield Sample("bireme_step_seconds", metrics.updates, _phase("update"))
        yield Sample("bireme_step_seconds", metrics.replies, _phase("send"))
        yield from self._beside()
        for trainer, found in list(metrics.staleness.items()):
            yield Sample("bireme_gradient_staleness_steps", found, {"trainer": trainer})
        for trainer, count in list(metrics.applied.items()):
            yield Sample("bireme_gradients_applied_total", count, {"trainer": trainer})
        for member in core.trainers.members:
            peer = {"peer": f"trainer {member.number}"}
            heard = self._clock() - (core.trainers.now - member.heard)
            yield Sample("bireme_peer_up", int(not member.left), peer)
            yield Sample("bireme_peer_last_heartbeat_timestamp_seconds", heard, peer)

    def status(self) -> dict[str, Any]:
        core, metrics = self._core, self._core.metrics
        return {
            "endpoint": self._endpoint,
            "mode": self._mode,
            "step": core.version,
            "waiting": len(core.calls.parked),
            "waiting_seconds": round(core.waited, 2),
            "missing": core.policy.missing() if core.calls.parked else [],
            "tables": self._tables(),
            "staleness": {trainer: h.mean for trainer, h in list(metrics.staleness.items())},
            "trainers": {
                member.number: {
                    "step": member.step,
                    "done": member.left,
                    "silent_seconds": round(core.trainers.now - member.heard, 2),
                }
                for member in core.trainers.members
            },
        }

    def _tables(self) -> dict[str, dict[str, float]]:
        """Table -> rows and bytes."""
        found: dict[str, dict[str, float]] = {}
        for sample in self._beside():
            if "table" in sample.labels and not isinstance(sample.value, Histogram):
                row = found.setdefault(str(sample.labels["table"]), {})
                row[sample.name.removeprefix("bireme_table_")] = sample.value
        return found


def _phase(name: str) -> dict[str, str]:
    return {"trainer": "", "phase": name}


def _bytes(method: str, direction: str, count: int) -> Sample:
    return Sample("bireme_rpc_bytes_total", count, {"method": method, "direction": direction})

"""Names and meanings of metrics, and their collector for Prometheus.

Running code increments plain numbers; metric families are built only when scraped.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .counters import Histogram, Sample

__all__ = ["METRICS", "exposed", "registry_of"]

METRICS: Mapping[str, tuple[str, str]] = {
    "bireme_build_info": ("gauge", "always 1; the labels tell version and role"),
    "bireme_steps_total": ("counter", "training steps, or updates of a server"),
    "bireme_samples_total": ("counter", "samples trained on"),
    "bireme_step_seconds": ("histogram", "time of a step, and of each of its phases"),
    "bireme_rpc_bytes_total": ("counter", "payload of gradients, parameters and rows"),
    "bireme_rpc_retries_total": ("counter", "exchanges sent again after a lost connection"),
    "bireme_rpc_deduplicated_total": ("counter", "repeated calls answered but not applied again"),
    "bireme_barrier_wait_seconds": ("histogram", "time spent waiting for a round to complete"),
    "bireme_barrier_waiting": ("gauge", "calls waiting at this moment"),
    "bireme_gradient_staleness_steps": (
        "histogram",
        "steps of other trainers between a pull and the push that follows it",
    ),
    "bireme_gradients_applied_total": ("counter", "gradients applied to parameters"),
    "bireme_queue_depth": ("gauge", "entries waiting in a queue"),
    "bireme_table_rows": ("gauge", "rows of a distributed table"),
    "bireme_table_bytes": ("gauge", "memory of a distributed table"),
    "bireme_checkpoint_seconds": ("histogram", "time of a save"),
    "bireme_checkpoint_failures_total": (
        "counter",
        "parts of checkpoints that could not be saved while training went on",
    ),
    "bireme_checkpoint_bytes": ("gauge", "size of the last checkpoint"),
    "bireme_checkpoint_last_success_timestamp_seconds": (
        "gauge",
        "when the last checkpoint was completed",
    ),
    "bireme_record_seconds": ("histogram", "time to make the record of a round durable"),
    "bireme_record_bytes": ("gauge", "size of the record since the last save"),
    "bireme_record_failures_total": (
        "counter",
        "records that ended because the disk refused, while training went on",
    ),
    "bireme_rewinds_total": (
        "counter",
        "how often this process has gone back to the newest checkpoint because a peer was lost",
    ),
    "bireme_peer_up": ("gauge", "1 while the trainer takes part"),
    "bireme_peer_last_heartbeat_timestamp_seconds": ("gauge", "when the trainer was last heard"),
    "bireme_incarnation": ("gauge", "start time of this process; it grows with every restart"),
    "bireme_loss": ("gauge", "last loss reported by the script"),
    "bireme_metric": ("gauge", "last value of a metric that the script reports by a name"),
    "bireme_accuracy": ("gauge", "last accuracy reported by the script"),
}


class _Samples(Collector):
    """Turns samples, read anew for every scrape, into metric families."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the samples."""
        return []

    def collect(self) -> Iterator[Metric]:
        groups: dict[str, list[Sample]] = {}
        for sample in self._read():
            groups.setdefault(sample.name, []).append(sample)
        return (_family(name, group) for name, group in groups.items())


def _family(name: str, group: list[Sample]) -> Metric:
    """All samples of one metric, which have the same labels."""
    kind, meaning = METRICS[name]
    labels = list(group[0].labels)
    if kind == "histogram":
        return _histograms(HistogramMetricFamily(name, meaning, labels=labels), group)
    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    family = make(name, meaning, labels=labels)
    for sample in group:
        assert not isinstance(sample.value, Histogram)
        family.add_metric(_texts(sample), sample.value)
    return family


def _histograms(family: HistogramMetricFamily, group: list[Sample]) -> Metric:
    for sample in group:
        assert isinstance(sample.value, Histogram)
        family.add_metric(_texts(sample), list(_buckets(sample.value)), sample.value.total)
    return family


def _texts(sample: Sample) -> list[str]:
    return [str(value) for value in sample.labels.values()]


def _buckets(found: Histogram) -> Iterator[tuple[str, float]]:
    """Upper bound of each bucket, and how many values lie at or below it."""
    below = 0
    bounds = [*map(str, found.bounds), "+Inf"]
    for bound, count in zip(bounds, found.counts, strict=True):
        below += count
        yield bound, below


def registry_of(read: Callable[[], Iterable[Sample]]) -> CollectorRegistry:
    """A registry of these samples and of the standard process and garbage collector metrics."""
    registry = CollectorRegistry()
    registry.register(_Samples(read))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposed(samples: Iterable[Sample]) -> str:
    """These samples in Prometheus's text format."""
    return generate_latest(_Samples(lambda: samples)).decode()

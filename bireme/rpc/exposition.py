"""Metrics as Prometheus reads them: lines of text. Knows the names and their meanings."""

import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from .tally import Histogram, Sample

__all__ = ["METRICS", "exposed", "process_samples"]

METRICS: Mapping[str, tuple[str, str]] = {
    "bireme_build_info": ("gauge", "1; the labels say what runs"),
    "bireme_steps_total": ("counter", "steps of training, or updates of a server"),
    "bireme_samples_total": ("counter", "samples trained on"),
    "bireme_step_seconds": ("histogram", "time of a step"),
    "bireme_rpc_bytes_total": ("counter", "payload of gradients, parameters and rows"),
    "bireme_rpc_retries_total": ("counter", "exchanges sent again after a lost connection"),
    "bireme_rpc_deduplicated_total": ("counter", "repeats that were answered and not applied"),
    "bireme_barrier_wait_seconds": ("histogram", "wait for a round and what it brings"),
    "bireme_barrier_waiting": ("gauge", "calls that wait at this moment"),
    "bireme_gradient_staleness_steps": ("histogram", "others' steps between a pull and a push"),
    "bireme_gradients_applied_total": ("counter", "gradients taken into updates"),
    "bireme_queue_depth": ("gauge", "things that wait in a queue"),
    "bireme_table_rows": ("gauge", "rows of a growing table"),
    "bireme_table_bytes": ("gauge", "memory of a growing table"),
    "bireme_table_lookups_total": ("counter", "rows asked of a table"),
    "bireme_checkpoint_seconds": ("histogram", "time of a save or a load"),
    "bireme_checkpoint_bytes": ("gauge", "size of the last checkpoint"),
    "bireme_checkpoint_last_success_timestamp_seconds": ("gauge", "when the last one was made"),
    "bireme_peer_up": ("gauge", "1 while a peer takes part"),
    "bireme_peer_last_heartbeat_timestamp_seconds": ("gauge", "when a peer was last heard"),
    "bireme_incarnation": (
        "gauge",
        "when this life of the role began; a restart is a larger number",
    ),
    "bireme_loss": ("gauge", "the loss that the script reported last"),
    "bireme_accuracy": ("gauge", "the accuracy that the script reported last"),
    "process_resident_memory_bytes": ("gauge", "memory in use"),
    "process_cpu_seconds_total": ("counter", "processor time, user and system"),
    "process_open_fds": ("gauge", "open file descriptors"),
    "process_start_time_seconds": ("gauge", "when the process began"),
    "python_gc_collections_total": ("counter", "runs of the garbage collector"),
}


def exposed(samples: Iterable[Sample]) -> str:
    """All samples as text, grouped by metric."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.name, []).append(sample)
    return "".join(line + "\n" for name, group in groups.items() for line in _group(name, group))


def _group(name: str, group: list[Sample]) -> Iterator[str]:
    kind, meaning = METRICS.get(name, ("untyped", ""))
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
    for sample in group:
        if isinstance(sample.value, Histogram):
            yield from _buckets(sample, sample.value)
        else:
            yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"


def _buckets(sample: Sample, found: Histogram) -> Iterator[str]:
    below = 0
    for bound, count in zip((*found.bounds, float("inf")), found.counts, strict=True):
        below += count
        limit = "+Inf" if bound == float("inf") else _number(bound)
        yield f"{sample.name}_bucket{_labels({**sample.labels, 'le': limit})} {below}"
    yield f"{sample.name}_sum{_labels(sample.labels)} {_number(found.total)}"
    yield f"{sample.name}_count{_labels(sample.labels)} {below}"


def _labels(labels: Mapping[str, object]) -> str:
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def process_samples() -> Iterator[Sample]:
    """What the operating system and Python know of this process."""
    used = os.times()
    yield Sample("process_cpu_seconds_total", used.user + used.system)
    yield from _from_proc(Path("/proc/self"))
    for generation, found in enumerate(gc.get_stats()):
        labels = {"generation": generation}
        yield Sample("python_gc_collections_total", found["collections"], labels)


def _from_proc(own: Path) -> Iterator[Sample]:
    if not own.exists():
        return
    fields = (own / "stat").read_text().rpartition(")")[2].split()
    up = float(Path("/proc/uptime").read_text().split()[0])
    began = time.time() - up + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    yield Sample("process_resident_memory_bytes", int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    yield Sample("process_open_fds", len(list((own / "fd").iterdir())))
    yield Sample("process_start_time_seconds", began)

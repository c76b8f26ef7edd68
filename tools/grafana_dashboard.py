"""Prints docs/monitoring/grafana.json: Grafana's dashboard of a job. `make docs` runs it."""

import json
from typing import Any, NamedTuple

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB = 'job=~"$job"'
COLUMNS, WIDTH, HEIGHT = 2, 12, 8


class Panel(NamedTuple):
    """A chart: expressions with their legends; J stands for the chosen jobs."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]


def mean(metric: str, by: str, where: str = "J") -> str:
    """The mean of a histogram over five minutes."""
    parts = (f"sum by ({by}) (rate({metric}_{end}{{{where}}}[5m]))" for end in ("sum", "count"))
    return " / ".join(parts)


def quantile(q: float, metric: str, where: str) -> str:
    rate = f"rate({metric}_bucket{{{where}}}[5m])"
    return f"histogram_quantile({q}, sum by (le) ({rate}))"


TRAINER = "trainer {{trainer}}"
STEP = 'J, phase="step"'
PANELS = (
    Panel("Loss", "short", (("bireme_loss{J}", TRAINER),)),
    Panel("Metrics", "short", (
        ("bireme_accuracy{J}", f"accuracy, {TRAINER}"),
        ("bireme_metric{J}", "{{name}}, " + TRAINER),
    )),
    Panel("Samples per second", "short", (
        ("sum by (trainer) (rate(bireme_samples_total{J}[1m]))", TRAINER),
    )),
    Panel("Time of a step", "s", (
        (quantile(0.5, "bireme_step_seconds", STEP), "median"),
        (quantile(0.95, "bireme_step_seconds", STEP), "95 %"),
    )),
    Panel("Phases of a step, all trainers", "s", (
        (mean("bireme_step_seconds", "phase", 'J, trainer!="", phase!="step"'), "{{phase}}"),
    )),
    Panel("Work per step by trainer (the largest makes the others wait)", "s", (
        ('sum by (trainer) (rate(bireme_step_seconds_sum{J, trainer!="", '
         'phase=~"data|forward|backward|send|update"}[5m])) / '
         'sum by (trainer) (rate(bireme_step_seconds_count{J, phase="step"}[5m]))', TRAINER),
    )),
    Panel("Servers: time of an update", "s", (
        (mean("bireme_step_seconds", "instance", 'J, trainer="", phase="update"'), "{{instance}}"),
    )),
    Panel("Wait for the round", "s", (
        (mean("bireme_barrier_wait_seconds", "instance"), "{{instance}}"),
    )),
    Panel("Bytes per second", "Bps", (
        ("sum by (instance, direction) (rate(bireme_rpc_bytes_total{J}[1m]))",
         "{{instance}} {{direction}}"),
    )),
    Panel("Staleness of gradients", "short", (
        (mean("bireme_gradient_staleness_steps", "trainer"), TRAINER),
    )),
    Panel("Memory of processes", "bytes", (
        ("process_resident_memory_bytes{J}", "{{instance}}"),
    )),
    Panel("CPU of processes", "percentunit", (
        ("rate(process_cpu_seconds_total{J}[1m])", "{{instance}}"),
    )),
    Panel("Rows of tables", "short", (("sum by (table) (bireme_table_rows{J})", "{{table}}"),)),
    Panel("Bytes of tables by server", "bytes", (
        ("bireme_table_bytes{J}", "{{table}} {{instance}}"),
    )),
    Panel("Silence of trainers", "s", (
        ("time() - bireme_peer_last_heartbeat_timestamp_seconds{J} and bireme_peer_up{J} == 1",
         "{{peer}} at {{instance}}"),
    )),
    Panel("Waiting calls and queued updates", "short", (
        ("bireme_barrier_waiting{J}", "waiting, {{instance}}"),
        ("bireme_queue_depth{J}", "queued, {{instance}}"),
    )),
    Panel("Retries and repeated calls per second", "short", (
        ("rate(bireme_rpc_retries_total{J}[5m])", "retries, {{instance}}"),
        ("rate(bireme_rpc_deduplicated_total{J}[5m])", "answered again, {{instance}}"),
    )),
    Panel("Age of the last checkpoint", "s", (
        ("time() - bireme_checkpoint_last_success_timestamp_seconds{J}", "{{instance}}"),
    )),
)  # fmt: skip


def panel(number: int, given: Panel) -> dict[str, Any]:
    place = {
        "x": number % COLUMNS * WIDTH, "y": number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT,
    }  # fmt: skip
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": SOURCE,
            "expr": line.replace("J,", f"{JOB},").replace("{J}", f"{{{JOB}}}"),
            "legendFormat": legend,
        }
        for i, (line, legend) in enumerate(given.lines)
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": given.title,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": given.unit}, "overrides": []},
        "options": {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi"}},
    }


def dashboard() -> dict[str, Any]:
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": "label_values(bireme_build_info, job)", "refId": "jobs"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "title": "bireme",
        "uid": "bireme-job",
        "tags": ["bireme"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": []},
        "panels": [panel(i, given) for i, given in enumerate(PANELS)],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))

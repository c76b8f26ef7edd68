"""How many rows a second does Parquet feed, beside pyarrow alone, on one core in one process?

The table is one of clicks: 13 numbers, 26 ids, a label, and a list of 0 to 9 ids. pyarrow alone
reads the same columns as record batches with one thread, and does nothing with them. Variants
alternate; the core is the same for all. `text` is the same data as MultiSlot lines, fewer of them.

    python benchmarks/bench_parquet.py [--rows 400000] [--rounds 5] [--save FILE]
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import bireme as fluid

BATCHES = (128, 1024, 8192)
TEXT_ROWS = 20_000


def table(rows: int) -> Any:
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"click": rng.integers(0, 2, rows)}
    columns |= {f"I{i}": rng.normal(size=rows).astype("float32") for i in range(13)}
    columns |= {f"C{i}": rng.zipf(1.2, rows) % 1_000_000 for i in range(26)}
    ends = np.cumsum(rng.integers(0, 10, rows))
    offsets = pa.array(np.concatenate(([0], ends)).astype("int32"))
    columns["seen"] = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 10**6, ends[-1])))
    return pa.table(columns)


def slots(schema: Any) -> list[Any]:
    found = []
    for field in schema:
        level = int(pa.types.is_list(field.type))
        dtype = "float32" if field.type == pa.float32() else "int64"
        found.append(fluid.data(field.name, [None, 1], dtype, lod_level=level))
    return found


def lines(content: Any) -> str:
    text = []
    for row in content.to_pylist():
        values = [v if isinstance(v, list) else [v] for v in row.values()]
        text.append(" ".join(f"{len(v)} {' '.join(map(str, v))}".strip() for v in values))
    return "\n".join(text) + "\n"


def dataset(kind: str, path: str, variables: list[Any], batch: int) -> Any:
    made = fluid.DatasetFactory().create_dataset(kind)
    made.set_batch_size(batch)
    made.set_filelist([path])
    made.set_use_var(variables)
    return made


def alone(path: str, names: list[str]) -> None:
    """pyarrow reads the same columns, and drops them."""
    file = pq.ParquetFile(path, memory_map=True, pre_buffer=True)  # its fastest, as measured
    for _ in file.iter_batches(batch_size=1 << 16, columns=names, use_threads=False):
        pass


def drained(feeds: Iterator[Any]) -> None:
    for _ in feeds:
        pass


def variants(folder: Path, rows: int) -> dict[str, tuple[int, Callable[[], None]]]:
    """name -> (rows, what is timed)."""
    content = table(rows)
    path, text = str(folder / "x.parquet"), str(folder / "x.txt")
    pq.write_table(content, path)
    Path(text).write_text(lines(content.slice(0, TEXT_ROWS)))
    variables = slots(content.schema)
    names = [v.name for v in variables]
    found: dict[str, tuple[int, Callable[[], None]]] = {
        "pyarrow alone": (rows, lambda: alone(path, names))
    }
    for batch in BATCHES:
        data = dataset("QueueDataset", path, variables, batch)
        found[f"QueueDataset, batches of {batch}"] = (rows, lambda d=data: drained(d.feeds()))
    reader = fluid.io.arrow_batches(path, variables, 1024)
    loader = fluid.io.DataLoader.from_generator(variables, capacity=4)
    loader.set_batch_generator(reader)
    found["DataLoader, batches of 1024"] = (rows, lambda: drained(loader()))
    lined = dataset("QueueDataset", text, variables, 1024)
    found["text, batches of 1024"] = (min(rows, TEXT_ROWS), lambda: drained(lined.feeds()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    pa.set_cpu_count(1)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        timed = variants(Path(folder), args.rows)
        for _ in range(args.rounds + 1):
            for name, (rows, act) in timed.items():
                begin = perf_counter()
                act()
                times.setdefault(name, []).append(rows / (perf_counter() - begin))
    out = [f"one core, {args.rows} rows of 41 columns, {args.rounds} rounds", ""]
    out.append(f"{'rows a second':<34}{'median':>12}{'best':>12}{'of pyarrow':>13}")
    rates = {name: each[1:] for name, each in times.items()}  # the first round warms up
    for name, each in rates.items():
        ratios = [a / b for a, b in zip(each, rates["pyarrow alone"], strict=True)]
        out.append(f"  {name:<32}{median(each):>12,.0f}{max(each):>12,.0f}{median(ratios):>12.0%}")
    print("\n".join(out))
    if args.save:
        args.save.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()

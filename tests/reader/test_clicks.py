"""A click-through model learns from real rows of the Criteo set, read from files and by processes.

The sample is not part of the project: it is looked for in $CRITEO_SAMPLE and beside the checkout.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.reader import DataLoader, DatasetFactory

BESIDE = Path(__file__).parents[3] / "shared" / "data" / "criteo" / "slots_sample.txt"
SAMPLE = Path(os.environ.get("CRITEO_SAMPLE", BESIDE))
FIELDS, IDS, BATCH = 39, 1_086_460, 10
# `name:value` words to MultiSlot: for each slot a count and its values
PIPE = (
    f'{sys.executable} -c "'
    + (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    slots = {}\n"
        "    for word in line.split():\n"
        "        name, value = word.split(':')\n"
        "        slots.setdefault(name, []).append(value)\n"
        "    parts = [slots[n] for n in ('feat_idx', 'feat_value', 'label')]\n"
        "    print(' '.join(' '.join([str(len(p)), *p]) for p in parts))\n"
    )
    + '"'
)

pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="no sample of the Criteo set is here")


def model() -> tuple[Any, Any, Any, list[Any]]:
    """A factorisation machine of first order over hashed features."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = fluid.layers.data("feat_idx", [FIELDS], dtype="int64")
        values = fluid.layers.data("feat_value", [FIELDS])
        label = fluid.layers.data("label", [1])
        flat = fluid.layers.reshape(ids, [-1, 1])
        rows = fluid.layers.embedding(flat, [IDS, 4], is_sparse=True)
        rows = fluid.layers.reshape(rows, [-1, FIELDS, 4])
        scaled = fluid.layers.elementwise_mul(rows, values, axis=0)
        logit = fluid.layers.fc(fluid.layers.reshape(scaled, [-1, FIELDS * 4]), 1)
        cost = fluid.layers.sigmoid_cross_entropy_with_logits(logit, label)
        loss = fluid.layers.mean(cost)
        fluid.optimizer.Adagrad(0.05).minimize(loss)
    return main, startup, loss, [ids, values, label]


def samples() -> list[tuple[Any, Any, Any]]:
    found = []
    for line in SAMPLE.read_text().splitlines():
        words = [word.split(":") for word in line.split()]
        parts = [[v for n, v in words if n == name] for name in ("feat_idx", "feat_value", "label")]
        ids, values, label = parts
        found.append((np.int64(ids), np.float32(values), np.float32(label)))
    return found


def train(source: Any) -> list[float]:
    """The losses of three epochs over the feeds that `source(variables)` gives."""
    main, startup, loss, variables = model()
    losses = []
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        for _ in range(3):
            for feed in source(variables):
                losses.append(float(exe.run(main, feed, [loss])[0][0]))
    return losses


def by_hand(variables: list[Any]) -> list[dict[str, Any]]:
    rows = samples()
    batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    names = [v.name for v in variables]
    return [dict(zip(names, map(np.stack, zip(*b, strict=True)), strict=True)) for b in batches]


def test_files_and_processes_give_the_losses_of_feeding_by_hand(tmp_path: Path) -> None:
    lines = SAMPLE.read_text().splitlines(keepends=True)
    paths = []
    for i in range(0, len(lines), 25):
        paths.append(tmp_path / f"part-{i:03}")
        paths[-1].write_text("".join(lines[i : i + 25]))

    def from_files(variables: list[Any]) -> Any:
        dataset = DatasetFactory().create_dataset("QueueDataset")
        dataset.set_filelist([str(p) for p in paths])
        dataset.set_use_var(variables)
        dataset.set_batch_size(BATCH)
        dataset.set_thread(4)
        dataset.set_pipe_command(PIPE)
        return dataset.feeds()

    def from_processes(variables: list[Any]) -> Any:
        return DataLoader(samples(), variables, batch_size=BATCH, num_workers=2)

    wanted = train(by_hand)
    assert np.mean(wanted[-10:]) < np.mean(wanted[:10])
    assert train(from_processes) == wanted
    np.testing.assert_allclose(train(from_files), wanted, rtol=1e-6)


def test_train_from_dataset_prints_the_losses_of_feeding_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, startup, loss, variables = model()
    path = tmp_path / "all"
    path.write_text(SAMPLE.read_text())
    dataset: Any = DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_filelist([str(path)])
    dataset.set_use_var(variables)
    dataset.set_batch_size(BATCH)
    dataset.set_pipe_command(PIPE)
    dataset.load_into_memory()
    with fluid.scope_guard(fluid.Scope()), fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(startup)
        exe.train_from_dataset(main, dataset, thread=4, fetch_list=[loss], print_period=1)
    printed = capsys.readouterr().out.splitlines()
    found = [float(line.partition("[")[2].rstrip("]")) for line in printed]
    np.testing.assert_allclose(found, train(by_hand)[: len(found)], rtol=1e-5)

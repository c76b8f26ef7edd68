"""What a checkpoint sees of a server's tables, and what a million rows would take."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.values import SelectedRows
from bireme.errors import FormatError
from bireme.pserver.store.tables import ServedTable, Tables
from bireme.runtime.scope import Scope

BENCH = Path(__file__).parents[2] / "benchmarks" / "bench_tables.py"


def server(index: int = 1, servers: int = 2) -> tuple[ServedTable, Any]:
    """A server's table, and a function that updates rows of it."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        ids = fluid.layers.data("ids", [1], dtype="int64")
        rows = fluid.layers.embedding(ids, [-1, 3], True, True, param_attr="table")
        fluid.optimizer.Adam(0.1, lazy_mode=True).minimize(fluid.layers.mean(rows))
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = False
    transpiler = fluid.DistributeTranspiler(config)
    ends = [f"127.0.0.1:{6000 + i}" for i in range(servers)]
    transpiler.transpile(0, main, ",".join(ends), 1, False, startup)
    program, begin = transpiler.get_pserver_programs(ends[index])
    scope, executor = Scope(), fluid.Executor(fluid.CPUPlace())
    executor.run(begin, scope=scope)
    name = f"table@GRAD.pserver_{index}"
    block = next(b.idx for b in program.blocks[1:] for op in b.ops if op.input("Grad") == [name])
    run = executor.prepare(program, block, scope)

    def update(ids: list[int]) -> None:
        value = np.ones((len(ids), 3), np.float32)
        scope.var(name).put(SelectedRows(np.array(ids), value, -1))
        run()

    (table,) = Tables(program, scope)
    return table, update


def test_rows_are_read_by_rising_ids_with_all_their_states() -> None:
    table, update = server()
    update([7, 3])
    update([7, (1 << 41) + 1])
    rows = table.read()
    assert rows.ids.tolist() == [3, 7, (1 << 41) + 1]
    assert list(rows.arrays) == list(table.variables)
    assert set(table.variables) == {"table", "table_moment1_0", "table_moment2_0"}
    assert all(array.shape == (3, 3) for array in rows.arrays.values())
    assert len(table) == 3
    assert table.nbytes == 3 * 3 * 3 * 4
    assert table.shape == (-1, 3)


def test_another_server_goes_on_from_rows_that_were_written_to_it() -> None:
    (table, update), (other, go_on) = server(), server()
    update([3, 7])
    update([7, 9])
    rows = table.read()
    go_on([11])  # what was there before is forgotten
    other.write(rows.ids, rows.arrays)
    update([7, 13])
    go_on([7, 13])
    ours, theirs = table.read(), other.read()
    assert ours.ids.tolist() == theirs.ids.tolist() == [3, 7, 9, 13]
    for name in ("table", "table_moment1_0", "table_moment2_0"):
        rows_of = [r.arrays[name][:3] for r in (ours, theirs)]
        if name != "table":  # the powers of the rates are ordinary variables
            assert np.array_equal(*rows_of)
        assert np.array_equal(rows_of[0][0], rows_of[1][0])


def test_states_without_an_array_begin_anew() -> None:
    table, update = server()
    update([3])
    rows = table.read()
    table.write(rows.ids, {"table": rows.arrays["table"]})
    again = table.read()
    assert np.array_equal(again.arrays["table"], rows.arrays["table"])
    assert not again.arrays["table_moment1_0"].any()


def test_rows_that_live_elsewhere_are_refused() -> None:
    table, _ = server()
    assert table.owns(np.array([1, 2, 3])).tolist() == [True, False, True]
    with pytest.raises(FormatError, match="ids that leave 1 divided by 2 only"):
        table.write(np.array([1, 2]), {"table": np.zeros((2, 3), np.float32)})
    with pytest.raises(FormatError, match="has no variable 'strange'"):
        table.write(np.array([1]), {"strange": np.zeros((1, 3), np.float32)})
    with pytest.raises(FormatError, match="misses its parameter"):
        table.write(np.array([1]), {})


@pytest.mark.slow
def test_a_row_takes_at_most_a_third_more_than_its_arrays() -> None:
    command = [sys.executable, str(BENCH), "--rows", "300000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = re.search(r"([\d.]+) times the raw arrays", ran.stdout)
    assert found, ran.stdout
    assert 1 < float(found[1]) <= 1.3

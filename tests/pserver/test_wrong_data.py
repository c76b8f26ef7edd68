"""Wrong data of one trainer is refused to it by name; the server and the others go on."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from bireme import flags
from bireme.arrays.values import SelectedRows
from bireme.errors import BiremeError
from bireme.ir.names import trainer_of
from bireme.trainer.job_state import JobState
from bireme.trainer.native_server import NativeServer
from tests.support.cluster import TIMES, Cluster, cluster, descending, tiny_server

HEIGHT, WIDTH = 10, 4


def sparse_server(made: Cluster) -> Any:
    """A dense parameter `w`, and `e` whose gradients are rows."""
    rows = {"e": HEIGHT}
    program, scope = tiny_server("s0", 2, params=("w", "e"), size=WIDTH, rows=rows)
    scope.var("e").put(np.zeros((HEIGHT, WIDTH), np.float32))
    dense = descending(program, scope)

    def prepare(index: int) -> Callable[[], None]:
        return dense(index) if index == 1 else lambda: None

    return made.serve(program, scope, prepare)


@pytest.fixture
def made() -> Iterator[Cluster]:
    with cluster() as found:
        sparse_server(found)
        yield found


def peer(made: Cluster, trainer: int) -> NativeServer:
    """The server as a trainer sees it that does not give up when it is refused."""
    return NativeServer(made.dial("s0"), JobState(trainer, 1, TIMES, lambda error: None))


def rows(*ids: int, fill: float = 1.0) -> SelectedRows:
    return SelectedRows(
        np.array(ids, np.int64), np.full((len(ids), WIDTH), fill, np.float32), HEIGHT
    )


DENSE = np.ones(WIDTH, np.float32)
WHOLE = np.ones((HEIGHT, WIDTH), np.float32)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "negative row": ({"e@GRAD.trainer_1": rows(3, -2)}, "row -2 of 'e@GRAD.trainer_1'"),
    "too large row": ({"e@GRAD.trainer_1": rows(0, 10)}, "row 10 of 'e@GRAD.trainer_1'"),
    "rows for dense": (
        {"w@GRAD.trainer_1": SelectedRows(np.zeros(1, np.int64), np.ones((1,), np.float32), 4)},
        "rows for 'w@GRAD.trainer_1', which is dense",
    ),
    "dense for rows": ({"e@GRAD.trainer_1": WHOLE}, "for 'e@GRAD.trainer_1', which takes rows"),
    "another's gradient": ({"w@GRAD.trainer_0": DENSE}, "'w@GRAD.trainer_0' is trainer 0's"),
    "among right ones": (
        {"w@GRAD.trainer_1": DENSE, "e@GRAD.trainer_1": rows(99)},
        "row 99 of 'e@GRAD.trainer_1'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_gradients_are_refused_to_their_sender_and_end_nobody(
    made: Cluster, what: str
) -> None:
    values, text = WRONG[what]
    right, wrong = peer(made, 0), peer(made, 1)
    wrong.push(values)
    wrong.pull((), gated=False)
    with pytest.raises(BiremeError) as found:
        wrong.result()
    assert text in str(found.value)
    assert "trainer 1" in str(found.value)
    for trainer, server in enumerate((right, wrong)):
        server.push({f"w@GRAD.trainer_{trainer}": DENSE})
        server.barrier()
        server.pull(("w",))
    assert right.result()["w"].tolist() == wrong.result()["w"].tolist() == [-1.0] * WIDTH


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["w", "e"])
def test_values_that_are_not_finite_are_refused_where_the_flag_asks_for_it(
    name: str, value: float
) -> None:
    bad = np.full(WIDTH, value, np.float32) if name == "w" else rows(1, 2, fill=value)
    for asked in (False, True):
        flags.set_flags({"rpc_check_nan_inf": asked})
        with cluster() as made:
            sparse_server(made)
            server = peer(made, 1)
            server.push({f"{name}@GRAD.trainer_1": bad})
            server.pull((), gated=False)
            if not asked:
                server.result()
                continue
            with pytest.raises(BiremeError, match=f"trainer 1 .* '{name}@GRAD.trainer_1'.* finite"):
                server.result()


@pytest.mark.parametrize("ids", [[-1], [4], [0.5], [np.nan]])
def test_ids_that_no_row_can_have_are_refused_to_whoever_looks_them_up(
    made: Cluster, ids: list[float]
) -> None:
    server = peer(made, 1)
    server.look_up({"w": np.array(ids) if isinstance(ids[0], float) else np.array(ids, np.int64)})
    with pytest.raises(BiremeError, match="row id"):
        server.result()
    server.look_up({"w": np.array([3], np.int64)})
    assert server.result()["w"].tolist() == [0.0]


def test_a_part_of_a_tables_gradient_belongs_to_its_trainer_too() -> None:
    assert trainer_of("table@GRAD.trainer_1.pserver_0") == 1

"""Collective layers, run by ranks that are threads."""

import numpy as np
import pytest

import bireme as fluid
from bireme import flags
from bireme.errors import ConfigError, InvalidArgument, ProgramError
from bireme.ir import Program, VarType
from bireme.layers import collective as layers

from .contract import on_every_rank

RANKS = 2


@pytest.fixture(autouse=True)
def _local() -> None:
    flags.set_flags({"FLAGS_collective_engine": "local"})


def startup(rank: int, rings: int = 2) -> Program:
    """A program that opens communicators, as the collective transpiler writes it."""
    program, endpoints = Program(), [f"127.0.0.1:{r + 1}" for r in range(RANKS)]
    block = program.global_block()
    for ring in range(rings):
        block.create_var(name=f"id_{ring}", type=VarType.RAW, persistable=True)
        others = [e for r, e in enumerate(endpoints) if r != rank]
        attrs = {"rank": rank, "endpoint": endpoints[rank], "other_endpoints": others}
        block.append_op("c_gen_nccl_id", outputs={"Out": [f"id_{ring}"]}, attrs=attrs)
        attrs = {"nranks": RANKS, "rank": rank, "ring_id": ring}
        block.append_op("c_comm_init", inputs={"X": [f"id_{ring}"]}, attrs=attrs)
    return program


def on_ranks(build, shape=(2, 3)):
    """What `build(x)` gives on each rank, where x is filled with rank + 1."""
    main = Program()
    with fluid.program_guard(main, Program()):
        x = fluid.layers.data("x", list(shape), append_batch_size=False)
        out = build(x)

    def work(rank: int) -> np.ndarray:
        scope = fluid.Scope()
        with fluid.Executor() as executor:
            executor.run(startup(rank), scope=scope)
            feed = {"x": np.full(shape, rank + 1, np.float32)}
            found: np.ndarray = executor.run(main, feed=feed, fetch_list=[out], scope=scope)[0]
            return found

    return on_every_rank(range(RANKS), work)


@pytest.mark.parametrize(("kind", "wanted"), [("sum", 3), ("prod", 2), ("max", 2), ("min", 1)])
def test_all_reduce_begins_and_is_waited_for(kind, wanted):
    def build(x):
        out = layers._c_allreduce(layers._c_sync_calc_stream(x), reduce_type=kind, ring_id=1)
        return layers._c_sync_comm_stream(out, ring_id=1)

    for result in [*on_ranks(build), *on_ranks(lambda x: layers._allreduce(x, reduce_type=kind))]:
        np.testing.assert_array_equal(result, np.full((2, 3), wanted))


def test_broadcast_takes_the_root():
    for build in (layers._broadcast, layers._c_broadcast):
        for result in on_ranks(lambda x, build=build: build(x, root=1)):
            np.testing.assert_array_equal(result, np.full((2, 3), 2))


def test_all_gather_stacks_and_reduce_scatter_cuts():
    for result in on_ranks(lambda x: layers._c_allgather(x, RANKS)):
        np.testing.assert_array_equal(result, np.repeat([1, 1, 2, 2], 3).reshape(4, 3))
    for result in on_ranks(lambda x: layers._c_reducescatter(x, RANKS)):
        np.testing.assert_array_equal(result, np.full((1, 3), 3))


def test_the_gradient_of_a_gather_is_a_reduce_scatter():
    def build(x):
        x.stop_gradient = False
        loss = fluid.layers.reduce_sum(fluid.layers.square(layers._c_allgather(x, RANKS)))
        return fluid.gradients([loss], [x])[0]

    for rank, result in enumerate(on_ranks(build)):
        np.testing.assert_array_equal(result, np.full((2, 3), 2.0 * RANKS * (rank + 1)))


def test_rows_that_cannot_be_shared_out_are_refused():
    x = fluid.layers.data("x", [3], append_batch_size=False)
    with pytest.raises(InvalidArgument, match="not a multiple of 2 ranks"):
        layers._c_reducescatter(x, 2)
    errors = on_ranks(lambda x: layers._c_reducescatter(x, 1), shape=(3,))
    assert all(isinstance(error, ProgramError) for error in errors)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InvalidArgument, match="sum, prod, max, min"):
        layers._allreduce(fluid.layers.data("x", [3]), reduce_type="mean")


def test_a_communicator_that_was_not_opened_is_named():
    out = layers._c_allreduce(fluid.layers.data("x", [3]), ring_id=3)
    feed = {"x": np.zeros((1, 3), np.float32)}
    with fluid.Executor() as executor, pytest.raises(ConfigError, match="no communicator 3"):
        executor.run(feed=feed, fetch_list=[out])


def test_one_process_has_a_ring_of_its_own():
    program = Program()
    program.global_block().append_op("c_comm_init_all", attrs={"ring_id": 0})
    with fluid.Executor() as executor:
        executor.run(program)
        out = layers._allreduce(fluid.layers.data("x", [2]))
        feed = {"x": np.ones((1, 2), np.float32)}
        assert executor.run(feed=feed, fetch_list=[out])[0].tolist() == [[1, 1]]

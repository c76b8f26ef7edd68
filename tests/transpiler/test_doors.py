"""The getters: in any order, any number of times, without harm to other programs."""

import pickle

import pytest

from bireme.ir import Program
from bireme.transpiler import DistributeTranspiler
from tests.support import oracle

EVERY_KIND = ["ps_mlp", "ps_lr_piecewise_async", "ps_dc_asgd", "ps_w2v_table", "geo_w2v"]


def texts(transpiler: DistributeTranspiler, order: int) -> dict[str, str]:
    """All programs of two servers and of the trainer, asked for in one order or the other."""
    asked = ["127.0.0.1:7170", "127.0.0.1:7171", "trainer"][:: 1 if order else -1]
    found: dict[str, str] = {}
    for name in asked:
        if name == "trainer":
            found[name] = str(transpiler.get_trainer_program())
            continue
        server, startup = transpiler.get_pserver_programs(name)
        found[name] = f"{server}\n{startup}\n{transpiler.get_startup_program(name)}"
    return found


@pytest.mark.parametrize("name", EVERY_KIND)
def test_getters_may_be_called_in_any_order_and_again(name: str) -> None:
    transpiler = oracle.split(name)[0]
    first = texts(transpiler, 0)
    assert texts(transpiler, 1) == first
    assert texts(oracle.split(name)[0], 1) == first


def test_the_programs_are_the_callers_own() -> None:
    """`transpile` works in place: who holds the program or a variable holds the trainer's."""
    main, startup = oracle.fresh("ps_mlp")
    weight = main.global_block().var("fc_0.w_0")
    transpiler = DistributeTranspiler()
    transpiler.transpile(0, main, "a:1,b:1", 2, startup_program=startup)
    assert transpiler.get_trainer_program() is main
    assert main.global_block().var("fc_0.w_0") is weight
    assert weight.block is main.global_block()


def test_other_programs_stay_as_they_are() -> None:
    main, startup = oracle.fresh("ps_lr_piecewise_async")
    test, kept = main.clone(for_test=True), str(startup)
    before = str(test)
    copy = startup.clone()
    transpiler = DistributeTranspiler()
    transpiler.transpile(0, main, "a:1,b:1", 2, sync_mode=False, startup_program=startup)
    texts_of = [str(p) for e in ("a:1", "b:1") for p in transpiler.get_pserver_programs(e)]
    assert (str(test), str(copy)) == (before, kept)
    assert texts_of == [str(p) for e in ("a:1", "b:1") for p in transpiler.get_pserver_programs(e)]


def test_a_server_program_may_be_edited_without_harm_to_the_next() -> None:
    transpiler = oracle.split("ps_mlp")[0]
    server: Program = transpiler.get_pserver_program("127.0.0.1:7170")
    before = str(server)
    server.global_block().set_ops([])
    assert str(transpiler.get_pserver_program("127.0.0.1:7170")) == before


def test_waiting_for_ports_changes_no_program() -> None:
    transpiler, main, _ = oracle.split("ps_mlp")
    assert transpiler.get_trainer_program() is transpiler.get_trainer_program(wait_port=False)
    assert transpiler.get_trainer_program() is main


def test_a_failed_split_leaves_the_programs_alone() -> None:
    main, startup = oracle.fresh("ps_mlp")
    block = main.global_block()
    backward = [op for op in block.ops if "fc_1.w_0@GRAD" not in op.output_arg_names]
    block.set_ops(backward)
    before = str(main), str(startup)
    with pytest.raises(Exception, match=r"no operator computes the gradient 'fc_1\.w_0@GRAD'"):
        DistributeTranspiler().transpile(0, main, startup_program=startup)
    assert (str(main), str(startup)) == before


def test_a_plan_is_a_value() -> None:
    first, second = (oracle.split("ps_mlp")[0].plan for _ in range(2))
    assert first == second
    assert pickle.loads(pickle.dumps(first)) == first
    with pytest.raises(AttributeError):
        first.order = ()


def test_the_overview_says_where_every_variable_lies() -> None:
    transpiler, main, _ = oracle.split("ps_opt_adam")
    found = transpiler.vars_overview
    assert main._parameters_on_pservers is found
    part = found.get_distributed_var_by_slice("fc_0.w_0.block1")
    assert (part.origin.shape, part.slice.shape, part.offset) == ((1000, 32), (500, 32), 16000)
    moment = found.get_distributed_var_by_origin_and_ep("fc_0.w_0_moment1_0", part.endpoint)
    assert (moment.slice.shape, moment.offset, moment.vtype) == ((500, 32), 16000, "Optimizer")
    groups = found.get_distributed_vars_by_vtypes(["Param"], groupby=True)
    assert {name: len(parts) for name, parts in groups.items()} == {
        "fc_0.b_0": 1, "fc_0.w_0": 2, "fc_1.b_0": 1, "fc_1.w_0": 1,
    }  # fmt: skip
    here = found.get_distributed_vars_by_ep(part.endpoint, "Param")
    assert part in here
    assert str(found).count("Optimizer") == len(found.distributed_vars) - 5


def test_the_overview_knows_every_accumulator() -> None:
    """The original forgets the mean gradient of a centred RMSProp, though its servers cut it."""
    transpiler = oracle.split("ps_opt_rmsprop")[0]
    assert not transpiler.vars_overview.get_distributed_var_by_slice(
        "fc_0.w_0_mean_grad_0"
    ).is_slice
    main, startup = oracle.fresh("ps_opt_rmsprop")
    block = main.global_block()
    for index, op in enumerate(block.ops):
        if op.type == "rmsprop":
            block.put(index, op.with_attrs(centered=True))
    centred = DistributeTranspiler()
    centred.transpile(0, main, "a:1,b:1", 2, startup_program=startup)
    part = centred.vars_overview.get_distributed_var_by_slice("fc_0.w_0_mean_grad_0")
    assert (part.is_slice, part.slice.shape) == (True, (500, 32))
    server = centred.get_pserver_program(part.endpoint)
    assert server.global_block().var("fc_0.w_0_mean_grad_0").shape == (500, 32)

"""Wrong arguments: one clear error each, that says where, what, and what to do."""

from typing import Any

import numpy as np
import pytest

from bireme.errors import BiremeError, ConfigError, ProgramError, UnsupportedError
from bireme.ir import Program
from bireme.transpiler import (
    DistributeTranspiler,
    DistributeTranspilerConfig,
    GeoSgdTranspiler,
    HashName,
    PSDispatcher,
    memory_optimize,
    release_memory,
)
from tests.support import oracle


def transpile(config: DistributeTranspilerConfig | None = None, **arguments: Any) -> Any:
    main, startup = oracle.fresh("ps_mlp")
    given = {"trainer_id": 0, "pservers": "127.0.0.1:6174,127.0.0.1:6175", "trainers": 2}
    transpiler = DistributeTranspiler(config)
    transpiler.transpile(**{**given, "program": main, "startup_program": startup, **arguments})
    return transpiler


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slice_var_up", "yes"),
        ("split_method", "Nearest"),
        ("split_method", dict),
        ("min_block_size", 0),
        ("min_block_size", 8192.5),
        ("min_block_size", True),
        ("enable_dc_asgd", None),
        ("dc_asgd_lambda", -1.0),
        ("dc_asgd_lambda", "much"),
        ("dc_asgd_adaptive", "no"),
        ("mode", "ps"),
        ("print_log", 3),
        ("wait_port", "no"),
        ("sync_mode", None),
        ("runtime_split_send_recv", None),
        ("runtime_split_send_recv", True),
        ("half_async", 2),
        ("completely_not_async", None),
        ("geo_sgd_mode", "geo"),
        ("geo_sgd_need_push_nums", 0),
        ("nccl_comm_num", 0),
        ("use_hierarchical_allreduce", 7),
        ("hierarchical_allreduce_inter_nranks", -1),
        ("collective_mode", "ring"),
    ],
)
def test_a_wrong_value_is_refused_when_it_is_assigned(field: str, value: Any) -> None:
    config = DistributeTranspilerConfig()
    with pytest.raises(ConfigError) as refusal:
        setattr(config, field, value)
    assert refusal.value.where == f"DistributeTranspilerConfig.{field}"
    assert refusal.value.hint
    assert isinstance(refusal.value, ValueError)


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="min_block_size") as refusal:
        DistributeTranspilerConfig().block_size = 8192
    assert "block_size" in refusal.value.message


def test_sync_mode_is_refused_while_the_communicator_cuts() -> None:
    config = DistributeTranspilerConfig()
    config.sync_mode = False
    config.runtime_split_send_recv = True
    with pytest.raises(ValueError, match="runtime_split_send_recv = False"):
        config.sync_mode = True


def test_small_blocks_are_refused_under_the_originals_name() -> None:
    config = DistributeTranspilerConfig()
    config.min_block_size = 8191
    with pytest.raises(AssertionError, match="8192 or more"):
        DistributeTranspiler(config)


@pytest.mark.parametrize(("field", "argument"), [(True, False), (False, True)])
def test_a_contradiction_about_waiting_is_refused(field: bool, argument: bool) -> None:
    config = DistributeTranspilerConfig()
    config.sync_mode = field
    with pytest.raises(ConfigError, match="give both the same value"):
        transpile(config, sync_mode=argument)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"pservers": "127.0.0.1:6174,,127.0.0.1:6175"}, "'' is not an endpoint"),
        ({"pservers": "127.0.0.1:6174, 127.0.0.1:6174"}, "duplicate endpoint 127.0.0.1:6174"),
        ({"pservers": ""}, "this job has no servers"),
        ({"pservers": "127.0.0.1"}, "'127.0.0.1' is not an endpoint"),
        ({"pservers": "host:99999"}, "'host:99999' is not an endpoint"),
        ({"trainers": 0}, "0 is not a number of trainers"),
        ({"trainers": "127.0.0.1:6174"}, "is not a number of trainers"),
        ({"trainer_id": 2}, "there is no trainer 2 among 2"),
        ({"trainer_id": -1}, "there is no trainer -1 among 2"),
    ],
)
def test_wrong_processes_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refusal:
        transpile(**arguments)
    assert refusal.value.where is not None
    assert refusal.value.where.startswith("DistributeTranspiler.transpile")
    assert refusal.value.hint


def test_blanks_around_endpoints_do_no_harm() -> None:
    plan = transpile(pservers=" 127.0.0.1:6174 , 127.0.0.1:6175 ").plan
    assert plan.cluster.endpoints == ("127.0.0.1:6174", "127.0.0.1:6175")


def test_a_program_without_updates_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"call optimizer.minimize"):
        transpile(program=Program(), startup_program=Program())


def test_a_program_is_split_once() -> None:
    transpiler, main, startup = oracle.split("ps_mlp")
    with pytest.raises(ProgramError, match="already been split"):
        transpiler.transpile(0, program=main, startup_program=startup)


def test_a_parameter_of_two_optimizers_is_refused() -> None:
    main, startup = oracle.fresh("ps_mlp")
    block = main.global_block()
    block.append(block.ops[-1])
    with pytest.raises(UnsupportedError, match="minimise the sum of the losses"):
        transpile(program=main, startup_program=startup)


def test_an_unknown_server_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the servers are 127.0.0.1:6174, 127.0.0.1:6175"):
        transpile().get_pserver_program("127.0.0.1:9999")


@pytest.mark.parametrize("door", ["get_trainer_program", "explain", "draw"])
def test_getters_want_a_split(door: str) -> None:
    with pytest.raises(ProgramError, match=r"call transpile\(\) first"):
        getattr(DistributeTranspiler(), door)()


def test_a_dispatcher_must_name_a_known_server_for_each_variable() -> None:
    class Nowhere(PSDispatcher):
        def dispatch(self, varlist: Any) -> list[str]:
            return ["nowhere:1"] * len(varlist)

    class Silent(PSDispatcher):
        pass

    for method, problem in ((Nowhere, "nowhere:1"), (Silent, "does not implement dispatch")):
        config = DistributeTranspilerConfig()
        config.split_method = method
        with pytest.raises(ConfigError, match=problem):
            transpile(config)


def test_a_method_may_be_named() -> None:
    config = DistributeTranspilerConfig()
    config.split_method = "HashName"  # type: ignore[assignment]  # names are taken, classes given
    assert config.split_method is HashName


def without_servers(mode: str, how: str | None = None, **arguments: Any) -> None:
    config = DistributeTranspilerConfig()
    config.mode, config.collective_mode = mode, how
    given = {"trainer_id": 0, "trainers": "h:1,h:2", "current_endpoint": "h:1", **arguments}
    main, startup = oracle.fresh("nccl2_mlp")
    DistributeTranspiler(config).transpile(program=main, startup_program=startup, **given)


@pytest.mark.parametrize(
    ("builtin", "arguments"),
    [
        (AssertionError, {"trainers": 2}),
        (ValueError, {"trainer_id": -1}),
        (ValueError, {"current_endpoint": "h:3"}),
        (ValueError, {"current_endpoint": "h:2"}),
        (ValueError, {"trainers": "h:1,h:1"}),
    ],
)
def test_wrong_ranks_are_refused_under_the_originals_names(
    builtin: type[Exception], arguments: dict[str, Any]
) -> None:
    for mode, how in (("nccl2", None), ("collective", "grad_allreduce")):
        with pytest.raises(builtin) as refusal:
            without_servers(mode, how, **arguments)
        assert isinstance(refusal.value, BiremeError)
        assert refusal.value.hint


def test_a_collective_mode_must_be_chosen() -> None:
    with pytest.raises(ConfigError, match="grad_allreduce, local_sgd"):
        without_servers("collective")


def test_geo_refuses_distributed_tables_declared_in_full() -> None:
    main, startup = oracle.fresh("ps_w2v_table")
    with pytest.raises(UnsupportedError, match=r"size=\[-1, width\]"):
        GeoSgdTranspiler().transpile(0, program=main, startup_program=startup)


def test_old_doors_do_no_harm() -> None:
    main, _ = oracle.fresh("ps_mlp")
    before = str(main)
    memory_optimize(main, print_log=True)
    release_memory(main)
    assert str(main) == before


def test_the_callers_random_numbers_are_left_alone() -> None:
    np.random.seed(3)
    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    oracle.split("ps_mlp_noslice")
    assert (np.random.get_state(legacy=False)["state"]["key"] == before).all()

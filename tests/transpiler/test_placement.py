"""Laws of whole splits: random parameters, block sizes, servers, trainers and methods."""

from collections import Counter
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.ir import Operator, OpRole, Parameter, Program, VarType
from bireme.transpiler import DistributeTranspiler, DistributeTranspilerConfig
from tests.support.meeting import refused

SHAPES = st.one_of(
    st.tuples(st.integers(1, 60000)),
    st.tuples(st.integers(1, 900), st.integers(1, 300)),
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(1, 5), st.integers(1, 5)),
)
METHODS = st.sampled_from([None, "RoundRobin", "HashName", "SizeBalanced"])


def model(shapes: list[tuple[int, ...]]) -> tuple[Program, Program]:
    """One gradient and one momentum update for each parameter."""
    main, startup = Program(), Program()
    block, begin = main.global_block(), startup.global_block()
    rate = block.create_var(name="rate", shape=(1,), dtype=VarType.FP32, persistable=True)
    begin.copy_var(rate)
    begin.append(_fill("rate", (1,)))
    names = [f"w{i:02d}" for i in range(len(shapes))]
    for name, shape in zip(names, shapes, strict=True):
        for home in (block, begin):
            home.vars[name] = Parameter(home, shape, VarType.FP32, name=name)
            home.create_var(name=f"{name}_v", shape=shape, dtype=VarType.FP32, persistable=True)
        block.create_var(name=f"{name}@GRAD", shape=shape, dtype=VarType.FP32)
        begin.append(_fill(name, shape))
        begin.append(_fill(f"{name}_v", shape))
        block.append(_op("scale", {"X": name}, {"Out": f"{name}@GRAD"}, name, OpRole.Backward))
    for name in names:
        inputs = {"Param": name, "Grad": f"{name}@GRAD", "Velocity": f"{name}_v"}
        outputs = {"ParamOut": name, "VelocityOut": f"{name}_v"}
        inputs["LearningRate"] = "rate"
        block.append(_op("momentum", inputs, outputs, name, OpRole.Optimize))
    return main, startup


def _fill(name: str, shape: tuple[int, ...]) -> Operator:
    return Operator("fill_constant", {}, {"Out": (name,)}, {"shape": shape, "value": 0.0})


def _op(
    kind: str, inputs: dict[str, str], outputs: dict[str, str], name: str, role: int
) -> Operator:
    roles = {"op_role": role, "op_role_var": (name, f"{name}@GRAD")}
    ins = {slot: (arg,) for slot, arg in inputs.items()}
    return Operator(kind, ins, {slot: (arg,) for slot, arg in outputs.items()}, roles)


@settings(max_examples=60)
@given(
    st.lists(SHAPES, min_size=1, max_size=8),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(8192, 40000),
    METHODS,
    st.booleans(),
    st.booleans(),
)
def test_every_element_is_updated_once_and_sent_to_who_updates_it(
    shapes: list[tuple[int, ...]],
    servers: int,
    trainers: int,
    minimum: int,
    method: str | None,
    sliced: bool,
    sync: bool,
) -> None:
    config = DistributeTranspilerConfig()
    config.min_block_size, config.slice_var_up = minimum, sliced
    config.split_method = method  # type: ignore[assignment]  # names are taken, classes given
    main, startup = model(shapes)
    endpoints = [f"s{i}:1" for i in range(servers)]
    transpiler = DistributeTranspiler(config)
    transpiler.transpile(0, main, ",".join(endpoints), trainers, sync, startup)
    assert transpiler.plan is not None
    updated: Counter[str] = Counter()
    for endpoint in endpoints:
        server, _ = transpiler.get_pserver_programs(endpoint)
        assert refused(main, server) == []
        for block in server.blocks:
            for op in block.ops:
                if op.type == "momentum":
                    (name,) = op.input("Param")
                    shape = server.global_block().var(name).shape
                    assert server.global_block().var(op.input("Velocity")[0]).shape == shape
                    updated[name.partition(".block")[0]] += prod(shape)
    assert updated == {f"w{i:02d}": prod(shape) for i, shape in enumerate(shapes)}

"""Effects: bound per provider and scope, in groups, reading and writing values by name."""

import sys
import types

import numpy as np
import pytest

from bireme.arrays.values import LoDTensor
from bireme.errors import ConfigError, PeerLost
from bireme.ir import SCHEMAS
from bireme.ops.table import ROWS, declare
from bireme.runtime.effects import Effect
from bireme.runtime.executor import Executor
from bireme.runtime.scope import Scope

from .programs import PLACE, Builder, put, value

KINDS = ("test_push", "test_pull", "test_other")


@pytest.fixture
def wire(monkeypatch):
    """Two providers that note what they are asked for."""
    log = types.SimpleNamespace(linked=[], calls=[], store={}, fail=None)

    class Note(Effect):
        def __init__(self, ops):
            self.ops = ops

        @classmethod
        def bind(cls, ops, context):
            log.linked.append([op.type for op in ops])
            return cls(ops)

        def run(self, env):
            if log.fail:
                raise log.fail
            log.calls.append([op.type for op in self.ops])
            for op in self.ops:
                for name in op.input_arg_names:
                    log.store[name] = env.get(name)
                for name in op.output_arg_names:
                    env.set(name, log.store[name.removesuffix("_new")])

    class Other(Note):
        pass

    module = types.ModuleType("bireme_test_provider")
    vars(module).update(Note=Note, Other=Other)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for kind in KINDS:
        name = "Other" if kind == "test_other" else "Note"
        declare(kind, ins={"X": "*"}, outs={"Out": "*"}, effect=f"{module.__name__}:{name}")
    yield log
    for kind in KINDS:
        del ROWS[kind], SCHEMAS[kind]


def exchange():
    b = Builder()
    x = b.data("x", [-1, 2])
    y = b.op("scale", "y", X=x, scale=2.0)
    w = b.lasting("w", [2, 2])
    b.block.append_op(type="test_push", inputs={"X": [y]}, outputs={})
    b.block.append_op(type="test_pull", inputs={}, outputs={"Out": ["y"]})
    b.block.append_op(type="test_other", inputs={"X": [w]}, outputs={})
    b.op("elementwise_add", "z", X=y, Y=w)
    return b


X = np.ones((2, 2), "float32")


def test_neighbours_of_one_provider_are_linked_once_as_a_group(wire):
    b, scope = exchange(), Scope()
    put(scope, w=X)
    with Executor(PLACE) as exe:
        for _ in range(3):
            (z,) = exe.run(b.program, {"x": X}, ["z"], scope=scope)
    assert wire.linked == [["test_push", "test_pull"], ["test_other"]]
    assert wire.calls == wire.linked * 3
    assert z.tolist() == [[3, 3], [3, 3]]


def test_another_scope_links_again(wire):
    b = exchange()
    with Executor(PLACE) as exe:
        for scope in (Scope(), Scope()):
            put(scope, w=X)
            exe.run(b.program, {"x": X}, ["z"], scope=scope)
    assert len(wire.linked) == 4


def test_lasting_variables_change_in_the_scope_at_once(wire):
    b = Builder()
    b.lasting("w_new", [2, 2])
    b.block.append_op(type="test_pull", inputs={}, outputs={"Out": ["w_new"]})
    scope, given = Scope(), X * 7
    wire.store["w"] = given
    with Executor(PLACE) as exe:
        exe.run(b.program, scope=scope)
    assert value(scope, "w_new").tolist() == given.tolist()


def test_a_structure_reaches_the_provider(wire):
    b = Builder()
    x = b.data("x", [-1, 1], lod_level=1)
    b.block.append_op(type="test_push", inputs={"X": [x]}, outputs={})
    with Executor(PLACE) as exe:
        exe.run(b.program, {"x": (np.ones((3, 1), "float32"), [[1, 2]])}, scope=Scope())
    assert isinstance(wire.store["x"], LoDTensor)
    assert wire.store["x"].recursive_sequence_lengths() == [[1, 2]]


def test_a_value_that_a_provider_keeps_is_not_overwritten(wire):
    b, scope = exchange(), Scope()
    put(scope, w=X)
    kept = []
    with Executor(PLACE) as exe:
        for step in (1.0, 2.0, 3.0):
            exe.run(b.program, {"x": X * np.float32(step)}, ["z"], scope=scope)
            kept.append(wire.store["y"])
    assert [array[0, 0] for array in kept] == [2, 4, 6]


def test_an_error_of_a_peer_passes_through_unchanged(wire):
    b, scope = exchange(), Scope()
    put(scope, w=X)
    wire.fail = PeerLost("server gone", peer="127.0.0.1:1", step=3)
    with Executor(PLACE) as exe, pytest.raises(PeerLost) as caught:
        exe.run(b.program, {"x": X}, ["z"], scope=scope)
    assert caught.value is wire.fail
    assert str(caught.value) == "server gone\n  127.0.0.1:1, step 3"


def test_a_mistake_in_the_process_is_not_blamed_on_an_operator(wire):
    b, scope = exchange(), Scope()
    put(scope, w=X)
    wire.fail = ConfigError("FLAGS_x=1", hint="give 2")
    with Executor(PLACE) as exe, pytest.raises(ConfigError) as caught:
        exe.run(b.program, {"x": X}, ["z"], scope=scope)
    assert str(caught.value) == "FLAGS_x=1\n  hint: give 2"

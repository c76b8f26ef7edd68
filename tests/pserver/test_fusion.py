"""Fused updates: the same bits as the operators one by one, wherever the results are written."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bireme as fluid
from bireme.arrays.namespaces import Array
from bireme.ir import Program
from bireme.pserver.rules.events import Apply
from bireme.pserver.rules.server_spec import Settings, read_settings
from bireme.pserver.store.fusion import Fusion, read_rule
from bireme.pserver.store.updates import Updates
from bireme.runtime.scope import Scope
from bireme.transpiler import DistributeTranspiler

SERVER = "127.0.0.1:1"
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fluid.optimizer.SGD(0.1),
    "momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: fluid.optimizer.Adagrad(0.1),
    "decayed_adagrad": lambda: fluid.optimizer.DecayedAdagrad(0.1),
    "adadelta": lambda: fluid.optimizer.Adadelta(0.1),
    "rmsprop": lambda: fluid.optimizer.RMSProp(0.1, centered=True, momentum=0.5),
    "ftrl": lambda: fluid.optimizer.Ftrl(0.1, l1=0.01, l2=0.01),
    "adam": lambda: fluid.optimizer.Adam(0.1),
}


def server(optimizer: Callable[[], Any], trainers: int) -> tuple[Program, Program]:
    """A server's programs: parameters of few elements, of one piece, and of several."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.layers.data("x", [5])
        h = fluid.layers.fc(fluid.layers.fc(x, 7), 130)
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.fc(h, 600), 3))
        optimizer().minimize(loss)
    t = DistributeTranspiler()
    t.transpile(0, program=main, pservers=SERVER, trainers=trainers, startup_program=startup)
    program, startup = t.get_pserver_programs(SERVER)
    return program, startup


class House:
    """One server's values, updated with or without fusion."""

    def __init__(self, programs: tuple[Program, Program], fused: bool) -> None:
        self.program, startup = programs
        self.scope = Scope()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup, scope=self.scope)
        (op,) = [o for o in self.program.global_block().ops if o.type == "listen_and_serv"]
        self.settings: Settings = read_settings(op, self.program)
        self.updates = Updates(
            self.program,
            self.settings,
            self.scope,
            lambda block: exe.prepare(self.program, block, self.scope),
        )
        if not fused:
            self.updates._fusion._rules.clear()
        self._exe = exe

    def update(self, number: int, slots: dict[str, Array] | None = None) -> None:
        rs = np.random.RandomState(number)
        for ticket, name in enumerate(self.settings.gradients):
            shape = self.program.global_block().var(name).shape
            self.updates.keep(ticket, {name: rs.randn(*shape).astype("float32")})
        tickets = tuple(range(len(self.settings.gradients)))
        self.updates.apply(Apply(number, self.settings.blocks, tickets), slots)

    def values(self) -> dict[str, bytes]:
        lasting = [v.name for v in self.program.list_vars() if v.persistable]
        cells = {name: self.scope.find_var(name) for name in lasting if "@GRAD" not in name}
        return {n: c.value.tobytes() for n, c in cells.items() if c and c.value is not None}

    def params(self) -> list[str]:
        return sorted(self.updates._fusion.params(self.settings.blocks))


@pytest.mark.parametrize("trainers", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fused_updates_give_the_bits_of_the_operators(optimizer: str, trainers: int) -> None:
    programs = server(OPTIMIZERS[optimizer], trainers)
    fused, single = House(programs, fused=True), House(programs, fused=False)
    assert len(fused.params()) == 8
    assert not single.params()
    slots = [{n: np.empty_like(fused.updates.value(n)) for n in fused.params()} for _ in range(2)]
    for number in range(7):
        fused.update(number, slots[number % 2] if number not in (0, 1, 5) else None)
        single.update(number)
        assert fused.values() == single.values()
    assert all(fused.updates.value(name) is slots[0][name] for name in fused.params())


def test_an_array_that_somebody_holds_keeps_its_values() -> None:
    house = House(server(OPTIMIZERS["momentum"], 2), fused=True)
    for number in range(3):
        names = [*house.params(), *(n for n in house.scope.local_var_names() if "velocity" in n)]
        held = {n: house.updates.value(n) for n in names}
        before = {n: array.tobytes() for n, array in held.items()}
        house.update(number)
        assert {n: array.tobytes() for n, array in held.items()} == before
        assert all(house.updates.value(n).tobytes() != before[n] for n in names)


def test_memory_that_nobody_holds_is_used_again() -> None:
    house = House(server(OPTIMIZERS["momentum"], 2), fused=True)
    house.update(0)
    name = max(house.params(), key=lambda n: house.updates.value(n).size)
    place = house.updates.value(name).ctypes.data
    house.update(1)
    assert house.updates.value(name).ctypes.data == place


def test_a_value_of_another_kind_is_left_to_the_operators() -> None:
    house = House(server(OPTIMIZERS["sgd"], 2), fused=True)
    name = house.params()[0]
    cell = house.scope.find_var(name)
    assert cell is not None
    cell.value = np.asfortranarray(cell.value) if cell.value.ndim == 2 else cell.value[::1]
    cell.value = cell.value.astype("float64")
    block = next(b for b, r in house.updates._fusion._rules.items() if r.param == name)
    assert house.updates._fusion.apply([block], {}) == [block]


def test_a_block_that_does_more_is_no_rule() -> None:
    decay = fluid.regularizer.L2Decay(1e-3)
    program, _ = server(lambda: fluid.optimizer.SGD(0.1, regularization=decay), 2)
    assert not Fusion(program, Scope()).params(range(program.num_blocks))
    assert all(read_rule(block) is None for block in program.blocks[1:])

"""Who may be reading a region of shared memory, and when it may be written again."""

import numpy as np

from bireme.pserver.rules import events as e
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.leases import Leases
from bireme.pserver.rules.server_spec import Settings
from bireme.pserver.store.replies import Regions

from .core_driver import complete, hello, pull


def call(trainer: int, sequence: int, life: int = 1) -> e.Call:
    return e.Call(trainer, life, sequence)


def test_the_next_call_of_its_reader_ends_a_lease() -> None:
    leases = Leases()
    leases.told(3, call(0, 5))
    assert leases.readers(3) == [0]
    leases.heard(call(0, 5))  # a repeat of the call that was answered
    assert not leases.may_write(3)
    leases.heard(call(0, 6))
    assert leases.may_write(3)


def test_every_reader_must_have_called_again() -> None:
    leases = Leases()
    leases.told(3, call(0, 5))
    leases.told(3, call(1, 2))
    leases.heard(call(0, 6))
    assert leases.readers(3) == [1]
    assert not leases.may_write(3)


def test_what_a_trainer_held_that_finished_is_never_written_again() -> None:
    leases = Leases()
    leases.told(3, call(1, 3))
    leases.left(1)
    leases.heard(call(1, 9))
    assert not leases.may_write(3)
    assert leases.is_over(3)


def test_a_call_of_another_life_ends_no_lease() -> None:
    leases = Leases()
    leases.told(3, call(1, 3, life=1))
    leases.heard(call(1, 9, life=2))
    assert leases.readers(3) == [1]


def test_trainer_1_finished_holding_region_3() -> None:
    core = Core(Settings(trainers=2))
    for trainer in range(2):
        core.handle(hello(trainer, trainer, 1))
    core.leases.told(3, call(1, 1))
    core.handle(pull(9, call(1, 1)))
    assert core.leases.readers(3) == [1]
    core.handle(complete(10, 1, 1))
    core.handle(pull(11, call(0, 1)))
    assert not core.leases.may_write(3)


# -- regions -----------------------------------------------------------------------------------
def test_a_region_is_written_again_when_its_readers_have_called() -> None:
    leases = Leases()
    regions = Regions(leases)
    first = regions.take()
    first.current = False
    leases.told(first.number, call(0, 5))
    assert regions.take() is not first
    leases.heard(call(0, 6))
    assert regions.take() is first


def test_the_current_region_is_not_written_though_nobody_reads_it() -> None:
    regions = Regions(Leases())
    first = regions.take()
    assert regions.take() is not first


def test_a_region_is_not_written_while_this_process_holds_an_array_of_it() -> None:
    regions = Regions(Leases())
    first = regions.take()
    first.lay_out(64, lambda memory: [memory[:12].view(np.float32), memory[16:48].view(np.int64)])
    first.current = False
    value = first.arrays[1]
    assert regions.take() is not first
    value = first.arrays[0][1:]  # held all the same
    assert regions.take() is not first
    del value
    assert regions.take() is first

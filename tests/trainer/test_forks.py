"""A fork of a process that trains can neither use nor end what its parent has begun."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from bireme.collective import default_group
from bireme.collective.local import local_groups
from bireme.collective.ordered_queue import OrderedQueue
from bireme.errors import ConfigError
from bireme.trainer.registry import Registry

from ..support.cluster import cluster, descending, tiny_server

PROCESS = os.getpid()


@contextmanager
def in_a_fork() -> Iterator[None]:
    """Code that runs as if in a fork of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        yield


def test_a_fork_can_neither_use_nor_end_its_parents_trainer() -> None:
    with cluster() as made:
        server = made.serve(*(given := tiny_server(trainers=1)), descending(*given))
        registry = Registry(made.dial)
        registry.of(0).servers.greet(["s0"])
        with in_a_fork():
            for use in (lambda: registry.of(0), lambda: registry.numbers):
                with pytest.raises(ConfigError, match=f"trainer 0 belongs to process {PROCESS}"):
                    use()
            registry.close(0)
            registry.close_all()
            assert registry.find(0) is None
        assert not server.outcome.done()
        registry.close(0)
        server.result()


def test_a_fork_cannot_use_its_parents_collective_group() -> None:
    (group,), queue = local_groups(1), OrderedQueue()
    group.all_reduce(np.ones(2))
    with in_a_fork():
        with pytest.raises(ConfigError, match="is a fork of it"):
            group.all_reduce(np.ones(2))
        with pytest.raises(ConfigError, match="is a fork of it"):
            queue.do(lambda: None, later=True)


def test_a_fork_is_in_no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    session = SimpleNamespace(close=lambda: ended.append(True))
    state = default_group._State("gloo", session, SimpleNamespace(close=session.close))
    monkeypatch.setattr(default_group, "_state", state)
    with in_a_fork():
        assert not default_group.is_initialized()
        default_group.destroy_process_group()
        assert not ended
        with pytest.raises(ConfigError, match="is a fork of it"):
            default_group.get_backend()


_SCRIPT = """
import os, sys, bireme
from bireme.runtime import step_hook
executor = bireme.Executor(bireme.CPUPlace())
executor.closers.append(lambda error: print("closed in", "parent" if child else "child"))
step_hook.install(object())
child = os.fork()
if not child:
    executor.closers.append(lambda error: print("the child's own,", step_hook.installed))
    END
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "executor.close(); os._exit(0)"])
def test_a_fork_closes_only_what_it_has_opened(end: str) -> None:
    script = _SCRIPT.replace("END", end)
    command = [sys.executable, "-u", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["the child's own, None", "closed in parent"], done.stderr

"""A fork of a process that trains can neither use nor end what its parent has begun."""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bireme import forks
from bireme.collective import default_group
from bireme.collective.local import local_groups
from bireme.collective.ordered_queue import OrderedQueue
from bireme.errors import ConfigError
from bireme.trainer.registry import Registry

from ..support.cluster import cluster, descending, tiny_server


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From its call on, everything believes to run in a fork of this process."""

    def fork() -> None:
        monkeypatch.setattr(forks, "os", SimpleNamespace(getpid=lambda: -1))

    return fork


def test_a_fork_cannot_use_its_parents_trainer(forked: Any) -> None:
    with cluster() as made:
        made.serve(*(given := tiny_server(trainers=1)), descending(*given))
        registry = Registry(made.dial)
        registry.of(0).servers.greet(["s0"])
        forked()
        for use in (lambda: registry.of(0), lambda: registry.numbers):
            with pytest.raises(ConfigError, match=f"trainer 0 belongs to process {os.getpid()}"):
                use()
        assert registry.find(0) is None


def test_a_fork_does_not_end_its_parents_trainer(forked: Any, monkeypatch: Any) -> None:
    with cluster() as made:
        server = made.serve(*(given := tiny_server(trainers=1)), descending(*given))
        registry = Registry(made.dial)
        registry.of(0).servers.greet(["s0"])
        with monkeypatch.context():
            forked()
            registry.close(0)
            registry.close_all()
        monkeypatch.undo()
        assert not server.outcome.done()
        registry.close(0)
        server.result()


def test_a_fork_cannot_use_its_parents_collective_group(forked: Any) -> None:
    (group,), queue = local_groups(1), OrderedQueue()
    group.all_reduce(np.ones(2))
    forked()
    with pytest.raises(ConfigError, match="is a fork of it"):
        group.all_reduce(np.ones(2))
    with pytest.raises(ConfigError, match="is a fork of it"):
        queue.do(lambda: None, later=True)


def test_a_fork_is_in_no_process_group(forked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    session = SimpleNamespace(close=lambda: ended.append(True))
    state = default_group._State("gloo", session, SimpleNamespace(close=session.close))
    monkeypatch.setattr(default_group, "_state", state)
    forked()
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

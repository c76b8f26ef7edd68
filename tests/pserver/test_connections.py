"""When a trainer counts as disconnected, and whose key a connection presents."""

from bireme.pserver.connections import Connections

LIFE, OTHER = (1, 7), (0, 7)


def test_the_last_of_a_trainers_connections_counts() -> None:
    reset: list[tuple[int, int]] = []
    connections = Connections(reset.append)
    first, second = connections.open(None), connections.open(None)
    for opened in (first, second):
        opened.belongs(LIFE)
        opened.belongs(LIFE)
    first.end(reset=True)
    assert not reset
    second.end(reset=True)
    assert reset == [LIFE]


def test_an_end_in_order_is_no_reset() -> None:
    reset: list[tuple[int, int]] = []
    opened = Connections(reset.append).open(None)
    opened.belongs(LIFE)
    opened.end(reset=False)
    assert not reset


def test_a_key_tells_the_trainer_before_its_first_frame() -> None:
    reset: list[tuple[int, int]] = []
    connections = Connections(reset.append)
    keys = [connections.key_for(life) for life in (LIFE, OTHER)]
    assert connections.key_for(LIFE) == keys[0] != keys[1]
    opened = connections.open(None)
    assert opened.admit(keys[0])
    opened.end(reset=True)
    assert reset == [LIFE]


def test_a_strangers_key_is_not_admitted_and_its_end_means_nothing() -> None:
    reset: list[tuple[int, int]] = []
    opened = Connections(reset.append).open(None)
    assert not opened.admit(b"?" * 16)
    opened.end(reset=True)
    assert not reset


def test_everybody_hangs_up_once_the_job_has_failed() -> None:
    ended: list[str] = []
    connections = Connections(lambda life: None)
    connections.open(lambda: ended.append("a"))
    connections.open(lambda: ended.append("b")).end(reset=False)
    connections.open(None)
    connections.hang_up()
    assert ended == ["a"]

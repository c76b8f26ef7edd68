"""Who takes part, as events: no clock, no socket."""

from bireme.net.membership import Membership, Refusal


def joined(count: int = 2) -> Membership[str]:
    """A complete job at time 10; a member may be silent for 4 seconds."""
    made: Membership[str] = Membership(count, pause=2)
    made.tick(10)
    for number in range(count):
        assert made.join(number, "first", silence=4) is None
    return made


def test_a_member_joins_once_in_each_life() -> None:
    members = joined()
    assert members.join(0, "first", silence=4) is None
    assert members.join(0, "second", silence=4) is Refusal.TAKEN
    assert members.join(2, "first", silence=4) is Refusal.OUT_OF_RANGE
    members.leave(0)
    assert members.join(0, "second", silence=4) is Refusal.LEFT


def test_another_life_of_a_member_is_a_stranger() -> None:
    members = joined()
    assert members.hear(1, "first")
    assert not members.hear(1, "second")
    assert not members.hear(2)


def test_the_silent_member_is_found_and_not_the_one_that_left() -> None:
    members = joined(3)
    members.leave(0)
    for now in (12, 13.5):
        members.tick(now)
        members.hear(1)
    members.tick(14.5)
    found = members.silent()
    assert found is not None
    assert (found[0].number, found[1]) == (2, 4.5)


def test_time_in_which_this_process_stood_still_counts_for_nobody() -> None:
    members = joined()
    members.tick(100)
    assert members.silent() is None
    assert members.now == 2
    members.tick(102)
    members.tick(102.5)
    found = members.silent()
    assert found is not None
    assert found[1] == 4.5


def test_who_looks_seldom_because_the_machine_is_busy_counts_what_it_has_seen() -> None:
    members = joined()
    for look in range(1, 3):
        members.tick(10 + 5 * look)  # instead of 2
        assert members.silent() is None
    members.tick(25)
    found = members.silent()
    assert found is not None
    assert found[1] == 6


def test_the_first_failure_is_kept() -> None:
    members = joined()
    members.blame("cause")
    members.blame("consequence")
    assert members.failure == "cause"


def test_news_is_known_once_every_active_member_was_told_after_it() -> None:
    members = joined(3)
    members.tell(1)
    members.blame("cause")
    assert [member.number for member in members.uninformed] == [0, 1, 2]
    members.tell(1)
    members.leave(2)
    assert [member.number for member in members.uninformed] == [0, 1]
    members.tell(0)
    members.tell(1)
    assert members.uninformed == []


def test_the_step_of_a_member_never_goes_back() -> None:
    members = joined()
    members.hear(0, "first", step=3)
    members.hear(0, "first", step=2)
    assert members.members[0].step == 3

"""The register's rules, as events and answers: no clock, no socket."""

from bireme.collective import membership as m


def full(size: int = 3) -> m.Register:
    register = m.Register(size=size, terms="t", silence=7.0, token="secret")
    for rank in range(size):
        register.handle(joining(rank, size), now=0.0)
    return register


def joining(rank: int, size: int = 3, terms: str = "t", incarnation: str = "") -> m.Join:
    return m.Join(rank, size, terms, f"at{rank}".encode(), incarnation or f"process{rank}")


def test_members_are_told_once_all_have_joined():
    register = m.Register(size=2, terms="t", silence=7.0, token="secret")
    first = register.handle(joining(0, 2), now=0.0)
    assert (first.missing, first.members) == ([1], [])
    register.handle(joining(1, 2), now=1.0)
    assert register.handle(joining(0, 2), now=1.1).members == [b"at0", b"at1"]


def test_a_second_process_with_a_taken_rank_is_refused():
    register = full()
    assert "taken" in register.handle(joining(1, incarnation="other"), now=1.0).refused
    assert register.handle(joining(1), now=1.0).refused == ""


def test_a_rank_outside_the_job_is_refused():
    register = full()
    assert "3 ranks" in register.handle(joining(3), now=1.0).refused
    assert "3 ranks" in register.handle(joining(1, size=4), now=1.0).refused


def test_different_terms_are_refused_and_both_are_quoted():
    refused = full().handle(joining(2, terms="u"), now=1.0).refused
    assert refused == "rank 0 is set up for t, rank 2 for u"


def test_a_rank_of_a_job_of_another_size_ends_the_joining_of_all():
    register = m.Register(size=3, terms="t", silence=7.0, token="secret")
    for rank in (0, 2):
        assert not register.handle(joining(rank), now=0.0).refused
    refused = register.handle(joining(1, 2), now=0.1).refused
    assert refused == "rank 1 of 2 asks to join a job of 3 ranks"
    assert register.handle(joining(0), now=0.2).refused == refused
    assert not register.may_close()
    assert register.handle(joining(2), now=0.3).refused == refused
    assert register.may_close()


def test_a_rank_of_a_job_of_another_size_does_not_disturb_a_complete_one():
    register = full()
    assert register.handle(joining(1, 4), now=1.0).refused
    assert register.handle(joining(1), now=1.1).refused == ""


def test_a_silent_rank_is_lost_and_everyone_learns_it():
    register = full()
    for now in (1.5, 3.0, 4.5, 6.0):
        assert register.handle(m.Beat(0), now).lost == -1
        assert register.handle(m.Beat(2), now).lost == -1
    state = register.handle(m.Beat(0), now=7.5)
    assert (state.lost, state.reason) == (1, "silent for 7.5 s")
    assert register.handle(m.Beat(2), now=7.6).lost == 1


def test_nobody_is_silent_before_all_have_joined():
    register = m.Register(size=2, terms="t", silence=7.0, token="")
    register.handle(joining(0, 2), now=0.0)
    assert register.handle(joining(0, 2), now=100.0).lost == -1


def test_the_first_report_names_the_cause():
    register = full()
    register.handle(m.Report(2, culprit=1, reason="its connection closed"), now=1.0)
    state = register.handle(m.Report(0, culprit=2, reason="its connection closed"), now=1.1)
    assert state.lost == 1


def test_a_rank_that_left_may_be_silent():
    register = full()
    assert register.handle(m.Leave(1), now=1.0).left == [1]
    for now in (3.0, 6.0, 9.0, 12.0):
        register.handle(m.Beat(2), now)
        assert register.handle(m.Beat(0), now).lost == -1


def test_a_register_that_was_stopped_itself_blames_nobody():
    register = full()
    assert register.handle(m.Beat(0), now=100.0).lost == -1
    assert register.handle(m.Beat(1), now=100.1).lost == -1


def test_rank_0_may_close_once_the_others_know_that_it_leaves():
    register = full()
    register.handle(m.Leave(0), now=1.0)
    assert not register.may_close()
    register.handle(m.Leave(1), now=1.1)
    assert not register.may_close()
    register.handle(m.Beat(2), now=1.2)
    assert register.may_close()


def test_rank_0_may_close_once_the_others_know_who_was_lost():
    register = full()
    register.handle(m.Report(0, culprit=1, reason="gone"), now=1.0)
    assert not register.may_close()
    register.handle(m.Beat(2), now=1.2)
    assert register.may_close()


def test_rank_0_need_not_wait_for_ranks_that_know_of_its_own_failure():
    register = full()
    register.handle(m.Report(0, culprit=0, reason="wrong shapes"), now=1.0)
    for rank in (1, 2):
        register.handle(m.Beat(rank), now=1.1)  # they are told, and never ask again
    register.handle(m.Leave(0), now=1.2)
    assert register.may_close()


def test_values_wait_for_whoever_asks():
    register = full()
    assert register.handle(m.Fetch(1, "id"), now=1.0).value is None
    register.handle(m.Post(0, "id", b"x"), now=1.0)
    assert register.handle(m.Fetch(1, "id"), now=1.0).value == b"x"


def test_a_rank_that_left_may_come_again_for_the_next_job():
    register = full()
    register.handle(m.Leave(1), now=1.0)
    answer = register.handle(joining(1, incarnation="again"), now=1.1)
    assert (answer.refused, answer.members, answer.missing) == ("", [], [0])

"""The rendezvous check on plans written by hand."""

from __future__ import annotations

import pytest

from crosspipe.errors import Deadlock, FieldError
from crosspipe.execute.deadlock import check_rendezvous
from crosspipe.execute.plan import Action, Plan, RankPlan
from crosspipe.schedule import Message


def plan_of(*ranks: list[Action]) -> Plan:
    return Plan(
        schedule_name="by hand",
        problem_digest="",
        predicted_makespan_ns=0,
        ranks=tuple(RankPlan(rank=rank, actions=tuple(actions)) for rank, actions in enumerate(ranks)),
    )


def send(message: Message, peer: int) -> Action:
    return Action("send", None, message, peer)


def receive(message: Message, peer: int) -> list[Action]:
    return [Action("post", None, message, peer, 0), Action("wait", None, message, peer, 0)]


# A loop over two ranks, as in a report on torch's pipelining: rank 0 holds stages 0 and 2, rank 1 stages 1 and 3.
#   rank 0: ... 0SEND_F1, 2RECV_F0, 2F0        rank 1: ... 1SEND_F0, 1RECV_F1, 1F1
F0, F1, G0 = Message("F", 0, 0), Message("F", 0, 1), Message("F", 1, 0)
HANGS = [
    [send(F0, 1), send(F1, 1), *receive(G0, 1)],
    [*receive(F0, 0), send(G0, 0), *receive(F1, 0)],
]


def test_two_ranks_that_both_send_first_are_refused_with_the_cycle_in_words():
    with pytest.raises(Deadlock) as error:
        check_rendezvous(plan_of(*HANGS))
    assert error.value.cycle == [
        "rank 0 stops at 'send message F1 from position 0 to rank 1' until rank 1 has posted its receive",
        "rank 1 stops at 'send message F0 from position 1 to rank 0' until rank 0 has posted its receive",
    ]


def test_they_go_on_where_sends_do_not_block_or_the_receive_is_posted_first():
    check_rendezvous(plan_of(*HANGS), blocking_sends=False)
    post, wait = receive(G0, 1)
    check_rendezvous(plan_of([send(F0, 1), post, send(F1, 1), wait], HANGS[1]))


def test_waiting_in_a_circle_hangs_on_any_transport():
    with pytest.raises(Deadlock, match=r"until rank 1 has sent it; rank 1 stops at 'wait for message F1"):
        check_rendezvous(plan_of([*receive(G0, 1), send(F1, 1)], [*receive(F1, 0), send(G0, 0)]), blocking_sends=False)


def test_a_message_nobody_sends_is_named():
    with pytest.raises(Deadlock, match=r"rank 0 stops at 'wait for message F0 from position 1 .* rank 1 has ended"):
        check_rendezvous(plan_of(receive(G0, 1), []))


def test_receives_out_of_the_order_of_their_sends_are_refused():
    posts = [receive(F1, 0)[0], receive(F0, 0)[0]]
    with pytest.raises(FieldError, match=r"message number 0 is sent as message F0 .* posts message F1"):
        check_rendezvous(plan_of([send(F0, 1), send(F1, 1)], posts))


def test_a_wait_without_a_post_and_a_post_without_a_send_are_refused():
    with pytest.raises(FieldError, match="has not been posted"):
        check_rendezvous(plan_of([send(F0, 1)], [receive(F0, 0)[1]]), blocking_sends=False)
    with pytest.raises(FieldError, match=r"1 sends.*posts 2 receives"):
        check_rendezvous(plan_of([send(F0, 1)], [receive(F0, 0)[0], receive(F1, 0)[0]]))

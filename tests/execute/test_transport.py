"""The in-process transport's rendezvous, and the comparison of channels before the first message."""

from __future__ import annotations

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from inprocess_ranks import run_ranks

from crosspipe.errors import FieldError
from crosspipe.execute.failure import PeerLost, first_sentence
from crosspipe.execute.gloo import SMALL_BYTES, _Sender
from crosspipe.execute.groups import DistGroup
from crosspipe.execute.inprocess import Hub
from crosspipe.execute.plan import Action, Format, RankPlan
from crosspipe.execute.transport import Header, compare_channels
from crosspipe.schedule import Message

F0, F1 = Message("F", 0, 0), Message("F", 0, 1)
FORMAT = Format((2, 3), "float32", 24)


def sends(*messages: Message) -> RankPlan:
    return RankPlan(rank=0, actions=tuple(Action("send", None, m, 1) for m in messages))


def posts(*messages: Message) -> RankPlan:
    return RankPlan(rank=1, actions=tuple(Action("post", None, m, 0, 0) for m in messages))


def compare(first: RankPlan, second: RankPlan, formats: tuple[Format, Format] = (FORMAT, FORMAT)) -> None:
    plans = (first, second)
    run_ranks(Hub(2), lambda t: compare_channels(t, plans[t.rank], formats[t.rank]))


def test_channels_that_agree_pass():
    compare(sends(F0, F1), posts(F0, F1))


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        (sends(F0, F1), posts(F0), "channel 0->1 = '2 messages sent': rank 1 posts 1"),
        (sends(), posts(F0), "channel 0->1 = '0 messages sent': rank 1 posts 1"),
        (sends(F0, F1), posts(F1, F0), "sent as number 0': rank 1 posts message F1"),
    ],
)
def test_channels_that_differ_are_refused_before_the_first_message(first, second, wrong):
    with pytest.raises(FieldError, match=wrong):
        compare(first, second)


@pytest.mark.parametrize("other", [Format((3, 2), "float32", 24), Format((2, 3), "bfloat16", 12)])
def test_shapes_and_number_formats_are_compared(other):
    with pytest.raises(FieldError, match=r"channel 0->1.*rank 1 expects"):
        compare(sends(F0), posts(F0), (FORMAT, other))


def test_messages_keep_their_order_and_headers_and_move_only_into_posted_buffers():
    hub = Hub(2)
    first, second = torch.zeros(2), torch.zeros(2)

    def body(transport):
        if transport.rank == 0:
            for i in range(2):
                transport.send(1, Header(i, 10, 20, 30, 40 + i), torch.full((2,), float(i + 1)))
            transport.allgather(b"sent")
            transport.flush()
            return None
        transport.allgather(b"")
        assert first.tolist() == second.tolist() == [0, 0]  # sent, but nowhere to go
        receipts = [transport.post_receive(0, buffer) for buffer in (first, second)]
        return [receipt.wait() for receipt in receipts]

    headers = run_ranks(hub, body)[1]
    assert headers == [Header(0, 10, 20, 30, 40), Header(1, 10, 20, 30, 41)]
    assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])


def test_a_lost_rank_ends_every_wait_on_it():
    def body(transport):
        if transport.rank == 0:
            transport.close()
            return
        transport.post_receive(0, torch.zeros(1)).wait()

    with pytest.raises(PeerLost, match="rank 0"):
        run_ranks(Hub(2, timeout_s=60), body)


def test_each_end_waits_by_its_own_time_out_and_says_whom_it_lost():
    def body(transport):
        if transport.rank == 1:
            transport.timeout_s = 0.05  # the hub's is a minute
            with pytest.raises(PeerLost, match=r"rank 0 sent nothing within 0\.05 s"):
                transport.post_receive(0, torch.zeros(1)).wait()
            transport.send(0, Header(0, 0, 0, 0, 0), torch.zeros(1))
            with pytest.raises(PeerLost, match=r"a message of rank 1 was not taken within 0\.05 s") as raised:
                transport.flush()
            assert raised.value.peer == 0
            transport.hub.lose(0)
            with pytest.raises(PeerLost, match="a message of rank 1 was not taken"):
                transport.flush()

    run_ranks(Hub(2, timeout_s=60), body)


def a_sender(send) -> _Sender:
    """Towards rank 1, over a group whose messages `send(tensor)` takes."""
    group = SimpleNamespace(send=lambda tensors, target, tag: send(*tensors))
    return _Sender(SimpleNamespace(timeout_s=10.0, prompt=False, group=group), 1)


HEADER = Header(0, 0, 0, 0, 0)
LARGE = torch.zeros(SMALL_BYTES // 4 + 1)


def test_whatever_ends_a_send_is_raised_as_it_is():
    def wrong(tensor):
        raise TypeError("no such number format")

    sender = a_sender(wrong)
    with pytest.raises(TypeError, match="no such number format"):
        sender.put(HEADER, torch.zeros(1))
    sender.put(HEADER, LARGE)
    with pytest.raises(TypeError, match="no such number format"):
        sender.flush()
    sender.close()


def test_a_small_message_never_overtakes_a_large_one():
    """The large one's thread is held up; a small one that comes then waits behind it, later ones go at once."""
    go, order = threading.Event(), []

    def slow(tensor):
        if tensor.nbytes > SMALL_BYTES:
            assert go.wait(10)
        order.append((tensor.nbytes, threading.current_thread() is threading.main_thread()))
        return SimpleNamespace(wait=lambda timeout: True)

    sender, head = a_sender(slow), 8 * len(HEADER)
    sender.put(HEADER, LARGE)
    sender.put(HEADER, torch.zeros(1))
    go.set()
    sender.flush()
    sender.put(HEADER, torch.zeros(2))
    sender.flush()
    sender.close()
    assert order == [(head, False), (LARGE.nbytes, False), (head, False), (4, False), (head, True), (8, True)]


def test_a_group_is_given_longer_to_open_than_to_wait(monkeypatch):
    asked = []
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda ranks, backend, timeout: asked.append((ranks, timeout)))
    group = DistGroup((0, 2), timeout_s=5.0, opening_s=300.0)
    assert asked == [([0, 2], timedelta(minutes=5))]
    assert (group.timeout_s, group.index) == (5.0, 1)

    def late(ranks, backend, timeout):
        raise RuntimeError("[/source/ProcessGroup.cpp:1] Timed out waiting for 1 clients. More words")

    monkeypatch.setattr(dist, "new_group", late)
    with pytest.raises(
        PeerLost, match=r"the group of ranks 0, 2 could not be opened: Timed out waiting for 1 clients$"
    ):
        DistGroup((0, 2), timeout_s=5.0)


def test_an_error_without_words_has_its_name():
    assert first_sentence(RuntimeError("")) == "RuntimeError"

"""Groups among threads of one process: sums in the order of the members. For tests only."""

from __future__ import annotations

import threading

import torch


class Meeting:
    """What the members of a group share; `member(i)` is one thread's end."""

    def __init__(self, size: int) -> None:
        self.size, self.changed, self.rounds = size, threading.Condition(), []

    def member(self, index: int) -> Member:
        return Member(self, index)


class Member:
    """See `crosspipe.execute.groups.Group`."""

    def __init__(self, meeting: Meeting, index: int) -> None:
        self.meeting, self.index, self.size, self.round = meeting, index, meeting.size, 0

    def sum(self, tensor):
        return self._meet(tensor, lambda sent: tensor.copy_(_total(sent)))

    def sum_shards(self, tensor, shard):
        return self._meet(tensor, lambda sent: shard.copy_(_total(sent).view(self.size, -1)[self.index]))

    def gather(self, tensor, shard):
        return self._meet(shard, lambda sent: tensor.copy_(torch.cat(sent)))

    def _meet(self, tensor, take):
        number, self.round = self.round, self.round + 1
        with self.meeting.changed:
            while len(self.meeting.rounds) <= number:
                self.meeting.rounds.append({})
            self.meeting.rounds[number][self.index] = tensor.detach().clone()
            self.meeting.changed.notify_all()
        return _Pending(self.meeting, self.meeting.rounds[number], take)


class _Pending:
    def __init__(self, meeting, sent, take) -> None:
        self.meeting, self.sent, self.take = meeting, sent, take

    def wait(self) -> None:
        with self.meeting.changed:
            assert self.meeting.changed.wait_for(lambda: len(self.sent) == self.meeting.size, 10)
        with torch.no_grad():
            self.take([self.sent[i] for i in range(self.meeting.size)])


def _total(sent):
    total = sent[0].clone()
    for other in sent[1:]:
        total += other
    return total

"""The order of messages over an untagged transport, with gloo on the CPU in NCCL's place."""

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from crosspipe.profile.gloo_links import GlooChannel
from crosspipe.profile.nccl_links import DeviceChannel, start_nccl
from crosspipe.profile.places import Place


def play(rank: int, meeting: str, results: multiprocessing.Queue) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = dist.group.WORLD
    assert group is not None
    channel = DeviceChannel(group, torch.device("cpu"), 64, lambda: None)
    channel._out.fill_(rank + 5)
    gloo = GlooChannel(64)
    if rank == 0:
        trips = channel.ping(1, 16, 3)
        trips += channel.stream(1, 8, 4, 2, both=False)
        trips += channel.stream(1, 8, 4, 2, both=True)
        trips += channel.stream(1, 8, 20, 1, both=True)  # more than the buffer holds
        trips += gloo.stream(1, 8, 20, 1, both=True)
    else:
        trips = []
        channel.pong(0, 16, 3)
        channel.drain(0, 8, 4, 2, both=False)
        channel.drain(0, 8, 4, 2, both=True)
        channel.drain(0, 8, 20, 1, both=True)
        gloo.drain(0, 8, 20, 1, both=True)
    results.put((rank, len(trips), min(trips, default=1), channel._in[:32].unique().tolist()))
    dist.destroy_process_group()


@pytest.mark.serial
def test_both_sides_exchange_in_the_same_order(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [context.Process(target=play, args=(rank, str(tmp_path / "meet"), results)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    found = sorted(results.get(timeout=90) for _ in ranks)
    for process in ranks:
        process.join(30)
    assert [(rank, count) for rank, count, _, _ in found] == [(0, 9), (1, 0)]
    assert found[0][2] > 0
    assert [filled for _, _, _, filled in found] == [[6], [5]]  # four slots of 8 bytes hold what the other sent


def test_all_ranks_take_part_in_the_groups_first_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: done.append("synchronize"))
    monkeypatch.setattr(torch, "zeros", lambda count, device: (count, str(device)))
    monkeypatch.setattr(torch, "ones", lambda count, dtype, device: (count, str(device)))
    monkeypatch.setattr(dist, "new_group", lambda backend: backend)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: done.append((tensor, group)))
    place = Place(rank=0, site=0, node="a", host="a", machine="a", network="n", cores=(0,))
    assert start_nccl(0, [place], 64).name == "nccl"
    assert done == [((1, "cuda:0"), "nccl"), "synchronize"]

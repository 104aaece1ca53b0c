"""Where gloo's ranks meet, on one machine and across machines."""

import socket
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from crosspipe.errors import FieldError
from crosspipe.profile.gloo_links import own_address, start_gloo
from crosspipe.profile.places import Place

ONE = Place(rank=0, site=0, node="a", host="a", machine="m0", network="net0", cores=(0,))
OTHER = Place(rank=1, site=1, node="b", host="b", machine="m1", network="net1", cores=(0,))


def test_on_one_machine_they_meet_at_loopback() -> None:
    assert own_address([ONE, ONE], {}) == "127.0.0.1"


def test_across_machines_a_host_is_met_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nid001")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "10.1.0.7")
    assert own_address([ONE, OTHER], {}) == "nid001"


def test_a_name_that_leads_to_loopback_is_refused_across_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "nid001")
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.1.1")
    with pytest.raises(FieldError, match=r"GLOO_SOCKET_IFNAME = None: is not set, and nid001 resolves to 127\.0\.1\.1"):
        own_address([ONE, OTHER], {})


def test_the_interface_gloo_is_told_to_use_wins() -> None:
    assert own_address([ONE, OTHER], {"GLOO_SOCKET_IFNAME": "lo"}) == "127.0.0.1"
    with pytest.raises(FieldError, match=r"GLOO_SOCKET_IFNAME = 'nope0': has no address .*use one .* of .*lo"):
        own_address([ONE, OTHER], {"GLOO_SOCKET_IFNAME": "nope0"})


def test_a_name_that_nobody_knows_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostname", lambda: "nid001")
    monkeypatch.setattr(socket, "gethostbyname", unknown)
    with pytest.raises(FieldError, match=r"nid001 resolves to nothing \(Name or service not known\); export the name"):
        own_address([ONE, OTHER], {})


def test_a_window_over_a_slow_link_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages of 64 MiB at 1 Mbit/s take 18 minutes."""
    joined = {}
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **options: joined.update(options))
    alone = SimpleNamespace(rank=0, size=1, bcast=lambda meeting: meeting)
    start_gloo(alone, [ONE])
    assert joined["timeout"] > timedelta(seconds=2 * 64 * 2**20 * 8 / 1e6)

"""Where gloo's ranks meet, on one machine and across machines."""

import socket

import pytest

from crosspipe.errors import FieldError
from crosspipe.profile.gloo_links import own_address
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

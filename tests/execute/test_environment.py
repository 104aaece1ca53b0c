"""What a record says of the machine: the congestion control of the connections that were there."""

from __future__ import annotations

import socket

from crosspipe.execute.environment import describe


def test_the_congestion_control_is_that_of_connections_to_elsewhere():
    before = describe("gloo").get("congestion_control", "")
    server = socket.create_server(("127.0.0.2", 0))
    with server, socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0)) as end:
        peer, _ = server.accept()
        with peer:
            for either in (end, peer):
                either.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
            assert "reno" in describe("gloo")["congestion_control"]
    assert describe("gloo").get("congestion_control", "") == before

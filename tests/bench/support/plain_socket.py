"""A plain TCP socket's round trip and goodput, as a program at each end: `serve HOST`, `measure HOST`.

Goodput is taken at the receiver, from the second megabyte to the last, so that neither latency nor slow start counts.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from statistics import median

PORT, TRIPS, BYTES, SKIPPED = 47811, 40, 24 * 2**20, 2**20


def serve(host: str) -> None:
    """Answers one `measure`."""
    with socket.create_server((host, PORT)) as server:
        peer, _ = server.accept()
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(TRIPS):
            peer.sendall(peer.recv(1))
        got, start, start_bytes = 0, 0.0, 0
        while got < BYTES:
            got += len(peer.recv(2**18))
            if not start and got >= SKIPPED:
                start, start_bytes = time.monotonic(), got
        rate = (got - start_bytes) / (time.monotonic() - start)
        peer.sendall(json.dumps(rate).encode())


def measure(host: str) -> dict[str, float]:
    """Round trip in s (median of many) and goodput in bytes/s."""
    with _connect(host) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(TRIPS):
            start = time.monotonic()
            peer.sendall(b"x")
            peer.recv(1)
            trips.append(time.monotonic() - start)
        peer.sendall(bytes(BYTES))
        return {"round_trip_s": median(trips), "bytes_per_s": json.loads(peer.recv(64))}


def _connect(host: str) -> socket.socket:
    for _ in range(100):
        try:
            return socket.create_connection((host, PORT), timeout=60)
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"nobody serves at {host}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        print(json.dumps(measure(sys.argv[2])))

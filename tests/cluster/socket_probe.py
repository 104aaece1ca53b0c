"""A plain TCP client and server, as programs: round trips of one byte, then a bulk transfer; no CrossPipe in it.

`socket_probe.py serve PORT` and `socket_probe.py ask HOST PORT SECONDS`, which prints one JSON line.
"""

from __future__ import annotations

import json
import socket
import sys
import time


def serve(port: int) -> None:
    with socket.create_server(("", port)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for _ in range(9):
                    connection.sendall(connection.recv(1))
                count = 0
                while data := connection.recv(1 << 20):
                    count += len(data)
                connection.sendall(count.to_bytes(8, "big"))


def ask(host: str, port: int, seconds: float) -> dict[str, float | str]:
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(9):
            start = time.perf_counter()
            connection.sendall(b"x")
            connection.recv(1)
            trips.append(time.perf_counter() - start)
        congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            connection.sendall(bytes(1 << 16))
        connection.shutdown(socket.SHUT_WR)
        count = int.from_bytes(connection.recv(8), "big")
        rate = count * 8e-6 / (time.perf_counter() - start)
    return {"round_trip_ms": min(trips) * 1e3, "mbit_per_s": rate, "congestion": congestion}


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        print(json.dumps(ask(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))))

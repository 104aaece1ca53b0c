#!/usr/bin/env python3
"""A wide-area link on one machine: two network namespaces, real TCP between them, a relay that makes it far and slow.

What travels here is not built from CrossPipe's model of a link: kernels send and acknowledge, packets queue, get lost
and are sent again. Needs root and /dev/net/tun, nothing else; kernels without netem will do.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from link import Link, add_options

HERE = Path(__file__).resolve().parent
SITES = ("dc0", "dc1")
DEVICE = "wan"
HOSTS = (1, 10, 11, 12, 13)  # of each site: 10.78.<site>.<host>; the first is the device's own address
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_EXAMPLES = """
examples:
  wan.py up --delay-ms 20 --jitter-ms 2 --rate-mbit 100 --loss-percent 0.1 --congestion bbr
  ip netns exec crosspipe-wan-dc1 iperf3 -s &
  ip netns exec crosspipe-wan-dc0 iperf3 -c 10.78.1.1
  wan.py set --rate-mbit 50          the link changes under way
  wan.py down

Site dc<S> has the addresses 10.78.<S>.1 and 10.78.<S>.10 to .13. Together with Slurm: cluster.sh up --wan OPTIONS.
"""


def up(directory: Path, name: str, link: Link) -> None:
    """Makes both namespaces and starts the relay; SystemExit where that name is taken."""
    if directory.exists() or any(Path(f"/run/netns/{name}-{site}").exists() for site in SITES):
        raise SystemExit(f"wan.py: {name} is up, or was left behind in {directory}: wan.py down ends it")
    directory.mkdir(parents=True)
    link.write(directory / "link.json")
    (directory / "name").write_text(name)
    try:
        devices, processes = [], []
        for number, site in enumerate(SITES):
            _run("ip", "netns", "add", f"{name}-{site}")
            devices.append(_tun(f"{name}-{site}"))
            _address(f"{name}-{site}", number, link)
        for number, site in enumerate(SITES):
            command = [sys.executable, HERE / "relay.py", directory, f"from-{site}"]
            with (directory / f"from-{site}.log").open("ab") as log:
                process = subprocess.Popen(
                    [*map(str, command), str(devices[number]), str(devices[1 - number])],
                    pass_fds=devices,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            (directory / f"from-{site}.pid").write_text(f"{process.pid}\n")
            processes.append(process)
        _wait_for_relays(directory, processes)
    except BaseException:
        down(directory)
        raise
    print(
        f"{name}: {link.delay_ms:g} ms, {link.rate_mbit:g} Mbit/s, {link.congestion} between {name}-dc0 and {name}-dc1"
    )


def change(directory: Path, link: Link) -> None:
    """Gives a running link other settings, from the next packet on."""
    link.write(directory / "link.json")
    for pid in _relays(directory):
        os.kill(pid, signal.SIGHUP)


def show(directory: Path) -> None:
    """Prints the settings and what each direction has carried."""
    print("wan:", " ".join(f"{k}={v}" for k, v in dataclasses.asdict(Link.read(directory / "link.json")).items()))
    for site in SITES:
        counts = json.loads((directory / f"from-{site}.json").read_text())
        print(f"from {site}:", " ".join(f"{key}={value}" for key, value in counts.items()))


def down(directory: Path) -> None:
    """Ends the relay and removes the namespaces; whatever still runs in them loses its network."""
    name = (directory / "name").read_text()
    for pid in _relays(directory):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it holds nothing but packets, and may be stopped
    for site in SITES:
        if Path(f"/run/netns/{name}-{site}").exists():
            _run("ip", "netns", "delete", f"{name}-{site}")
    shutil.rmtree(directory)


def _relays(directory: Path) -> list[int]:
    """The living processes of the relay of that directory."""
    found = []
    for file in directory.glob("*.pid"):
        with contextlib.suppress(OSError):
            pid = int(file.read_text())
            if str(directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _wait_for_relays(directory: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline_s = time.monotonic() + 10
    while not all((directory / f"from-{site}.json").exists() for site in SITES):
        if any(process.poll() is not None for process in processes) or time.monotonic() > deadline_s:
            logs = " ".join((directory / f"from-{site}.log").read_text() for site in SITES)
            raise SystemExit(f"wan.py: the relay did not start: {logs.strip()}")
        time.sleep(0.02)


def _tun(namespace: str) -> int:
    """A TUN device in a namespace, as a file descriptor that works outside of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{namespace}") as inside:  # noqa: PTH123 - for their fds
        if libc.setns(inside.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        finally:
            libc.setns(home.fileno(), _CLONE_NEWNET)
    return device


def _address(namespace: str, number: int, link: Link) -> None:
    """Addresses, the route to the other site with its congestion control, and what hosts of a long link are set to:
    large buffers, and connections that keep their window when idle."""
    ip = ("ip", "-netns", namespace)
    _run(*ip, "link", "set", "lo", "up")
    for host in HOSTS:
        _run(*ip, "address", "add", f"10.78.{number}.{host}/32", "dev", DEVICE if host == HOSTS[0] else "lo")
    _run(*ip, "link", "set", DEVICE, "mtu", str(link.mtu), "txqueuelen", "2000", "up")
    _run(*ip, "route", "add", f"10.78.{1 - number}.0/24", "dev", DEVICE, "src", f"10.78.{number}.1",
         "congctl", link.congestion)  # fmt: skip
    settings = {
        "no_metrics_save": "1",
        "slow_start_after_idle": "0",
        "rmem": "4096 131072 67108864",
        "wmem": "4096 131072 67108864",
    }
    for name, value in settings.items():
        path = f"/proc/sys/net/ipv4/tcp_{name}"
        _run("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", f"echo '{value}' > {path}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"wan.py: {' '.join(command)}: {done.stderr.strip() or done.returncode}")


def main() -> None:
    """The command line."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=_EXAMPLES, formatter_class=shape)
    where = argparse.ArgumentParser(add_help=False)
    where.add_argument("--directory", type=Path, help="for its files [/tmp/NAME]")
    where.add_argument("--name", default="crosspipe-wan", help="of the namespaces, NAME-dc0 and NAME-dc1 [%(default)s]")
    verbs = parser.add_subparsers(dest="verb", required=True)
    add_options(verbs.add_parser("up", parents=[where], help="make the link"))
    add_options(verbs.add_parser("set", parents=[where], help="change it while it is used"), change=True)
    verbs.add_parser("show", parents=[where], help="print its settings and what it has carried")
    verbs.add_parser("down", parents=[where], help="remove it")
    options = vars(parser.parse_args())
    verb, name = options.pop("verb"), options.pop("name")
    directory = (options.pop("directory") or Path("/tmp") / name).resolve()
    if verb != "up" and not (directory / "link.json").exists():
        raise SystemExit(f"wan.py: there is no link in {directory}")
    if os.geteuid() != 0:
        raise SystemExit("wan.py: needs root, for network namespaces")
    try:
        if verb == "up":
            up(directory, name, Link(**options))
        elif verb == "set":
            change(directory, dataclasses.replace(Link.read(directory / "link.json"), **options))
        else:
            {"show": show, "down": down}[verb](directory)
    except ValueError as error:
        raise SystemExit(f"wan.py: {error}") from None


if __name__ == "__main__":
    main()

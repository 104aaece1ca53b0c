"""The command that compares measurements."""

from pathlib import Path

import pytest

from crosspipe.problem import Link, LinkTable, Spread
from crosspipe.profile.compare import main
from crosspipe.store import save


def saved(folder: Path, name: str, latency_ns: int) -> str:
    spread = Spread(median=latency_ns, low=latency_ns - 9, high=latency_ns + 9, samples=30)
    link = Link(
        source=0, target=1, transport="gloo", latency_ns=latency_ns, bandwidth_bytes_per_s=10**9, latency=spread
    )
    return str(save(folder / name, LinkTable(links=(link,), site_of_rank=(0, 0))))


def test_what_is_beyond_noise_is_printed_and_strict_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = saved(tmp_path, "old.json", 1000), saved(tmp_path, "new.json", 2000)
    assert main([old, new, "--strict"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "gloo site 0 -> 0: 1000 -> 2000 ns (x 2), beyond noise",
        "gloo 0 -> 1: 1000 -> 2000 ns (x 2), beyond noise",
        "2 of 4 quantities beyond noise",
    ]
    assert main([old, old, "--strict"]) == 0
    assert main([old, str(tmp_path / "missing.json")]) == 1
    with pytest.raises(SystemExit):
        main([old])

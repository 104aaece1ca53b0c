"""A model that does not fit this machine is refused before anything starts."""

from pathlib import Path

import pytest

from crosspipe.campaign import launch
from crosspipe.cli import main


def test_what_does_not_fit_is_refused_before_a_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "free_bytes", lambda: 24 * 2**30)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "model=m70", "schedule=1f1b", "until=profile", "cluster=debug"]) == 1
    said = capfd.readouterr().err
    assert "model = 'm70': stage " in said
    assert "this machine has 24.0 GiB free" in said
    assert "costs=analytic until=solve" in said
    assert not (tmp_path / "campaigns").exists()

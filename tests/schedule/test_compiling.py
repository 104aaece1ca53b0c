"""Where compiled code is cached: somewhere writable, apart for every state of the sources."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numba
import pytest

from crosspipe.errors import ArtifactError
from crosspipe.schedule.compiling import cache_directory


def test_the_users_choice_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "mine"))
    found = cache_directory()
    assert found.parent == tmp_path / "mine"
    assert found.is_dir()
    assert cache_directory() == found


def test_falls_back_to_the_temporary_directory(tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file, where nothing can be made")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    assert cache_directory().parent == tmp_path / "temporary" / f"crosspipe-numba-{os.getuid()}"


def test_says_what_to_do_where_nothing_is_writable(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ArtifactError, match="cannot be written; set NUMBA_CACHE_DIR"):
        cache_directory()


def test_what_older_sources_left_is_removed_after_a_month(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for name, age_days in (("crosspipe-old", 31), ("crosspipe-recent", 29), ("somebody-elses", 400)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age_days * 86400,) * 2)
    found = cache_directory()
    assert {path.name for path in tmp_path.iterdir()} == {"crosspipe-recent", "somebody-elses", found.name}


def test_numba_uses_it():
    assert Path(numba.config.CACHE_DIR).name.startswith("crosspipe-")

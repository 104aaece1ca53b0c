"""Where the configs are, and which choices each group has: for Hydra, for help texts, for tests. No Hydra needed."""

from __future__ import annotations

from pathlib import Path

import crosspipe


def config_dir() -> Path:
    """The package's configs: inside the installed wheel, or beside the package in a checkout."""
    package = Path(crosspipe.__file__).parent
    inside, beside = package / "conf", package.parent / "conf"
    return inside if (inside / "config.yaml").exists() else beside


def user_dir() -> Path | None:
    """The user's own configs, `conf` in the working directory; None where there are none."""
    mine = Path.cwd() / "conf"
    return mine if mine.is_dir() and mine.resolve() != config_dir().resolve() else None


def all_groups() -> dict[str, dict[str, str]]:
    """`groups` of the package, with the user's own choices added (and put in place of those of the same name)."""
    found, mine = groups(config_dir()), user_dir()
    for group, choices in (groups(mine) if mine is not None else {}).items():
        found[group] = found.get(group, {}) | choices
    return found


def groups(directory: Path) -> dict[str, dict[str, str]]:
    """Group -> choice -> its first comment line, of the configs in `directory`."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(directory.glob("*/*.yaml")):
        found.setdefault(path.parent.name, {})[path.stem] = _about(path)
    return found


def _about(path: Path) -> str:
    for line in path.read_text().splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").rstrip()
    return ""

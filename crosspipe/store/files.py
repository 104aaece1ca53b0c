"""Typed JSON files: `load` and `save` one msgspec struct, with its type tag and schema version, written atomically.

A bad file gives one line that names the file, the field, the value and the remedy. This module knows nothing of keys or
claims (`crosspipe.store.store`), and nothing here is ever unpickled.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import math
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from crosspipe.errors import ArtifactError, FieldError

T = TypeVar("T", bound=msgspec.Struct)


class _Header(msgspec.Struct):
    """What every typed file says about itself; the other fields are skipped."""

    type: str | None = None
    schema: int | None = None


def save(path: str | Path, obj: msgspec.Struct) -> Path:
    """Writes `obj` as indented JSON to `path`, whole or not at all, and returns the path.

    Raises FieldError (naming the field) for a number that is not finite, ArtifactError if the disk is full or the place
    cannot be written.
    """
    path = Path(path)
    for field, value in _floats(obj, ""):
        if not math.isfinite(value):
            raise FieldError(field, value, "is not a finite number", "JSON holds finite numbers only", file=path)
    write_bytes(path, pretty(obj))
    return path


def pretty(obj: object) -> bytes:
    """`obj` as JSON for people: indented, the innermost lists on one line each."""
    text = msgspec.json.format(msgspec.json.encode(obj), indent=1)
    return re.sub(rb"\[[^\[\]{}]*\]", lambda row: re.sub(rb"\n *", b" ", row[0]), text) + b"\n"


def load(path: str | Path, cls: type[T]) -> T:
    """Reads `path` as a `cls`.

    Raises ArtifactError where the file is missing, truncated, of another type or of a newer schema, FieldError (with
    the file) where a field holds something that cannot be used.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path}: no such file; give the path of a {_name(cls)} in JSON") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror}); give a readable file") from None
    return decode(data.removeprefix(codecs.BOM_UTF8), cls, path)


def decode(data: bytes, cls: type[T], path: Path) -> T:
    """`data` as a `cls`; `path` is only for the messages. Errors as in `load`."""
    _check_header(data, cls, path)
    try:
        return msgspec.json.decode(data, type=cls)
    except msgspec.ValidationError as error:
        refused = error.__cause__  # by the struct itself, not by its types
        if not isinstance(refused, FieldError):
            raise _field_error(str(error), data, path) from None
        place = _place(str(error))
        field = f"{place}.{refused.field}" if place else refused.field
        raise FieldError(field, refused.value, refused.wrong, refused.remedy, file=path) from None


def _check_header(data: bytes, cls: type[T], path: Path) -> None:
    try:
        header = msgspec.json.decode(data, type=_Header)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), data, path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: {_malformed(str(error), data)}") from None
    expected = cls.__struct_config__.tag
    if header.type != expected:
        raise ArtifactError(
            f"{path}: type = {header.type!r}: is not a {_name(cls)}; give a file whose type is {expected!r}"
        )
    known = _schema_of(cls)
    if header.schema is not None and header.schema < 1:
        raise FieldError("schema", header.schema, "no such schema", f"use {known}, the current one", file=path)
    if header.schema is not None and header.schema > known:
        raise ArtifactError(
            f"{path}: schema = {header.schema}: newer than the {known} this version of crosspipe reads; "
            "upgrade crosspipe, or write the file again with this version"
        )


@cache
def _schema_of(cls: type[msgspec.Struct]) -> int:
    return next(int(field.default) for field in msgspec.structs.fields(cls) if field.name == "schema")


def _malformed(message: str, data: bytes) -> str:
    if not data.strip():
        return "the file is empty; write it again"
    if "truncated" in message:
        return f"the JSON ends in the middle (after {len(data)} bytes); write the file again"
    found = re.search(r"byte (\d+)", message)
    if found is None:
        return f"not valid JSON ({message}); correct or write it again"
    at = int(found[1])
    line = data[:at].count(b"\n") + 1
    token = re.match(rb"[^\s,\]}]*", data[at:])
    value = token[0].decode(errors="replace")[:20] if token else ""
    field = re.findall(rb'"([^"\n]*)"\s*:', data[:at])
    where = f"field {field[-1].decode(errors='replace')!r} on line {line}" if field else f"line {line}"
    if data[at - 1 : at] in (b"N", b"I", b"-") or value.lower().lstrip("-") in ("nan", "infinity", "inf"):
        return f"{where} = {value}: is not a finite number; give a finite number"
    return f"{where}: not valid JSON at {value!r} ({message}); correct or write it again"


def _field_error(message: str, data: bytes, path: Path) -> FieldError:
    """msgspec's `Expected X, got Y - at `$.a[0].b`` as a FieldError with the value that stands there."""
    what, where = message.partition(" - at `")[0], _place(message)
    steps = re.findall(r"(\w+)|\[(\d+|\.\.\.)\]", where)
    value: Any = msgspec.json.decode(data)
    for name, index in steps:
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            break
    field = where or "(top level)"
    unknown = re.search(r"unknown field `(.*)`", what)
    if unknown:
        prefix = "" if field == "(top level)" else f"{field}."
        held = value.get(unknown[1]) if isinstance(value, dict) else None
        return FieldError(prefix + unknown[1], held, "no such field", "remove it or correct its spelling", file=path)
    missing = re.search(r"missing required field `(.*)`", what)
    if missing:
        prefix = "" if field == "(top level)" else f"{field}."
        return FieldError(prefix + missing[1], None, "is missing", "add this field", file=path)
    wanted = re.search(r"Expected `([^`]*)`", what)
    remedy = f"give {wanted[1]}" if wanted else "correct the value"
    shown = value if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)}"
    return FieldError(field, shown, what[0].lower() + what[1:], remedy, file=path)


def _place(message: str) -> str:
    """Where msgspec found it: `a[0].b` of "... - at `$.a[0].b`"; empty at the top."""
    return message.partition(" - at `")[2].rstrip("`").removeprefix("$").removeprefix(".")


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: what the block writes there becomes `path` (fsync, rename), or is removed.

    Raises ArtifactError where the disk is full or the folder cannot be written; `path` is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    with disk_errors(path):
        try:
            yield temporary
            share(temporary)
            flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        flush(path.parent)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns the operating system's refusals into an ArtifactError that says what to do."""
    try:
        yield
    except OSError as error:
        reasons: dict[int | None, Callable[[], str]] = {
            errno.ENOSPC: lambda: "the disk is full; free some space and start again, nothing was half-written",
            errno.EDQUOT: lambda: "your disk quota is used up; free some space and start again",
            errno.EACCES: lambda: "no permission to write here; use a store you may write (store=DIR)",
            errno.EROFS: lambda: "the file system is read-only; use a store you may write (store=DIR)",
            errno.ENOENT: lambda: (
                "no file can be made here; give another path"
                if path.parent.is_dir()
                else f"the folder {path.parent} does not exist; create it or give another path"
            ),
        }
        if error.errno not in reasons:
            raise
        raise ArtifactError(f"{path}: {reasons[error.errno]()}") from error


def wait_for(folder: Path, names: Collection[str], patience_s: float) -> list[str]:
    """Waits up to `patience_s` until `folder` shows all of `names`, which another machine may have written; returns
    what it still does not show."""
    deadline, pause_s = time.monotonic() + patience_s, 0.05
    while missing := [name for name in names if not (folder / name).exists()]:
        if time.monotonic() > deadline:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 1.0)
    return missing


def share(path: Path) -> None:
    """Gives the group what its folder gives it, so that a store shared by a group stays so whatever the umask."""
    folder = path.parent.stat().st_mode
    if folder & stat.S_IWGRP:
        mode = path.stat().st_mode
        group = stat.S_IRGRP | stat.S_IWGRP
        if path.is_dir():
            group |= stat.S_IXGRP | (folder & stat.S_ISGID)
        if mode & group != group:
            path.chmod(stat.S_IMODE(mode) | group)


def flush(path: Path) -> None:
    """fsync of a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _name(cls: type[msgspec.Struct]) -> str:
    return str(cls.__struct_config__.tag or cls.__name__).replace("_", " ")


def _floats(obj: object, where: str) -> Iterator[tuple[str, float]]:
    """Every float below `obj` with its dotted place."""
    if isinstance(obj, float):
        yield where, obj
    elif isinstance(obj, msgspec.Struct):
        for name in obj.__struct_fields__:
            yield from _floats(getattr(obj, name), f"{where}.{name}" if where else name)
    elif isinstance(obj, dict):
        for name, value in obj.items():
            yield from _floats(value, f"{where}.{name}" if where else str(name))
    elif isinstance(obj, tuple | list):
        for index, value in enumerate(obj):
            yield from _floats(value, f"{where}[{index}]")

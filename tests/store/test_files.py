"""Typed JSON files: what a good file gives back, and the one line a bad file gets."""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path

import msgspec
import pytest

from crosspipe.errors import ArtifactError, FieldError
from crosspipe.problem import BlockCost, Problem, Spread
from crosspipe.schedule import Block, Schedule
from crosspipe.store import load, save
from crosspipe.store.files import replacing

PROBLEM = Problem.uniform(
    stages=2, microbatches=2, sites=2, forward_ms=1, input_grad_ms=2, weight_grad_ms=3, latency_ms=4, serialisation_ms=5
)


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    schema: int = 1
    spreads: dict[str, Spread] = {}


def test_a_problem_survives_the_file_and_is_plain_json(tmp_path: Path) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    assert load(path, Problem) == PROBLEM
    plain = json.loads(path.read_text())  # another reader
    assert plain["type"] == "problem"
    assert plain["costs"][1][0]["weight_grad_ns"] == 3_000_000
    assert plain["forward_hops"] == [{"latency_ns": 4_000_000, "serialisation_ns": 5_000_000, "wire": "0>1"}]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert load(path, Problem) == PROBLEM


def test_brackets_and_commas_in_words_survive(tmp_path: Path) -> None:
    schedule = Schedule(
        name="odd [name, with {brackets}  ", traversal="ud", stages=1, chunks=1, microbatches=1,
        orders=((Block("F", 0, 0), Block("B", 0, 0)),),
    )  # fmt: skip
    path = save(tmp_path / "s.json", schedule)
    assert json.loads(path.read_text())["name"] == "odd [name, with {brackets}  "
    assert json.loads(path.read_text())["orders"] == [[["F", 0, 0, 0, 1], ["B", 0, 0, 0, 1]]]


@pytest.mark.parametrize(
    ("find", "put", "error", "words"),
    [
        ('"stages": 2', '"stages": NaN', ArtifactError, "'stages' on line 5 = NaN: is not a finite number"),
        ('"stages": 2', '"stages": 2.5', FieldError, "stages = 2.5: expected `int`, got `float`; give int"),
        ('"type": "problem"', '"type": "schedule"', ArtifactError, "type = 'schedule': is not a problem"),
        ('"type": "problem",', "", ArtifactError, "type = None: is not a problem; give a file whose type is 'problem'"),
        ('"schema": 1', '"schema": -5', FieldError, "schema = -5: no such schema; use 1"),
        ('"sites": [ 0,', '"sites": [ -1,', FieldError, "sites[0] = -1: is negative; number the sites from 0"),
        ('"schema": 1', '"schema": 7', ArtifactError, "schema = 7: newer than the 1"),
        ('"stages": 2', '"stagse": 2', FieldError, "stagse = 2: no such field; remove it or correct its spelling"),
        ('"stages": 2,', "", FieldError, "stages = None: is missing; add this field"),
        (
            '"forward_ns": 1000000',
            '"forward_ns": -5',
            FieldError,
            "costs[0][0].forward_ns = -5: is not a whole",
        ),
        ('"forward_ns": 1000000', '"forward_ns": "1"', FieldError, "costs[0][0].forward_ns = '1': expected `int`"),
        ('"microbatches": 2', '"microbatches": 0', FieldError, "microbatches = 0: nothing to schedule"),
    ],
)
def test_a_bad_field_is_named_with_file_value_and_remedy(
    tmp_path: Path, find: str, put: str, error: type[Exception], words: str
) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    text = path.read_text()
    assert find in text
    path.write_text(text.replace(find, put, 1))
    with pytest.raises(error) as caught:
        load(path, Problem)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 40, 200])
def test_a_truncated_file_says_so(tmp_path: Path, keep: int) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"(ends in the middle|is empty).*write (it|the file) again"):
        load(path, Problem)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such file"):
        load(tmp_path / "none.json", Problem)
    with pytest.raises(ArtifactError, match="cannot be read"):
        load(tmp_path, Problem)


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    bad = Measured(spreads={"s0": Spread(median=1.0, low=float("nan"), high=2.0, samples=3)})
    with pytest.raises(FieldError, match=r"spreads\.s0\.low = nan: is not a finite number"):
        save(tmp_path / "m.json", bad)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ArtifactError, match="the disk is full; free some space"):
        save(path, PROBLEM)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"the folder .*nowhere does not exist"):
        save(tmp_path / "nowhere" / "p.json", PROBLEM)


def test_files_in_a_group_writable_folder_are_group_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o2775)
    assert stat.S_IMODE(save(tmp_path / "p.json", PROBLEM).stat().st_mode) & 0o060 == 0o060
    tmp_path.chmod(0o755)
    with replacing(tmp_path / "q.json") as temporary:
        temporary.touch(mode=0o600)
    assert stat.S_IMODE((tmp_path / "q.json").stat().st_mode) == 0o600


def test_field_errors_of_nested_blocks_carry_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "p.json", PROBLEM)
    path.write_text(path.read_text().replace('"forward_keep_bytes": 1048576', '"forward_keep_bytes": 7', 1))
    with pytest.raises(FieldError, match="a microbatch takes 7 bytes but releases 1048576") as caught:
        load(path, Problem)
    assert caught.value.file == path
    with pytest.raises(FieldError):  # the same fault without a file
        BlockCost(
            forward_ns=1, input_grad_ns=1, weight_grad_ns=1, forward_keep_bytes=7, input_grad_release_bytes=1,
            weight_grad_release_bytes=1,
        )  # fmt: skip

"""PyTorch pipelining's CSV: PyTorch's own files, its own lowering as oracle, and what its loader lets through."""

from __future__ import annotations

import csv
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_problems import RUNNABLE_CASES

from crosspipe.errors import ArtifactError, Deadlock, FieldError, UsageError
from crosspipe.problem import Problem
from crosspipe.schedule import Block, Schedule, check, simulate
from crosspipe.schedule.formats import pipelining_csv, read, write
from crosspipe.schedule.formats.pipelining import parse_pipelining

ORDERS = Path(__file__).parents[2] / "reference" / "orders"
FILES = sorted(ORDERS.glob("*.csv"), key=lambda path: path.name)
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def uniform(schedule: Schedule, *times: float, **more) -> Problem:
    forward, input_grad, weight_grad = times
    return Problem.uniform(
        traversal=schedule.traversal,
        stages=schedule.stages,
        chunks=schedule.chunks,
        microbatches=schedule.microbatches,
        forward_ms=forward,
        input_grad_ms=input_grad,
        weight_grad_ms=weight_grad,
        **more,
    )


@EACH_FILE
def test_pytorchs_orders_are_complete_and_run(path):
    schedule = read(path)
    assert (schedule.stages, schedule.microbatches) == (4, 8)
    assert check(uniform(schedule, 38, 46, 21), schedule) == []


@pytest.mark.parametrize(
    ("name", "traversal", "chunks"),
    [
        ("1F1B_exec_pp4_mb8", "ud", 1),
        ("Interleaved1F1B_c2_pp4_mb8", "loop", 2),
        ("ZBVZeroBubble_c2_pp4_mb8", "wave", 2),
        ("DualPipeV_c2_pp4_mb8", "wave", 2),
    ],
)
def test_the_traversal_follows_from_the_ranks(name, traversal, chunks):
    schedule = read(ORDERS / f"{name}.csv")
    assert (schedule.traversal, schedule.chunks) == (traversal, chunks)


@pytest.mark.parametrize(
    ("name", "makespans"),
    [
        ("1F1B_exec_pp4_mb8", {0: 6600, 100: 7400, 200: 8200, 400: 9800}),
        ("InterleavedZeroBubble_c1_pp4_mb8", {0: 5400, 100: 5800, 200: 6600, 400: 8200}),
        ("Interleaved1F1B_c2_pp4_mb8", {0: 5700, 100: 6300, 200: 7000, 400: 9400}),
    ],
)
def test_reference_makespans(name, makespans):
    """tests/reference/README.md: F = D = W = 200, two sites of two stages, latency between them."""
    schedule = read(ORDERS / f"{name}.csv")
    found = {
        latency: simulate(uniform(schedule, 200, 200, 200, sites=2, latency_ms=latency), schedule).makespan_ns / 1e6
        for latency in makespans
    }
    assert found == makespans


@pytest.mark.parametrize(
    ("times", "name", "makespan", "peak"),
    [
        ((38, 46, 21), "ZBVZeroBubble_c2_pp4_mb8", 915, 4),  # tests/reference/README.md
        ((38, 46, 21), "InterleavedZeroBubble_c1_pp4_mb8", 1029, 4),  # zero_bubble_makespans_p4n8.csv, zbh1
        ((1, 1, 1), "InterleavedZeroBubble_c1_pp4_mb8", 27, 4),
    ],
)
def test_zero_bubble_reference(times, name, makespan, peak):
    schedule = read(ORDERS / f"{name}.csv")
    timeline = simulate(uniform(schedule, *times), schedule)
    assert timeline.makespan_ns == makespan * 1_000_000
    assert max(timeline.peak_memory_bytes()) == peak << 20


@EACH_FILE
@pytest.mark.parametrize("communication", [False, True])
def test_what_we_write_we_read(path, communication, tmp_path):
    schedule = read(path)
    copy = tmp_path / "copy.csv"
    copy.write_text(pipelining_csv(schedule, communication=communication))
    assert read(copy).orders == schedule.orders


def test_write_by_extension(tmp_path):
    schedule = read(ORDERS / "1F1B_exec_pp4_mb8.csv")
    write(tmp_path / "a.csv", schedule)
    first = (tmp_path / "a.csv").read_text().splitlines()[0]
    assert first == "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7"
    with pytest.raises(UsageError, match=r"use \.csv, \.trace\.json, \.goal"):
        write(tmp_path / "a.txt", schedule)
    with pytest.raises(UsageError, match=r"no format to read has this extension; use \.csv"):
        read(tmp_path / "a.goal")
    with pytest.raises(UsageError, match="give the problem file"):
        write(tmp_path / "a.goal", schedule)
    with pytest.raises(ArtifactError, match=r"nowhere/a\.csv: cannot be written"):
        write(tmp_path / "nowhere" / "a.csv", schedule)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


@EACH_FILE
def test_pytorch_reads_what_we_write_and_lowers_it_alike(path):
    torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    schedule = read(path)
    positions = schedule.stages * schedule.chunks

    def loaded(text: str) -> dict[int, list]:
        rows = csv.reader(text.splitlines())
        return {rank: [torch_schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}

    actions = loaded(pipelining_csv(schedule))
    rank_of = torch_schedules._validate_schedule(actions, schedule.stages, positions, schedule.microbatches)
    lowered = torch_schedules._add_send_recv(actions, lambda stage: rank_of[stage], positions)
    assert loaded(pipelining_csv(schedule, communication=True)) == lowered


def two_ranks(*rows: str) -> str:
    return "\n".join(rows) + "\n"


GOOD = (
    "0F0,0SEND_F0,0RECV_B0,0B0",
    "1RECV_F0,1F0,1B0,1SEND_B0",
)


def test_spaces_sharding_overlap_and_empty_cells():
    text = two_ranks(" 0UNSHARD,0F0 , 0F1,,0I0,0W0, 0B1,0RESHARD,0REDUCE_GRAD", "1F0,( 1F1 ;1B0)OVERLAP_F_B,1B1", "")
    schedule = parse_pipelining(text)
    assert schedule.traversal == "ud"
    assert schedule.orders == (
        (Block("F", 0, 0), Block("F", 0, 1), Block("D", 0, 0), Block("W", 0, 0), Block("B", 0, 1)),
        (Block("F", 0, 0), Block("F", 0, 1), Block("B", 0, 0), Block("B", 0, 1)),
    )


def test_a_byte_order_mark_is_no_junk(tmp_path):
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n1F0,1B0\r\n")
    assert read(tmp_path / "bom.csv").stages == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0F0,0B0", "1F0,2F0x"), "row 2, column 2 = '2F0x': is no pipelining action"),
        (("0F0,0B0", "1F,1B0"), "row 2, column 1 = '1F': is no pipelining action"),
        (("0F0,0B0", "1F0,1D0"), "row 2, column 2 = '1D0': is no pipelining action"),
        (("0F0,0UNSHARD0", "1F0"), "row 1, column 2 = '0UNSHARD0': is no pipelining action"),
        (("(0F0;0SEND_F0)OVERLAP_F_B", "1F0"), "row 1, column 1 = '(0F0;0SEND_F0)OVERLAP_F_B': is no pipelining"),
        (("0F0,0F0", "1F0,1B0"), "row 1, column 2 = '0F0': 0F0 at row 1, column 1 has done this already"),
        (("0F0,0I0,0B0", "1F0"), "row 1, column 3 = '0B0': 0I0 at row 1, column 2 has done this already"),
        (("0F0,1F0", "1B0"), "row 2, column 1 = '1B0': stage 1 is on rank 0 too (1F0 at row 1, column 2)"),
        (("0F0", "2F0"), "stages = 3: no rank has an action of stage 1"),
        (("0F0,2F0", "1F0"), "stages = 3: cannot be shared evenly by 2 ranks"),
        (("0F0,1F0", "2F0,3F0"), "stages = [0, 0, 1, 1]: ranks of stages 0, 1, … are those of no traversal"),
        (("0F0", "", "1F0"), "row 2 = '': a rank without actions"),
        (("",), "rows = 0: the file holds no actions"),
        # sends and receives
        ((GOOD[0], "1F0,1B0,1SEND_B0"), "row 2, column 1 = '1F0': its input is not received before it (1RECV_F0)"),
        ((GOOD[0], "1F0,1RECV_F0,1B0,1SEND_B0"), "row 2, column 1 = '1F0': its input is not received before it"),
        (
            ("0F0,0RECV_B0,0B0", "1RECV_F0,1F0,1B0,1SEND_B0"),
            "row 1, column 1 = '0F0': its output is never sent (0SEND_F0); put 0SEND_F0 after it",
        ),
        (("0SEND_F0,0F0,0RECV_B0,0B0", GOOD[1]), "row 1, column 1 = '0SEND_F0': stands before 0F0"),
        ((GOOD[0] + ",0SEND_B0", GOOD[1]), "row 1, column 5 = '0SEND_B0': no block makes a message that goes this way"),
        (
            ("0F0,0SEND_F0,0F1,0SEND_F1", "1RECV_F1,1RECV_F0,1F0,1F1"),
            "row 2, column 1 = '1RECV_F1': meets 0SEND_F0 (row 1, column 2): between two ranks the n-th receive gets "
            "the n-th send",
        ),
        (
            ("0F0,0F1,0SEND_F1,0SEND_F0", "1RECV_F1,1RECV_F0,1F0,1F1"),
            "row 1, column 4 = '0SEND_F0': is sent after 0SEND_F1, but its block runs before",
        ),
    ],
)
def test_faults_name_row_and_column(rows, message, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(two_ranks(*rows))
    with pytest.raises(FieldError) as raised:
        read(path)
    assert str(raised.value).startswith(f"{path}: {message}")
    assert "\n" not in str(raised.value)


def test_no_text_is_an_error_not_a_traceback(tmp_path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe0F0")
    with pytest.raises(ArtifactError, match=r"b\.csv: is not a CSV of pipelining actions"):
        read(tmp_path / "b.csv")
    with pytest.raises(ArtifactError, match=r"none\.csv: cannot be read"):
        read(tmp_path / "none.csv")


def test_two_ranks_that_both_send_first_hang():
    """Reported against PyTorch: `…,0SEND_F1,2RECV_F0,2F0` beside `…,1SEND_F0,1RECV_F1,1F1`."""
    text = two_ranks(
        "0F0,0SEND_F0,0F1,0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1",
        "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1,3RECV_F0,3F0,3RECV_F1,3F1",
    )
    with pytest.raises(Deadlock) as raised:
        parse_pipelining(text)
    assert raised.value.cycle == [
        "rank 0 waits in 0SEND_F1 (row 1, column 4) before 2F0 (row 1, column 6) for rank 1 to answer it",
        "rank 1 waits in 1SEND_F0 (row 2, column 3) for rank 0 to answer it",
    ]
    met = text.replace("0SEND_F1,2RECV_F0,2F0,2SEND_F0,2RECV_F1", "2RECV_F0,0SEND_F1,2F0,2RECV_F1,2SEND_F0")
    assert [len(order) for order in parse_pipelining(met).orders] == [4, 4]


def test_blocks_that_wait_for_each_other_hang():
    text = two_ranks(
        "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1",
        "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1",
    )
    with pytest.raises(Deadlock) as raised:
        parse_pipelining(text)
    assert raised.value.cycle == [
        "rank 0 waits in 0RECV_B0 (row 1, column 3) before 0B0 (row 1, column 4) for rank 1 to answer it",
        "rank 1 waits in 1RECV_F1 (row 2, column 3) for rank 0 to answer it",
    ]


def test_pieces_of_w_cannot_be_written():
    order = (Block("F", 0, 0), Block("D", 0, 0), Block("W", 0, 0, 0, 2), Block("W", 0, 0, 1, 2))
    schedule = Schedule(traversal="ud", stages=1, chunks=1, microbatches=1, orders=(order,))
    with pytest.raises(FieldError, match=r"orders\[0\]\[2\] = 'W0 of chunk 0 piece 0/2': PyTorch knows no pieces"):
        pipelining_csv(schedule)


def test_an_order_that_cannot_run_cannot_be_lowered():
    rows = ((Block("F", 0, 0), Block("D", 0, 0)), (Block("D", 0, 0), Block("F", 0, 0)))
    schedule = Schedule(traversal="ud", stages=2, chunks=1, microbatches=2, orders=rows)
    with pytest.raises(Deadlock, match="rank 0 waits before 0I0 for what it needs; rank 1 waits before 1I0"):
        pipelining_csv(schedule, communication=True)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_runnable_order_survives_with_and_without_communication(data):
    problem, schedule = data.draw(RUNNABLE_CASES)
    if problem.weight_grad_pieces > 1 or problem.stages == 1:  # one rank: loop and wave look alike
        return
    for communication in (False, True):
        again = parse_pipelining(pipelining_csv(schedule, communication=communication))
        assert (again.traversal, again.orders) == (schedule.traversal, schedule.orders)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet='0123FIBW(),;\n "SEND_RCVx', max_size=60))
def test_any_text_is_a_schedule_or_our_own_error(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_text(text)
    with suppress(FieldError, ArtifactError, Deadlock):
        assert read(path).stages >= 1

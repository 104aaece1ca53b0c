"""Tables from CSV: units worked by hand, and one clear line for each fault."""

from pathlib import Path

import pytest

from crosspipe.errors import ArtifactError, CrosspipeError
from crosspipe.profile.imported import read_link_csv

HEADER = "source_site,target_site,latency_ms,bandwidth_gbit_per_s\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "links.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("latency", "bandwidth", "row"),
    [
        ("latency_ms", "bandwidth_gbit_per_s", "1.9,10"),
        ("latency_us", "bandwidth_mbit_per_s", "1900,10000"),
        ("latency_s", "bandwidth_gbyte_per_s", "0.0019,1.25"),
        ("latency_ns", "bandwidth_bytes_per_s", "1900000,1250000000"),
    ],
)
def test_units_come_from_the_header(tmp_path: Path, latency: str, bandwidth: str, row: str) -> None:
    table = read_link_csv(written(tmp_path, f"site,site,{latency},{bandwidth}\n0,1,{row}\n1,0,{row}\n"))
    assert [(x.latency_ns, x.bandwidth_bytes_per_s) for x in table.links] == [(1_900_000, 1_250_000_000)] * 2
    assert table.findings == ()


def test_rows_of_sites_become_links_of_ranks(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + "zurich,lugano,2,10\nlugano,zurich,3,5\nzurich,zurich,0.01,400\n")
    table = read_link_csv(path, site_of_rank=(0, 0, 1))
    assert table.between(0, 2).latency_ns == 2_000_000
    assert table.between(2, 1).latency_ns == 3_000_000
    assert table.between(1, 0).latency_ns == 10_000
    assert len(table.links) == 6
    assert table.environment["site 0"] == "zurich"
    assert table.environment["site 1"] == "lugano"


def test_a_missing_direction_is_taken_from_the_other_and_said(tmp_path: Path) -> None:
    table = read_link_csv(written(tmp_path, HEADER + "0,1,2,\n"))
    assert table.between(1, 0).latency_ns == 2_000_000
    assert table.between(0, 1).bandwidth_bytes_per_s is None
    assert [(found.name, found.detail) for found in table.findings] == [
        ("symmetry_assumed", "no row for 1->0: taken as the other direction")
    ]


def test_a_slip_by_1024_is_told(tmp_path: Path) -> None:
    rows = "0,1,2,10\n1,0,2,10\n0,2,2,10\n2,0,2,10240\n1,2,2,10\n2,1,2,10\n"
    (found,) = read_link_csv(written(tmp_path, HEADER + rows)).findings
    assert found.name == "unit_slip"
    assert "imported 2->0: bandwidth_bytes_per_s = 1280000000000, 1024 times" in found.detail


def test_directions_a_hundred_million_times_apart_are_told(tmp_path: Path) -> None:
    found = read_link_csv(written(tmp_path, HEADER + "0,1,2,1e9\n1,0,2,10\n")).findings
    assert [one.name for one in found] == ["far_from_neighbours"]


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_bytes((HEADER + "z\xfcrich,lugano,2,10\n").encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"links\.csv: is not text in UTF-8 .*save the table as CSV in UTF-8"):
        read_link_csv(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,latency,bandwidth\n0,1,2,3\n", "needs two columns of sites, then latency and bandwidth with their units"),
        ("latency_ms,bandwidth_gbit_per_s,a,b\n1,2,0,1\n", "needs two columns of sites"),
        ("", "needs two columns of sites"),
        (HEADER, "has no rows"),
        (HEADER + "0,1,2\n", "row 2 has 3 cells; give the 4 of the header"),
        (HEADER + "0,1,nan,10\n", "row 2, latency_ms = 'nan': is not a finite time >= 0"),
        (HEADER + "0,1,-1,10\n", "row 2, latency_ms = '-1': is not a finite time >= 0"),
        (HEADER + "0,1,2,ten\n", "row 2, bandwidth_gbit_per_s = 'ten': is not a bandwidth of 1 byte/s or more"),
        (HEADER + "0,1,2,0\n", "row 2, bandwidth_gbit_per_s = '0': is not a bandwidth"),
        (HEADER + "0,1,2,3\n0,1,2,4\n", "row 3 = '0,1': is given twice"),
        (HEADER + "0,2,2,3\n", "site = 2: sites are not numbered 0, 1, 2"),
        (HEADER + "zurich,,2,3\n", "a site has no name"),
    ],
)
def test_a_fault_is_named_with_file_and_cell(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CrosspipeError) as refused:
        read_link_csv(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_file_is_one_line_too(tmp_path: Path) -> None:
    with pytest.raises(CrosspipeError, match="cannot be read"):
        read_link_csv(tmp_path / "none.csv")

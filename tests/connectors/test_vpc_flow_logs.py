"""VPC flow logs to staging: formats, gaps, bad lines, parquet, real records."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest

from connectors.objects import Source
from connectors.sink import Lake
from connectors.vpc_flow_logs import FLOW, GAP, header_fields, parse_format, stage

HEADER = (
    "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end action log-status"
)
LINE = "2 123456789010 eni-1 172.31.16.139 172.31.16.21 20641 22 6 20 4249 1418530010 1418530070 ACCEPT OK"


def staged(folder: Path, **options: object) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """(flows, gaps, rejected, loads) of a folder."""
    lake = Lake(folder.parent / f"lake-{folder.name}")
    stage(Source("vpc", "vpc-flow-logs", folder, cluster="train-1", options=options), lake, lambda text: None)

    def read(files: list[Path]) -> pl.DataFrame:
        return pl.read_parquet(files) if files else pl.DataFrame()

    return read(lake.held_files(FLOW)), read(lake.held_files(GAP)), read(lake.rejected_files()), lake.loads()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def test_without_a_header_the_version_2_order_holds(folder: Path) -> None:
    (folder / "a.log").write_text(LINE + "\n")
    row = staged(folder)[0].row(0, named=True)
    assert (row["interface_id"], row["source_ip"], row["destination_port"], row["bytes"]) == (
        "eni-1",
        "172.31.16.139",
        22,
        4249,
    )
    assert (row["start_ns"], row["end_ns"]) == (1418530010 * 10**9, 1418530070 * 10**9)
    assert row["flow_direction"] is None
    assert row["az_id"] is None


def test_the_header_gives_the_order(folder: Path) -> None:
    (folder / "a.log").write_text("bytes dstaddr end srcaddr start\n77 10.0.0.2 20 10.0.0.1 10\n")
    flows, _, _, loads = staged(folder)
    assert flows.select("bytes", "source_ip", "destination_ip", "start_ns").row(0) == (
        77,
        "10.0.0.1",
        "10.0.0.2",
        10 * 10**9,
    )
    assert loads.select("rows_read", "rows_kept", "rows_control").row(0) == (2, 1, 1)


@pytest.mark.parametrize("text", ["${srcaddr} ${dstaddr} ${start} ${end} ${bytes}", "srcaddr dstaddr start end bytes"])
def test_a_configured_format_gives_the_order(folder: Path, text: str) -> None:
    (folder / "a.log").write_text("10.0.0.1  10.0.0.2   10 20 5 # a note\n")
    flows, *_ = staged(folder, format=text)
    assert flows.select("source_ip", "bytes").row(0) == ("10.0.0.1", 5)


def test_packet_addresses_are_the_ends(folder: Path) -> None:
    (folder / "a.log").write_text(
        "srcaddr dstaddr pkt-srcaddr pkt-dstaddr start end bytes\n10.0.0.1 10.0.0.2 10.9.0.1 10.9.0.2 1 2 3\n10.0.0.1 10.0.0.2 - - 1 2 3\n"
    )
    flows, *_ = staged(folder)
    assert flows.select("source_ip", "destination_ip", "outer_source_ip").rows() == [
        ("10.9.0.1", "10.9.0.2", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.1"),
    ]


def test_t6_records_without_data_are_gaps_not_zeros(folder: Path) -> None:
    gap = "2 123456789010 eni-1 - - - - - - - 1431280876 1431280934 - "
    (folder / "a.log").write_text("\n".join([HEADER, LINE, gap + "NODATA", gap + "SKIPDATA"]))
    flows, gaps, rejected, loads = staged(folder)
    assert (flows.height, rejected.height) == (1, 0)
    assert sorted(gaps["log_status"]) == ["NODATA", "SKIPDATA"]
    assert loads.filter(pl.col("table_name") == FLOW)["rows_control"].item() == 3


def test_bad_lines_are_kept_with_their_numbers(folder: Path) -> None:
    bad = {
        2: "bogus",
        3: LINE.replace("1418530070", "1418530000"),
        4: LINE.replace("172.31.16.21", "999.1.1.1"),
        5: LINE.replace("4249", "4k"),
        6: LINE.replace("1418530010", "-").replace("1418530070", "-"),
        7: LINE + " extra",
        8: LINE.replace("ACCEPT", "MAYBE"),
        9: LINE.replace(" 22 ", " 70000 "),
        10: LINE.replace("4249", "-5"),
        11: LINE.replace("1418530070", "1518530070"),  # spans three years
        12: LINE.replace("1418530010", "9223372036854775807").replace("1418530070", "9223372036854775807"),
        13: LINE.replace("4249", "9223372036854775807"),
    }
    (folder / "a.log").write_text("\n".join([HEADER, *bad.values(), LINE]))
    flows, _, rejected, loads = staged(folder)
    assert flows.height == 1
    assert rejected["line_number"].sort().to_list() == list(bad)
    assert loads.select("rows_read", "rows_kept", "rows_rejected", "rows_control").row(0) == (14, 1, 12, 1)


@pytest.mark.parametrize(
    ("start", "ns"), [("1418530010", 1418530010 * 10**9), ("1418530010123", 1418530010123 * 10**6)]
)
def test_seconds_and_milliseconds(folder: Path, start: str, ns: int) -> None:
    (folder / "a.log").write_text(LINE.replace("1418530010", start).replace("1418530070", start))
    assert staged(folder)[0]["start_ns"].item() == ns


def test_parquet_and_gzip_equal_text(tmp_path: Path) -> None:
    for name in ("text", "gzip", "parquet"):
        (tmp_path / name).mkdir()
    gap = "2 123456789010 eni-1 - - - - - - - 1431280876 1431280934 - SKIPDATA"
    text = "\n".join([HEADER, LINE, LINE.replace("ACCEPT", "REJECT"), gap]) + "\n"
    (tmp_path / "text" / "a.log").write_text(text)
    (tmp_path / "gzip" / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    rows = [dict(zip(HEADER.replace("-", "_").split(), line.split(), strict=True)) for line in text.splitlines()[1:]]
    numbers = ("version", "srcport", "dstport", "protocol", "packets", "bytes", "start", "end")
    frame = pl.DataFrame([{k: None if v == "-" else v for k, v in row.items()} for row in rows])
    frame.with_columns(pl.col(*numbers[:4]).cast(pl.Int32), pl.col(*numbers[4:]).cast(pl.Int64)).write_parquet(
        tmp_path / "parquet" / "a.parquet"
    )
    results = {name: staged(tmp_path / name) for name in ("text", "gzip", "parquet")}
    for name, (flows, gaps, rejected, _) in results.items():
        assert rejected.is_empty(), name
        assert flows.drop("object_id", "line_number").equals(results["text"][0].drop("object_id", "line_number")), name
        assert gaps.drop("object_id").equals(results["text"][1].drop("object_id")), name


def test_a_broken_parquet_file_stops_nothing(folder: Path) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1" + b"x" * 100)
    (folder / "b.log").write_text(LINE)
    flows, _, rejected, _ = staged(folder)
    assert flows.height == 1
    assert rejected["reason"].item().startswith("format: ")


def test_n7_the_same_bytes_elsewhere_and_again_add_nothing(folder: Path) -> None:
    (folder / "a.log").write_text(LINE)
    (folder / "copy.log").write_text(LINE)
    flows, _, _, loads = staged(folder)
    assert flows.height == 1
    assert loads["rows_duplicate"].sum() == 1
    assert staged(folder)[3].height == 2


def test_header_words() -> None:
    assert header_fields(LINE) is None
    assert header_fields("pkt_srcaddr bytes") == ["pkt-srcaddr", "bytes"]
    assert parse_format("${a-b} c_d") == ["a-b", "c-d"]


def test_real_records(shared_data: Path, tmp_path: Path) -> None:
    """Counts of each published file: header + kept + gaps + set aside (formats without times) are its lines."""
    beats = parse_format(
        "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end action log-status vpc-id "
        "subnet-id instance-id tcp-flags type pkt-srcaddr pkt-dstaddr region az-id sublocation-type sublocation-id "
        "pkt-src-aws-service pkt-dst-aws-service flow-direction traffic-path"
    )
    counts = {}
    for path in sorted((shared_data / "vpc-flow-logs").glob("*.txt")):
        folder = tmp_path / path.stem
        folder.mkdir()
        (folder / path.name).write_bytes(path.read_bytes())
        options = {"format": " ".join(beats)} if "beats" in path.name else {}
        flows, gaps, rejected, loads = staged(folder, **options)
        counts[path.stem] = (flows.height, gaps.height, rejected.height)
        assert loads.filter(pl.col("table_name") == FLOW)["rows_read"].item() == len(path.read_text().splitlines())
    assert counts == {
        "natgw-custom-header": (0, 0, 6),  # no start, no end: can't be placed in time
        "v2-default-noheader": (8, 2, 0),
        "v3-flowlogs-reader": (2, 0, 0),
        "v3-tgw-header": (0, 0, 4),
        "v4-flowlogs-reader": (2, 0, 0),
        "v5-aws-docs-header": (2, 0, 0),
        "v5-beats-noheader": (1, 0, 0),
    }

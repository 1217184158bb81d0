"""Hubble files to staging: envelopes, exact times, absent values, bad lines, duplicates, real records."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from connectors.errors import FormatUnknown
from connectors.hubble import CONTROL, FLOW, envelope, stage
from connectors.lines import LineFile, canonical_address
from connectors.objects import Source
from connectors.sink import Lake

TIME = "2026-11-23T10:00:00.123456789Z"


def flow(**changes: object) -> dict[str, object]:
    record: dict[str, object] = {
        "time": TIME,
        "verdict": "FORWARDED",
        "IP": {"source": "10.0.1.5", "destination": "10.0.2.7"},
        "l4": {"TCP": {"source_port": 40000, "destination_port": 23456, "flags": {"SYN": True}}},
        "source": {"ID": 12, "identity": 30000, "namespace": "ml", "pod_name": "job-worker-0"},
        "destination": {"identity": 30001, "namespace": "ml", "pod_name": "job-master-0"},
        "Type": "L3_L4",
        "node_name": "node-a",
        "event_type": {"type": 4, "sub_type": 3},
        "is_reply": False,
    }
    record.update(changes)
    return {name: value for name, value in record.items() if value is not None}


def wrapped(**changes: object) -> str:
    return json.dumps({"flow": flow(**changes), "node_name": "node-a", "time": TIME}, separators=(",", ":"))


def staged(
    folder: Path, lake: Lake | None = None, **source: object
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """(flows, control, rejected, loads) of every file below a folder."""
    lake = lake or Lake(folder.parent / "lake")
    stage(Source("flows", "hubble", folder, cluster="train-1", **source), lake, lambda text: None)  # type: ignore[arg-type]

    def read(files: list[Path]) -> pl.DataFrame:
        return pl.read_parquet(files) if files else pl.DataFrame()

    return (
        read(lake.held_files(FLOW)),
        read(lake.held_files(CONTROL)),
        read(lake.rejected_files()),
        lake.loads(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.mkdir()
    return path


def one(folder: Path, *lines: str) -> dict[str, object]:
    (folder / "events.log").write_text("\n".join(lines) + "\n")
    flows, *_ = staged(folder)
    assert flows.height == 1
    return flows.row(0, named=True)


def test_envelopes_of_one_flow_give_the_same_row(folder: Path) -> None:
    record, line = flow(), wrapped()
    texts = {
        "e1.log": line,
        "e2.log": json.dumps(record),
        "e3.log": json.dumps({"flow": record}),
        "e4.json": json.dumps({"cluster_name": "x", "tenant_id": 1, "flow": record, "node_name": "node-a"}, indent=2, sort_keys=True),
        "e5.json": json.dumps([record], indent=4),
        "e6.log": f"2026-11-23T10:00:01.1Z stdout P {line[:100]}\n2026-11-23T10:00:01.1Z stdout F {line[100:]}",
        "e7a.log": json.dumps({"date": 1, "log": line + "\n", "stream": "stdout"}),
        "e7b.log": json.dumps({"message": line}),
        "e7c.log": json.dumps({"hubble": {"flow": record}, "kubernetes": {}}),
        "camel.log": wrapped().replace('"pod_name"', '"podName"').replace('"is_reply"', '"isReply"')
        .replace('"source_port"', '"sourcePort"').replace('"destination_port"', '"destinationPort"')
        .replace('"event_type"', '"eventType"').replace('"sub_type"', '"subType"').replace('"node_name"', '"nodeName"'),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
        alone = folder.parent / f"only-{name}"
        alone.mkdir()
        (alone / name).write_text(text)
        flows, _, rejected, _ = staged(alone, Lake(folder.parent / f"lake-{name}"))
        assert rejected.is_empty(), name
        row = flows.drop("object_id").row(0, named=True)
        assert (row["source_pod"], row["destination_port"], row["observation_point"]) == (
            "job-worker-0",
            23456,
            "TO_STACK",
        ), name
        assert (row["time_ns"], row["node_name"], row["is_reply"]) == (1795428000123456789, "node-a", False), name
    # ten files of one event are one row, because all ten rows are equal
    flows, _, _, loads = staged(folder)
    assert flows.height == 1
    assert loads["rows_duplicate"].sum() == loads["rows_read"].sum() - 1


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-23T10:00:00Z", 1795428000000000000),
        ("2026-11-23T10:00:00.302406Z", 1795428000302406000),
        ("2026-11-23T10:00:00.302407001Z", 1795428000302407001),
        ("2026-11-23T12:00:00+02:00", 1795428000000000000),
        ("1970-01-01T00:00:01Z", 1000000000),
    ],
)
def test_n1_times_are_exact_nanoseconds(folder: Path, text: str, ns: int) -> None:
    assert one(folder, json.dumps({"flow": flow(time=text)}))["time_ns"] == ns


@pytest.mark.parametrize("text", [None, "", "yesterday", "0001-01-01T00:00:00Z", "2026-13-01T00:00:00Z"])
def test_n3_a_record_without_a_time_is_kept_aside(folder: Path, text: str | None) -> None:
    (folder / "a.log").write_text(json.dumps({"flow": flow(time=text)}) + "\n")
    flows, _, rejected, _ = staged(folder)
    assert flows.is_empty()
    assert rejected["reason"].item().startswith("bad_value: time is ")
    assert rejected["line_number"].item() == 1


def test_absent_values_stay_absent(folder: Path) -> None:
    row = one(folder, json.dumps({"flow": {"time": TIME, "source": {}, "destination": {}, "l4": {"ICMPv4": {}}}}))
    assert row["protocol"] == "ICMPv4"
    for column in (
        "is_reply",
        "verdict",
        "source_ip",
        "tcp_syn",
        "bytes",
        "source_pod",
        "flow_type",
        "node_name",
        "source_reserved",
    ):
        assert row[column] is None, column
    assert row["events"] == 1


FIELDS: list[tuple[dict[str, object], str, object]] = [
    ({"is_reply": None, "reply": True}, "is_reply", True),
    ({"is_reply": None, "reply": False}, "is_reply", None),
    ({"is_reply": False, "reply": True}, "is_reply", False),
    ({"verdict": 15}, "verdict", "15"),
    ({"event_type": {"type": 4}}, "observation_point", "TO_ENDPOINT"),
    ({"source": {"ID": "7", "identity": "30000"}}, "source_identity", 30000),
    ({"source": {"ID": "7", "identity": "30000"}}, "source_local", True),
    ({"drop_reason": 133, "drop_reason_desc": "POLICY_DENIED"}, "drop_reason", "POLICY_DENIED"),
    ({"drop_reason": 133}, "drop_reason", "133"),
    ({"event_type": {"type": 1, "sub_type": 133}}, "drop_reason", "133"),
    (
        {"aggregate": {"ingress_flow_count": 2, "egress_flow_count": 1, "unknown_direction_flow_count": 3}},
        "events",
        6,
    ),
    ({"IP": {"source": "2001:DB8:0:0::1", "destination": "::ffff:10.0.0.1"}}, "source_ip", "2001:db8::1"),
    ({"IP": {"source": "2001:DB8:0:0::1", "destination": "::ffff:10.0.0.1"}}, "destination_ip", "10.0.0.1"),
    ({"IP": {"source": "not:an:address", "destination": "10.0.0.1"}}, "source_ip", None),
    ({"source": {"identity": 33554433, "labels": ["k8s:a=b"]}}, "source_reserved", "remote-node"),
    ({"source": {"identity": 9}}, "source_reserved", "world-ipv4"),
    ({"source": {"identity": 1, "labels": ["reserved:remote-node", "reserved:host"]}}, "source_reserved", "host"),
    ({"source": {"labels": ["k8s:cfg=a=reserved:host"]}}, "source_reserved", None),
    ({"node_name": "prod/node-a"}, "node_name", "node-a"),
    ({"node_labels": ["a=b", "topology.kubernetes.io/zone=us-east-1a"]}, "node_zone", "us-east-1a"),
    ({"extensions": {"@type": "x", "bytes": 10, "previously_observed_bytes": 5}}, "bytes", 15),
    ({"extensions": {"@type": "x", "value": {"bytes": 10.0}}}, "bytes", 10),
    ({"l4": {"TCP": {"source_port": 1}}, "Summary": "TCP Flags: SYN, ACK"}, "tcp_ack", True),
    ({"l7": {"type": "RESPONSE", "dns": {"query": "a.b."}}}, "dns_rcode", 0),
    ({"l7": {"type": "REQUEST", "dns": {"query": "a.b."}}}, "dns_rcode", None),
    ({"destination_service": {"name": "s", "namespace": "ml"}}, "destination_service", "ml/s"),
    (
        {"egress_denied_by": [{"name": "deny", "namespace": "ml", "revision": "6", "kind": "CiliumNetworkPolicy"}]},
        "policies",
        '["CiliumNetworkPolicy/ml/deny"]',
    ),
    ({"l4": "x"}, "protocol", None),
    ({"l4": {"TCP": {"source_port": 70000}}}, "source_port", None),
    ({"unheard_of": {"deep": [1]}}, "verdict", "FORWARDED"),
]


def test_fields(folder: Path) -> None:
    (folder / "a.log").write_text("\n".join(wrapped(uuid=str(n), **changes) for n, (changes, *_) in enumerate(FIELDS)))
    rows = {row["event_key"]: row for row in staged(folder)[0].iter_rows(named=True)}
    assert len(rows) == len(FIELDS)
    for number, (changes, column, value) in enumerate(FIELDS):
        assert rows[str(number)][column] == value, changes


def test_bad_lines_are_kept_with_their_numbers(folder: Path) -> None:
    lines = [
        wrapped(uuid="1").encode(),
        b"garbage",
        b"",
        b'{"flow":{"time":"2026-11-23T10:0',
        b'{"unknown":1}',
        b"\xff\xfe",
        wrapped(uuid="2").encode() + b"\r",
        b"[1]",
        wrapped(uuid="3").encode()[:-5],
    ]
    (folder / "a.log").write_bytes(b"\n".join(lines))
    flows, _, rejected, loads = staged(folder)
    assert sorted(flows["event_key"]) == ["1", "2"]
    reasons = {row["line_number"]: row["reason"].split(":")[0] for row in rejected.iter_rows(named=True)}
    assert reasons == {2: "bad_json", 4: "bad_json", 5: "bad_record", 6: "bad_encoding", 8: "bad_record", 9: "bad_json"}
    assert loads.select("rows_read", "rows_kept", "rows_rejected", "rows_duplicate", "rows_control").row(0) == (
        8,
        2,
        6,
        0,
        0,
    )


def test_t6_events_that_are_no_flows_are_control_records(folder: Path) -> None:
    lines = [
        wrapped(),
        '{"lost_events":{"source":"HUBBLE_RING_BUFFER","num_events_lost":"17","cpu":0},"node_name":"prod/node-a","time":"TIME"}',
        '{"lost_events":{"source":"X","num_events_lost":3,"first":"2026-11-23T09:59:00Z","last":"2026-11-23T10:00:00Z"},"node_name":"b"}',
        '{"node_status":{"state_change":"NODE_GONE","node_names":["b","c"]},"node_name":"r","time":"TIME"}',
        '{"agent_event":{},"node_name":"b","time":"TIME"}',
        '{"debug_event":{}}',
    ]
    lines = [line.replace('"TIME"', f'"{TIME}"') for line in lines]
    (folder / "a.log").write_text("\n".join(lines))
    (folder / "b.log").write_text("\n".join(lines[1:4]))
    flows, control, rejected, loads = staged(folder)
    assert (flows.height, rejected.height) == (1, 0)
    lost = control.filter(pl.col("control_kind") == "lost_events").sort("events_lost")
    # the same loss in a rotated copy is one loss; one without a time can't be told from another like it
    assert lost["events_lost"].to_list() == [3, 3, 17]
    assert lost["last_ns"][0] - lost["first_ns"][0] == 60_000_000_000
    assert control.filter(pl.col("control_kind") == "node_status")["detail"].to_list() == ["NODE_GONE b,c"]
    assert loads.filter(pl.col("table_name") == FLOW)["rows_control"].sum() == 8


def test_n7_rotated_copies_and_growing_files_add_no_event_twice(folder: Path) -> None:
    early = [wrapped(uuid=str(n), time=f"2026-11-23T10:00:{n:02}Z") for n in range(5)]
    masked = [json.dumps({"flow": flow(time=f"2026-11-23T10:01:{n:02}Z"), "node_name": "node-a"}) for n in range(3)]
    (folder / "events.log").write_text("\n".join(early + masked) + "\n")
    lake = Lake(folder.parent / "lake")
    assert staged(folder, lake)[0].height == 8
    (folder / "events-1.log.gz").write_bytes(gzip.compress(("\n".join(early + masked) + "\n").encode()))
    (folder / "events.log").write_text(
        "\n".join([*early, *masked, wrapped(uuid="new", time="2026-11-23T10:02:00Z")]) + "\n"
    )
    flows, _, _, loads = staged(folder, lake)
    assert flows.height == 9
    assert loads["rows_duplicate"].sum() == 16
    before = loads.height
    assert staged(folder, lake)[3].height == before


def test_truncated_gzip_is_salvaged(folder: Path) -> None:
    text = "\n".join(wrapped(uuid=str(n), Summary="x" * n) for n in range(2000)).encode()
    (folder / "a.log.gz").write_bytes(gzip.compress(text)[:-2000])
    flows, _, rejected, loads = staged(folder)
    assert 0 < flows.height < 2000
    assert rejected.height <= 1
    assert "ends early" in loads["warning"].item()


def test_n2_clusters_are_never_merged(folder: Path) -> None:
    (folder / "relay.log").write_text(
        "\n".join(json.dumps({"flow": flow(node_name=name, uuid=name)}) for name in ("train-1/n", "train-2/n"))
    )
    (folder / "single.log").write_text(json.dumps({"flow": flow(node_name="other-spelling/n", uuid="x")}))
    flows, *_ = staged(folder)
    assert dict(flows.select("event_key", "cluster").iter_rows()) == {
        "train-1/n": "train-1",
        "train-2/n": "train-2",
        "x": "train-1",
    }
    assert flows["node_name"].unique().to_list() == ["n"]


def test_n2_a_pod_of_another_cluster_is_marked(folder: Path) -> None:
    row = one(
        folder,
        wrapped(
            source={"ID": 1, "cluster_name": "east", "namespace": "ml", "pod_name": "a"},
            destination={"cluster_name": "west", "namespace": "ml", "pod_name": "a"},
        ),
    )
    assert (row["source_cluster"], row["destination_cluster"]) == (None, "west")


@pytest.mark.parametrize(
    "text",
    [
        "Jan  1 00:20:34.567 [k8s1]: 1.1.1.1:31793 (health) -> 2.2.2.2:8080 (ID:12345) Policy denied DROPPED (TCP Flags: SYN)\n",
        "TIMESTAMP             SOURCE          DESTINATION\n",
        "  TIMESTAMP: Jan  1 00:20:34.567\n",
        "\x1b[36mJan  1 00:20:34.567\x1b[0m: x\n",
        "EVENTS LOST: HUBBLE_RING_BUFFER CPU(5) 1\n",
    ],
)
def test_text_output_is_refused_with_a_hint(folder: Path, text: str) -> None:
    (folder / "a.txt").write_text(text)
    (folder / "b.log").write_text(wrapped() + "\n")
    flows, _, rejected, _ = staged(folder)
    assert flows.height == 1  # one bad object does not stop the others
    assert "-o jsonpb" in rejected["reason"].item()
    with pytest.raises(FormatUnknown, match="no year"):
        envelope(text.encode())


def test_pretty_documents_go_on_after_a_broken_one(folder: Path) -> None:
    good = json.dumps({"flow": flow(uuid="1")}, indent=2)
    other = json.dumps({"flow": flow(uuid="2")}, indent=2)
    (folder / "a.json").write_text(good + "\n" + good[: len(good) // 2] + "\n" + other + "\n" + "[" * 100_000)
    flows, _, rejected, _ = staged(folder)
    assert sorted(flows["event_key"]) == ["1", "2"]
    assert rejected["line_number"].to_list() == [good.count("\n") + 2]


def test_a_line_over_the_limit_is_one_rejected_record(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"a\n" + b"x" * 5000 + b"\nb\n" + b"y" * 10)
    lines = LineFile(path, block_bytes=64, max_line_bytes=1000)
    table = lines.reader().read_all().to_pylist()
    assert [(r["line_number"], (r["line"] or "").strip(), r["problem"]) for r in table] == [
        (1, "a", None),
        (2, "", "line_too_long"),
        (3, "b", None),
        (4, "yyyyyyyyyy", None),
    ]


def test_addresses_have_one_text() -> None:
    assert canonical_address("2001:0DB8::0001") == "2001:db8::1"
    assert canonical_address("::FFFF:10.1.2.3") == "10.1.2.3"
    assert canonical_address("fe80::1%eth0") == "fe80::1"
    assert canonical_address("10.1.2.300") is None
    assert canonical_address(None) is None


def _records(path: Path) -> list[dict[str, object]]:
    """Records of a real file, read plainly (lines, documents or arrays)."""
    text = path.read_text()
    try:
        value = json.loads(text)
        return value if isinstance(value, list) else [value]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def test_real_records_are_read_with_nothing_lost(shared_data: Path, tmp_path: Path) -> None:
    """Every real record is a row, a control record, a known duplicate, or has no time; the counts are those of the files."""
    root = shared_data / "hubble"
    files = [p for p in sorted(root.rglob("*")) if p.suffix in {".json", ".jsonl"}]
    for path in files:
        target = tmp_path / "in" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    flows, control, rejected, loads = staged(tmp_path / "in")
    records = [record for path in files for record in _records(path)]
    seen, expected = set(), []
    for record in records:
        raw = record.get("flow", record if {"IP", "verdict"} & set(record) else None)
        if isinstance(raw, dict) and (raw.get("time") or record.get("time")):
            text = json.dumps({k: v for k, v in raw.items() if k not in ("_id", "timestamp")}, sort_keys=True)
            if text not in seen:
                seen.add(text)
                expected.append(raw)
    assert len(records) == 1264
    assert loads.filter(pl.col("table_name") == FLOW)["rows_read"].sum() == 1264
    assert (control.height, rejected.height, flows.height) == (5, 57, 1161)
    assert set(rejected["reason"]) == {"bad_value: time is missing"}
    for column, name in (
        ("verdict", "verdict"),
        ("flow_type", "Type"),
        ("is_reply", "is_reply"),
        ("traffic_direction", "traffic_direction"),
    ):
        counted = Counter(flow.get(name) for flow in expected)
        if name == "is_reply":  # the deprecated field alone still says yes
            counted[True] += (old := sum(1 for f in expected if f.get("reply") and "is_reply" not in f))
            counted[None] -= old
        assert Counter(flows[column].to_list()) == +counted, column
    digits = Counter(len(str(f["time"]).partition(".")[2].rstrip("Z")) for f in expected)
    assert digits[9] + digits[6] + digits[0] == flows.height
    assert flows.filter(pl.col("time_ns") % 1000 != 0).height <= digits[9]


@pytest.mark.parametrize("seed", range(4))
def test_b5_whatever_a_line_holds_it_is_counted(folder: Path, seed: int) -> None:
    """Damaged, hostile and odd lines: nothing stops the file, every record is kept or set aside with its number."""
    chance = random.Random(seed)
    good = wrapped().encode()
    odd: list[object] = [None, True, -1, 2**64, 1e300, "", "x" * 5000, [], {}, [[1]], {"a": None}, "\u0000", "\ud800"]
    lines = [b"[" * 100_000, b'{"flow":' * 50_000, b'{"flow":{"time":"%s"}}' % (b"9" * 10_000)]
    for _ in range(300):
        line = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            line[chance.randrange(len(line))] = chance.randrange(256)
        lines.append(bytes(line))
        record = flow(aggregate={"ingress_flow_count": chance.choice(odd)}, extensions={"bytes": chance.choice(odd)})
        record[chance.choice(list(record))] = chance.choice(odd)
        lines.append(json.dumps({"flow": record, chance.choice(["lost_events", "x"]): chance.choice(odd)}).encode())
    chance.shuffle(lines)
    (folder / "a.log").write_bytes(good + b"\n" + b"\n".join(lines))
    _, _, rejected, loads = staged(folder)
    counts = loads.filter(pl.col("table_name") == FLOW).row(0, named=True)
    physical = (good + b"\n" + b"\n".join(lines)).split(b"\n")
    assert counts["rows_read"] == sum(1 for line in physical if line.strip(b" \t\r\n\v\f"))
    assert rejected["line_number"].is_between(1, len(physical)).all()
    assert rejected["line_number"].n_unique() == rejected.height == counts["rows_rejected"] > 0

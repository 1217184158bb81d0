"""Hubble flows: exporter files and `hubble observe -o jsonpb` output, in every envelope that is met, to staging rows.

One record a line (wrapped, bare, or inside a log collector's or container runtime's envelope) goes through DuckDB in
one pass; pretty-printed documents and JSON arrays are first taken apart by a slower reader. What flows mean is not
decided here: an absent value stays null, and a record without a time is kept aside, never stamped.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from connectors.errors import FormatUnknown
from connectors.lines import LINE_SCHEMA, LineFile, canonical_address
from connectors.objects import LandedObject, Source, list_objects, open_bytes, report_progress
from connectors.sink import Batch, Lake
from models.contracts import TABLES

FLOW, CONTROL = "staging.hubble_flow", "staging.hubble_control"
MAX_DOCUMENT_BYTES = 512 << 20
MEMORY_LIMIT = "2GB"
_HEAD_BYTES = 64 << 10

_PORTS = {"source_port": "BIGINT", "destination_port": "BIGINT"}
_FLAGS = {"SYN": "BOOLEAN", "ACK": "BOOLEAN", "FIN": "BOOLEAN", "RST": "BOOLEAN"}
_ENDPOINT: dict[str, Any] = {
    "ID": "BIGINT",
    "identity": "BIGINT",
    "cluster_name": "VARCHAR",
    "namespace": "VARCHAR",
    "labels": ["VARCHAR"],
    "pod_name": "VARCHAR",
}
_POLICY = [{"kind": "VARCHAR", "namespace": "VARCHAR", "name": "VARCHAR"}]
_BYTES = {"bytes": "DOUBLE", "previously_observed_bytes": "DOUBLE"}
_POLICY_LISTS = ("egress_allowed_by", "ingress_allowed_by", "egress_denied_by", "ingress_denied_by")
# the fields that are read, with the types that protojson's texts are coerced to (uint64 comes as a string)
SHAPE: dict[str, Any] = {
    "node_name": "VARCHAR",
    "time": "VARCHAR",
    "flow": {
        "time": "VARCHAR",
        "uuid": "VARCHAR",
        "verdict": "VARCHAR",
        "drop_reason": "VARCHAR",
        "drop_reason_desc": "VARCHAR",
        "IP": {"source": "VARCHAR", "source_xlated": "VARCHAR", "destination": "VARCHAR"},
        "l4": {
            "TCP": {**_PORTS, "flags": _FLAGS},
            "UDP": _PORTS,
            "SCTP": _PORTS,
            "ICMPv4": "JSON",
            "ICMPv6": "JSON",
            "VRRP": "JSON",
            "IGMP": "JSON",
        },
        "source": _ENDPOINT,
        "destination": _ENDPOINT,
        "Type": "VARCHAR",
        "node_name": "VARCHAR",
        "node_labels": ["VARCHAR"],
        "destination_names": ["VARCHAR"],
        "l7": {"type": "VARCHAR", "dns": {"query": "VARCHAR", "rcode": "BIGINT"}},
        "reply": "BOOLEAN",
        "is_reply": "BOOLEAN",
        "event_type": {"type": "BIGINT", "sub_type": "BIGINT"},
        "destination_service": {"name": "VARCHAR", "namespace": "VARCHAR"},
        "traffic_direction": "VARCHAR",
        "trace_observation_point": "VARCHAR",
        "trace_reason": "VARCHAR",
        "aggregate": {
            "ingress_flow_count": "BIGINT",
            "egress_flow_count": "BIGINT",
            "unknown_direction_flow_count": "BIGINT",
        },
        "extensions": {**_BYTES, "value": _BYTES},
        "Summary": "VARCHAR",
        **dict.fromkeys(_POLICY_LISTS, _POLICY),
    },
    "lost_events": {"source": "VARCHAR", "num_events_lost": "BIGINT", "first": "VARCHAR", "last": "VARCHAR"},
    "node_status": {"state_change": "VARCHAR", "node_names": ["VARCHAR"], "message": "VARCHAR"},
    "agent_event": {"type": "VARCHAR"},
    "debug_event": {"type": "VARCHAR"},
}
# protojson readers accept lowerCamelCase, and some Go re-encoders write it
_CAMEL = {
    re.sub(r"_([a-z])", lambda m: m[1].upper(), name): name
    for part in (
        SHAPE,
        SHAPE["flow"],
        _ENDPOINT,
        _PORTS,
        SHAPE["flow"]["IP"],
        SHAPE["lost_events"],
        SHAPE["node_status"],
    )
    for name in part
    if "_" in name
} | {"subType": "sub_type", "previouslyObservedBytes": "previously_observed_bytes"}
# protobuf's TraceObservationPoint by the datapath's number (event_type.sub_type; 0 is omitted)
_POINTS = {
    0: "TO_ENDPOINT", 1: "TO_PROXY", 2: "TO_HOST", 3: "TO_STACK", 4: "TO_OVERLAY", 5: "FROM_ENDPOINT", 6: "FROM_PROXY",
    7: "FROM_HOST", 8: "FROM_STACK", 9: "FROM_OVERLAY", 10: "FROM_NETWORK", 11: "TO_NETWORK", 12: "FROM_CRYPTO",
    13: "TO_CRYPTO",
}  # fmt: skip
_RESERVED_NUMBERS = {
    1: "host", 2: "world", 3: "unmanaged", 4: "health", 5: "init", 6: "remote-node", 7: "kube-apiserver", 8: "ingress",
    9: "world-ipv4", 10: "world-ipv6",
}  # fmt: skip
# an endpoint may carry several reserved labels (kube-apiserver + world): the most telling first
_RESERVED_ORDER = (
    "host", "remote-node", "kube-apiserver", "health", "ingress", "init", "unmanaged", "world-ipv4", "world-ipv6", "world",
)  # fmt: skip
# identities with node labels have their own scope (2 << 24), cilium issue 42432
REMOTE_NODE_SCOPE = range(2 << 24, 3 << 24)


# --- one object ------------------------------------------------------------------------------------------------------
def envelope(head: bytes) -> str:
    """`lines` or `documents` for what a file begins with; FormatUnknown when it is no JSON.

    A line reader can't follow a value that spans lines: a lone bracket on the first line tells such a file.
    """
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    first = text.split(b"\n", 1)[0].strip()
    if not text or re.match(rb"\S+ (?:stdout|stderr) [FP] ", text):
        return "lines"
    if text.startswith(b"["):
        return "documents"
    if text.startswith(b"{"):
        return "documents" if first == b"{" else "lines"
    if _looks_like_text(text):
        raise FormatUnknown(
            "this is Hubble's text output, whose times have no year and no zone",
            where=first[:80].decode(errors="replace"),
            fix="write it with `hubble observe -o jsonpb`, or use the exporter's files",
        )
    if re.search(rb'^\{"(?:flow|lost_events|time)"', text, re.MULTILINE):
        return "lines"  # a damaged first line
    raise FormatUnknown(
        "not Hubble JSON", where=first[:80].decode(errors="replace"), fix="write it with `hubble observe -o jsonpb`"
    )


def _looks_like_text(text: bytes) -> bool:
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", text[:4096])
    return bool(re.match(rb"(?:[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d|TIMESTAMP\b|EVENTS LOST:)", plain)) or bool(
        re.match(rb" *TIMESTAMP:", plain)
    )


def document_lines(text: str) -> Iterator[tuple[int, str | None, str | None, str | None]]:
    """Rows of `LINE_SCHEMA` from concatenated JSON values or arrays of them; after a bad one it goes on at the next line
    that begins with a brace."""
    decoder = json.JSONDecoder()
    position, line, counted = 0, 1, 0
    skip = re.compile(r"[\s\[\],\ufeff]*")
    while True:
        position = skip.match(text, position).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, position), position
        if position >= len(text):
            return
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            resume = re.compile(r"^\s*\{\s*$", re.MULTILINE).search(text, position + 1)
            end = resume.start() if resume else len(text)
            yield line, None, "bad_json: not a complete JSON value", text[position : position + 2000]
        else:
            yield line, json.dumps(value, separators=(",", ":")), None, None
        position = end


def _document_reader(path: Path) -> pa.RecordBatchReader:
    with open_bytes(path) as handle:
        data = handle.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise FormatUnknown(
            f"a JSON document over {MAX_DOCUMENT_BYTES >> 20} MiB",
            where=path.name,
            fix="write one record a line (`-o jsonpb`)",
        )
    rows = list(document_lines(data.decode(errors="replace")))
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    arrays = [pa.array(list(c), type=f.type) for c, f in zip(columns, LINE_SCHEMA, strict=True)]
    return pa.RecordBatchReader.from_batches(LINE_SCHEMA, [pa.record_batch(arrays, schema=LINE_SCHEMA)])


# --- SQL -------------------------------------------------------------------------------------------------------------
def _sql_map(values: Mapping[int, str]) -> str:
    return "MAP {" + ", ".join(f"{number}: '{name}'" for number, name in values.items()) + "}"


_RFC3339 = r"'\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)'"
_MACROS = (
    # exact nanoseconds: up to nine digits of fraction, `Z` or an offset; null for what is no RFC 3339 time
    f"""CREATE OR REPLACE MACRO rfc3339_ns(t) AS TRY(CASE WHEN regexp_full_match(t, {_RFC3339}) THEN
        epoch_us(CAST(replace(upper(substr(t, 1, 19)), 'T', ' ') AS TIMESTAMP)) * 1000
        + CASE WHEN substr(t, 20, 1) = '.' THEN CAST(rpad(regexp_extract(t, '\\.(\\d+)', 1), 9, '0') AS BIGINT) ELSE 0 END
        - CASE WHEN upper(right(t, 1)) = 'Z' THEN 0
               ELSE (CASE WHEN substr(right(t, 6), 1, 1) = '-' THEN -1 ELSE 1 END)
                    * (CAST(substr(right(t, 6), 2, 2) AS BIGINT) * 60 + CAST(right(t, 2) AS BIGINT)) * 60000000000 END
        END)""",
    """CREATE OR REPLACE MACRO address(t) AS CASE WHEN contains(t, ':') THEN canonical_address(t) ELSE nullif(t, '') END""",
    # pods have identities from 256 to 2^24 - 1 and no reserved label, so most ends need no look at their labels
    f"""CREATE OR REPLACE MACRO reserved_entity(e) AS CASE
        WHEN e.identity BETWEEN 256 AND 16777215 AND NOT contains(CAST(e.labels AS VARCHAR), 'reserved:') THEN NULL
        ELSE coalesce(
        list_filter({list(_RESERVED_ORDER)}, lambda n: list_contains(coalesce(e.labels, []), 'reserved:' || n))[1],
        CASE WHEN e.identity BETWEEN {REMOTE_NODE_SCOPE.start} AND {REMOTE_NODE_SCOPE.stop - 1} THEN 'remote-node' END,
        {_sql_map(_RESERVED_NUMBERS)}[e.identity]) END""",
    """CREATE OR REPLACE MACRO label_value(labels, name) AS
        substr(list_filter(labels, lambda l: starts_with(l, name || '='))[1], length(name) + 2)""",
)


def _record_sql() -> str:
    """The line as a wrapped record: collector envelopes taken off, bare flows wrapped, camelCase keys written back."""
    renamed = "inner_record"
    for camel, name in sorted(_CAMEL.items()):
        renamed = f"replace({renamed}, '\"{camel}\":', '\"{name}\":')"
    paths = ["$.log", "$.message", "$._raw", "$.msg", "$.hubble", '$."hubble.log"', '$."hubble.message"']
    inner = f"""coalesce(list_filter(TRY(json_extract_string(line, {paths})), lambda v: starts_with(ltrim(v), '{{'))[1], line)"""
    known = "['$.flow', '$.lost_events', '$.node_status', '$.agent_event', '$.debug_event']"
    bare = "['$.verdict', '$.IP', '$.l4', '$.source', '$.time', '$.uuid']"
    return f"""
    unwrapped AS (
        SELECT line_number, problem, raw, line, CASE
            WHEN starts_with(line, '{{"flow":{{') OR starts_with(line, '{{"lost_events":{{') THEN line
            WHEN contains(line, '"flow"') AND NOT contains(line, '"hubble') THEN line
            ELSE {inner} END AS inner_record
        FROM line_batches WHERE problem IS NOT NULL OR length(line) > 2 OR trim(line, E' \\t\\r\\n\\v\\f') <> ''
    ), spelled AS (
        SELECT *, CASE WHEN contains(inner_record, '"nodeName"') OR contains(inner_record, '"podName"')
            OR contains(inner_record, '"isReply"') OR contains(inner_record, '"sourcePort"') THEN {renamed} ELSE inner_record END AS record_text FROM unwrapped
    ), wrapped AS (
        SELECT line_number, problem, raw, line, CASE
            WHEN starts_with(record_text, '{{"flow":{{') THEN record_text
            WHEN list_bool_or(TRY(json_exists(record_text, {known}))) THEN record_text
            WHEN list_bool_or(TRY(json_exists(record_text, {bare})))
                THEN '{{"flow":' || rtrim(record_text, E' \\t\\r\\n') || '}}'
            ELSE record_text END AS record_text FROM spelled
    ), decoded AS (
        SELECT line_number, problem, raw, line, TRY(json_transform(record_text, '{json.dumps(SHAPE)}')) AS r FROM wrapped
    )"""


def _parse_sql() -> str:
    """`parsed`: a row a record, with its kind (flow, control, rejected) and every staging column."""
    policies = " ".join(f"|| coalesce(f.{name}, [])" for name in _POLICY_LISTS)
    normalised = (
        "node_name, node_prefix, time_ns, flow_type, verdict, drop_reason, event_type, observation_point, trace_reason, "
        "traffic_direction, is_reply, protocol, source_ip, source_port, destination_ip, destination_port, tcp_syn, tcp_ack, "
        "tcp_fin, tcp_rst, source_pod, destination_pod, source_identity, destination_identity, dns_query, events"
    )
    return f"""
    CREATE OR REPLACE TEMP TABLE parsed AS
    WITH {_record_sql()}, fields AS (
        SELECT *, r.flow AS f, r.flow.l4 AS l4, coalesce(r.flow.time, r.time) AS time_text,
            rfc3339_ns(coalesce(r.flow.time, r.time)) AS time_ns,
            coalesce(r.flow.node_name, r.node_name) AS node_text,
            -- three uint32 counts at most
            TRY(coalesce(r.flow.aggregate.ingress_flow_count, 0) + coalesce(r.flow.aggregate.egress_flow_count, 0)
                + coalesce(r.flow.aggregate.unknown_direction_flow_count, 0)) AS aggregated,
            coalesce(r.flow.l4.TCP.source_port, r.flow.l4.UDP.source_port, r.flow.l4.SCTP.source_port) AS source_port,
            coalesce(r.flow.l4.TCP.destination_port, r.flow.l4.UDP.destination_port, r.flow.l4.SCTP.destination_port)
                AS destination_port
        FROM decoded
    ), typed AS (
        SELECT line_number,
            CASE WHEN problem IS NOT NULL THEN problem
                 WHEN r IS NULL THEN 'bad_json: not one JSON object'
                 WHEN r.lost_events IS NOT NULL OR r.node_status IS NOT NULL OR r.agent_event IS NOT NULL
                    OR r.debug_event IS NOT NULL THEN NULL
                 WHEN f IS NULL THEN 'bad_record: neither a flow nor a known event'
                 WHEN time_text IS NULL THEN 'bad_value: time is missing'
                 WHEN time_ns IS NULL THEN 'bad_value: time is no RFC 3339 time' END AS reason,
            CASE WHEN r.lost_events IS NOT NULL THEN 'lost_events' WHEN r.node_status IS NOT NULL THEN 'node_status'
                 WHEN r.agent_event IS NOT NULL THEN 'agent_event' WHEN r.debug_event IS NOT NULL THEN 'debug_event'
                 END AS control_kind,
            coalesce(raw, line) AS raw,
            time_ns,
            nullif(split_part(node_text, '/', -1), '') AS node_name,
            CASE WHEN contains(node_text, '/') THEN split_part(node_text, '/', 1) END AS node_prefix,
            nullif(f.uuid, '') AS uuid,
            f."Type" AS flow_type,
            f.verdict AS verdict,
            coalesce(f.drop_reason_desc, f.drop_reason,
                     CASE WHEN f.event_type.type = 1 THEN CAST(f.event_type.sub_type AS VARCHAR) END) AS drop_reason,
            f.event_type.type AS event_type,
            coalesce(f.trace_observation_point, CASE WHEN f.event_type.type = 4
                     THEN {_sql_map(_POINTS)}[coalesce(f.event_type.sub_type, 0)] END) AS observation_point,
            f.trace_reason AS trace_reason,
            f.traffic_direction AS traffic_direction,
            coalesce(f.is_reply, CASE WHEN f.reply THEN true END) AS is_reply,
            CASE WHEN l4.TCP IS NOT NULL THEN 'TCP' WHEN l4.UDP IS NOT NULL THEN 'UDP' WHEN l4.SCTP IS NOT NULL THEN 'SCTP'
                 WHEN l4.ICMPv4 IS NOT NULL THEN 'ICMPv4' WHEN l4.ICMPv6 IS NOT NULL THEN 'ICMPv6'
                 WHEN l4.VRRP IS NOT NULL THEN 'VRRP' WHEN l4.IGMP IS NOT NULL THEN 'IGMP' END AS protocol,
            address(f.IP.source) AS source_ip,
            CASE WHEN source_port BETWEEN 0 AND 65535 THEN source_port END AS source_port,
            address(f.IP.destination) AS destination_ip,
            CASE WHEN destination_port BETWEEN 0 AND 65535 THEN destination_port END AS destination_port,
            address(f.IP.source_xlated) AS source_xlated_ip,
            {", ".join(_flag_sql(flag) for flag in ("SYN", "ACK", "FIN", "RST"))},
            {_endpoint_sql("source")},
            {_endpoint_sql("destination")},
            CASE WHEN f.destination_service.name <> ''
                 THEN coalesce(f.destination_service.namespace, '') || '/' || f.destination_service.name END AS destination_service,
            CASE WHEN len(f.destination_names) > 0 THEN CAST(to_json(f.destination_names) AS VARCHAR) END AS destination_names,
            coalesce(nullif(label_value(f.node_labels, 'topology.kubernetes.io/zone'), ''),
                     nullif(label_value(f.node_labels, 'failure-domain.beta.kubernetes.io/zone'), '')) AS node_zone,
            nullif(f.l7.dns.query, '') AS dns_query,
            CASE WHEN f.l7.dns IS NOT NULL THEN
                 coalesce(f.l7.dns.rcode, CASE WHEN f.l7.type = 'RESPONSE' THEN 0 END) END AS dns_rcode,
            coalesce(CASE WHEN aggregated BETWEEN 1 AND 12884901885 THEN aggregated END, 1) AS events,
            TRY_CAST(coalesce(f.extensions.bytes + coalesce(f.extensions.previously_observed_bytes, 0),
                f.extensions.value.bytes + coalesce(f.extensions.value.previously_observed_bytes, 0)) AS BIGINT) AS bytes,
            CASE WHEN len([] {policies}) > 0 THEN CAST(to_json(list_distinct(list_transform([] {policies},
                 lambda p: concat_ws('/', coalesce(p.kind, ''), coalesce(p.namespace, ''), coalesce(p.name, ''))))) AS VARCHAR)
                 END AS policies,
            r.lost_events.num_events_lost AS events_lost,
            rfc3339_ns(r.lost_events.first) AS first_ns,
            rfc3339_ns(r.lost_events.last) AS last_ns,
            coalesce(r.lost_events.source, concat_ws(' ', r.node_status.state_change, array_to_string(r.node_status.node_names, ',')),
                     '') AS control_detail,
            coalesce(r.agent_event.type, r.debug_event.type) AS event_name
        FROM fields
    )
    SELECT *, coalesce(uuid, md5(CAST(row({normalised}) AS VARCHAR))) AS event_key FROM typed
    """


def _flag_sql(flag: str) -> str:
    return f"""CASE WHEN l4.TCP IS NULL THEN NULL
        WHEN l4.TCP.flags IS NOT NULL THEN coalesce(l4.TCP.flags.{flag}, false)
        WHEN starts_with(f.Summary, 'TCP Flags:') THEN contains(f.Summary, '{flag}') END AS tcp_{flag.lower()}"""


def _endpoint_sql(side: str) -> str:
    return f"""nullif(f.{side}.namespace, '') AS {side}_namespace, nullif(f.{side}.pod_name, '') AS {side}_pod,
            f.{side}.identity AS {side}_identity, coalesce(f.{side}.ID, 0) > 0 AS {side}_local,
            reserved_entity(f.{side}) AS {side}_reserved,
            nullif(f.{side}.cluster_name, '') AS {side}_cluster_name"""


# --- staging ---------------------------------------------------------------------------------------------------------
@dataclass
class _Held:
    """Lake files of one table by time and observing nodes, so that duplicates are sought only where they can be."""

    lake: Lake
    table: str
    files: list[tuple[Path, int, int]] = field(default_factory=list)
    nodes: dict[Path, tuple[str, str] | None] = field(default_factory=dict)

    def load(self) -> None:
        rows = self.lake.loads().filter(
            (pl.col("table_name") == self.table)
            & pl.col("lake_file").is_not_null()
            & pl.col("min_time_utc").is_not_null()
        )
        for name, low, high in rows.select("lake_file", "min_time_utc", "max_time_utc").iter_rows():
            self.files.append((self.lake.root / name, _us(low), _us(high)))

    def add(self, loads: list[dict[str, object]]) -> None:
        for row in loads:
            if row["table_name"] == self.table and row["lake_file"] and row["min_time_utc"]:
                self.files.append(
                    (
                        self.lake.root / str(row["lake_file"]),
                        _us(cast(datetime, row["min_time_utc"])),
                        _us(cast(datetime, row["max_time_utc"])),
                    )
                )

    def overlapping(self, from_ns: int, to_ns: int, first_node: str | None, last_node: str | None) -> list[str]:
        found = []
        for path, low, high in self.files:
            if high < from_ns // 1000 or low > to_ns // 1000:
                continue
            if path not in self.nodes:
                self.nodes[path] = _node_range(path)
            held = self.nodes[path]
            if (
                held
                and first_node is not None
                and last_node is not None
                and (held[1] < first_node or held[0] > last_node)
            ):
                continue
            found.append(str(path))
        return found


def _us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def _node_range(path: Path) -> tuple[str, str] | None:
    """First and last observing node of a lake file; null when its footer does not say."""
    metadata = pq.read_metadata(path)
    index = metadata.schema.names.index("node_name")
    statistics = [metadata.row_group(n).column(index).statistics for n in range(metadata.num_row_groups)]
    if not all(s is not None and s.has_min_max and s.null_count == 0 for s in statistics):
        return None
    return min(s.min for s in statistics), max(s.max for s in statistics)


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new object of a Hubble source; an object that is no Hubble JSON is kept aside whole, with the reason."""
    objects = list_objects(source)
    done = set(lake.loads()["object_id"])
    fresh = [landed for landed in objects if landed.object_id not in done]
    if not fresh:
        return
    lake.root.mkdir(parents=True, exist_ok=True)
    held = {table: _Held(lake, table) for table in (FLOW, CONTROL)}
    for index in held.values():
        index.load()
    with tempfile.TemporaryDirectory(prefix=".hubble-", dir=lake.root) as folder:
        con = _connect(Path(folder))
        try:
            for number, landed in enumerate(fresh, start=1):
                report_progress(progress, source, number, len(fresh))
                loads = _stage_object(con, landed, lake, held)
                for index in held.values():
                    index.add(loads)
        finally:
            con.close()


def _connect(folder: Path) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(folder / "spill"),
    }
    con = duckdb.connect(":memory:", config=config)
    con.execute("SET TimeZone = 'UTC'")
    con.create_function("canonical_address", canonical_address, ["VARCHAR"], "VARCHAR", null_handling="special")  # type: ignore[call-overload]
    for macro in _MACROS:
        con.execute(macro)
    return con


def _stage_object(
    con: duckdb.DuckDBPyConnection, landed: LandedObject, lake: Lake, held: Mapping[str, _Held]
) -> list[dict[str, object]]:
    batch = lake.batch(landed)
    try:
        _parse(con, landed, batch)
    except FormatUnknown as error:
        batch.count(landed, FLOW).read = 1
        batch.reject(landed, FLOW, 1, f"format: {error.what}; {error.fix}", error.where)
        batch.warn(landed, error.what)
        return batch.commit()
    _assign_clusters(con, landed, batch)
    _keep_flows(con, landed, batch, held[FLOW])
    _keep_control(con, landed, batch, held[CONTROL])
    rejected = con.sql(
        "SELECT line_number, reason, left(raw, 2000) AS raw FROM parsed WHERE reason IS NOT NULL ORDER BY 1"
    ).pl()
    if rejected.height:
        batch.reject_frame(landed, FLOW, rejected)
    return batch.commit()


def _parse(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch) -> None:
    lines = LineFile(landed.path)
    try:
        with open_bytes(landed.path) as handle:
            head = handle.read(1) + (
                handle.read1(_HEAD_BYTES) if hasattr(handle, "read1") else handle.read(_HEAD_BYTES)
            )
    except (OSError, EOFError) as error:
        raise FormatUnknown("the file can't be read", where=str(error), fix="fetch it again") from error
    reader = lines.reader() if envelope(head) == "lines" else _document_reader(landed.path)
    con.register("line_batches", reader)
    try:
        con.execute(_parse_sql())
    except (duckdb.DataError, duckdb.InvalidInputException) as error:
        raise FormatUnknown("the file can't be parsed", where=str(error)[:500], fix="report this file") from error
    finally:
        con.unregister("line_batches")
    if lines.broken:
        batch.warn(landed, f"the file ends early, what could be read was kept ({lines.broken})")


def _assign_clusters(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch) -> None:
    """`clusters`: the cluster of each node-name prefix.

    One prefix in an object is the configured cluster, however Cilium spells it. Several are several clusters (a relay
    over a cluster mesh): they are never merged, and those that are not configured keep their own name.
    """
    configured = landed.source.cluster
    aliases = landed.source.options.get("cluster_prefixes") or {}
    prefixes = [
        row[0]
        for row in con.sql(
            "SELECT DISTINCT node_prefix FROM parsed WHERE node_prefix IS NOT NULL ORDER BY 1"
        ).fetchall()
    ]
    named: list[tuple[str | None, str]] = [(None, configured or "default")]
    for prefix in prefixes:
        alias = aliases.get(prefix) if isinstance(aliases, Mapping) else None
        own = configured if configured and len(prefixes) == 1 else prefix
        named.append((prefix, str(alias or own)))
    if len(prefixes) > 1:
        batch.warn(landed, f"nodes of several clusters: {', '.join(prefixes)}")
    con.execute("CREATE OR REPLACE TEMP TABLE clusters (node_prefix VARCHAR, cluster VARCHAR)")
    con.executemany("INSERT INTO clusters VALUES (?, ?)", [list(pair) for pair in named])


def _keep_flows(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch, held: _Held) -> None:
    counts = batch.count(landed, FLOW)
    counts.read, counts.control = con.sql(
        "SELECT count(*), count(*) FILTER (WHERE reason IS NULL AND control_kind IS NOT NULL) FROM parsed"
    ).fetchall()[0]
    flows, low, high, first, last = con.sql(
        f"SELECT count(*), min(time_ns), max(time_ns), min(node_name), max(node_name) FROM parsed WHERE {_IS_FLOW}"
    ).fetchall()[0]
    files = held.overlapping(low, high, first, last) if flows else []
    known = _held_keys(files) if files else "SELECT NULL AS cluster, NULL AS event_key WHERE false"
    contract = TABLES[FLOW]
    target = batch.scratch(landed, FLOW)
    kept = con.execute(
        f"""COPY (
            WITH twice AS (
                SELECT event_key, min(line_number) AS first_line FROM parsed WHERE {_IS_FLOW} GROUP BY 1 HAVING count(*) > 1
            ), flows AS (
                SELECT p.* EXCLUDE (source_cluster_name, destination_cluster_name), c.cluster,
                    $object_id AS object_id, {_foreign_cluster("source")}, {_foreign_cluster("destination")}
                FROM parsed p JOIN clusters c ON c.node_prefix IS NOT DISTINCT FROM p.node_prefix WHERE {_IS_FLOW}
            ), known AS ({known})
            SELECT {contract.cast_list()} FROM flows
            WHERE NOT EXISTS (SELECT 1 FROM twice t WHERE t.event_key = flows.event_key AND t.first_line < flows.line_number)
              AND NOT EXISTS (SELECT 1 FROM known k WHERE k.event_key = flows.event_key AND k.cluster = flows.cluster)
        ) TO {_literal(target)} (FORMAT parquet, COMPRESSION zstd)""",
        {"object_id": landed.object_id},
    ).fetchall()[0][0]
    counts.kept += kept
    counts.duplicate = flows - kept
    if not kept:
        batch.discard(landed, FLOW)


_IS_FLOW = "reason IS NULL AND control_kind IS NULL"


def _foreign_cluster(side: str) -> str:
    """Cluster name of an endpoint where it differs from that of the observing node (a cluster mesh)."""
    own = "coalesce(p.node_prefix, CASE WHEN p.source_local THEN p.source_cluster_name WHEN p.destination_local THEN p.destination_cluster_name END)"
    return f"CASE WHEN p.{side}_cluster_name <> {own} THEN p.{side}_cluster_name END AS {side}_cluster"


def _held_keys(files: list[str]) -> str:
    listed = ", ".join(_literal(path) for path in files)
    return f"SELECT cluster, event_key FROM read_parquet([{listed}]) WHERE time_ns BETWEEN (SELECT min(time_ns) FROM parsed) AND (SELECT max(time_ns) FROM parsed)"


def _keep_control(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch, held: _Held) -> None:
    frame = con.sql(
        f"""SELECT '{landed.object_id}' AS object_id, c.cluster, p.node_name, p.time_ns, p.control_kind,
            CASE WHEN control_kind = 'lost_events' THEN coalesce(p.events_lost, 0) END AS events_lost, p.first_ns, p.last_ns,
            nullif(CASE WHEN control_kind IN ('agent_event', 'debug_event') THEN coalesce(p.event_name, '')
                        ELSE p.control_detail END, '') AS detail
        FROM parsed p JOIN clusters c ON c.node_prefix IS NOT DISTINCT FROM p.node_prefix
        WHERE reason IS NULL AND control_kind IS NOT NULL ORDER BY p.line_number"""
    ).pl()
    if not frame.height:
        return
    counts = batch.count(landed, CONTROL)
    counts.read = frame.height
    # a record without a time can't be told from another one like it: both count
    timed, untimed = frame.filter(pl.col("time_ns").is_not_null()), frame.filter(pl.col("time_ns").is_null())
    key = ["cluster", "node_name", "time_ns", "control_kind", "events_lost", "detail"]
    timed = timed.unique(key, keep="first", maintain_order=True)
    if timed.height:
        low, high = timed["time_ns"].min(), timed["time_ns"].max()
        for path in held.overlapping(low, high, None, None):
            timed = timed.join(pl.read_parquet(path, columns=key), on=key, how="anti", nulls_equal=True)
    kept = pl.concat([timed, untimed])
    counts.duplicate = frame.height - kept.height
    batch.write(landed, CONTROL, kept)


def _literal(path: object) -> str:
    return "'" + str(path).replace("'", "''") + "'"

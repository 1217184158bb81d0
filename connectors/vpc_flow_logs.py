"""AWS VPC flow logs: text with or without a header (versions 2 to 5 and custom orders), gzip, parquet, to staging rows.

Fields are found by name: the header line, else the configured `format`, else the order of the version 2 default. A
record without data (NODATA, SKIPDATA) is a gap, never a row of zeros; a line that can't be read is kept with its number.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb

from connectors.errors import FormatUnknown
from connectors.lines import LineFile, canonical_address
from connectors.objects import LandedObject, Source, list_objects, open_bytes, report_progress
from connectors.sink import Batch, Lake
from models.contracts import TABLES

FLOW, GAP = "staging.vpc_flow", "staging.vpc_gap"
MEMORY_LIMIT = "2GB"
DEFAULT_FORMAT = [
    "version",
    "account-id",
    "interface-id",
    "srcaddr",
    "dstaddr",
    "srcport",
    "dstport",
    "protocol",
    "packets",
    "bytes",
    "start",
    "end",
    "action",
    "log-status",
]
# the fields that staging rows are made of
USED = (
    "account-id", "interface-id", "srcaddr", "dstaddr", "srcport", "dstport", "protocol", "packets", "bytes", "start", "end",
    "action", "log-status", "instance-id", "type", "pkt-srcaddr", "pkt-dstaddr", "region", "az-id", "flow-direction",
    "traffic-path",
)  # fmt: skip
_FIELD = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")


def parse_format(text: str) -> list[str]:
    """Field names of a format as AWS writes it (`${version} ${account-id} ...`) or as a header line.

    >>> parse_format("${az-id} ${bytes}")
    ['az-id', 'bytes']
    """
    return [re.sub(r"^\$\{(.*)\}$", r"\1", part).replace("_", "-").lower() for part in text.split()]


def header_fields(line: str) -> list[str] | None:
    """The fields when the line is a header (every word a field name, an address field among them), else None."""
    fields = parse_format(line.lstrip("\ufeff"))
    words = all(_FIELD.fullmatch(word) for word in fields)
    return fields if words and {"srcaddr", "dstaddr", "pkt-srcaddr", "pkt-dstaddr"} & set(fields) else None


# --- SQL -------------------------------------------------------------------------------------------------------------
_MACROS = (
    "CREATE OR REPLACE MACRO address(t) AS CASE WHEN contains(t, ':') THEN canonical_address(t)"
    r" WHEN regexp_full_match(t, '((25[0-5]|2[0-4]\d|1?\d?\d)(\.|$)){4}') THEN t END",
    # Unix seconds; some pipelines write milliseconds (13 digits) or microseconds (16)
    """CREATE OR REPLACE MACRO unix_ns(t) AS TRY(CAST(t AS BIGINT) * CASE WHEN length(t) >= 19 THEN 1 WHEN length(t) >= 16
        THEN 1000 WHEN length(t) >= 13 THEN 1000000 ELSE 1000000000 END)""",
)


def _text_relation(fields: Sequence[str]) -> str:
    """`records` from numbered lines: one column a used field, null for `-`; a wrong number of values is a reason."""
    columns = ", ".join(
        f"nullif(parts[{fields.index(name) + 1}], '-') AS \"{name}\""
        if name in fields
        else f'NULL::VARCHAR AS "{name}"'
        for name in USED
    )
    count = len(fields)
    return f"""
        WITH words AS (
            SELECT line_number, problem, coalesce(raw, line) AS raw,
                list_filter(string_split(translate(line, E'\\t\\r\\n', '   '), ' '), lambda w: w <> '') AS all_parts
            FROM line_batches WHERE problem IS NOT NULL OR trim(line, E' \\t\\r\\n') <> ''
        ), cut AS (
            SELECT *, CASE WHEN starts_with(all_parts[{count + 1}], '#') THEN list_slice(all_parts, 1, {count}) ELSE all_parts END
                AS parts FROM words
        )
        SELECT line_number, raw, {columns}, CASE
            WHEN problem IS NOT NULL THEN problem
            WHEN len(parts) <> {count} THEN 'bad_columns: ' || len(parts) || ' values where the format has {count}' END AS reason
        FROM cut"""


def _parquet_relation(path: Path, present: Sequence[str]) -> str:
    columns = ", ".join(
        f'nullif(CAST("{name.replace("-", "_")}" AS VARCHAR), \'-\') AS "{name}"'
        if name.replace("-", "_") in present
        else f'NULL::VARCHAR AS "{name}"'
        for name in USED
    )
    raw = "CAST(COLUMNS(*) AS VARCHAR)"
    return f"""SELECT file_row_number + 1 AS line_number, concat_ws(' ', {raw}) AS raw, {columns}, NULL::VARCHAR AS reason
        FROM read_parquet({_literal(path)}, file_row_number => true)"""


_TYPED = """
    CREATE OR REPLACE TEMP TABLE parsed AS
    WITH records AS ({records}), typed AS (
        SELECT line_number, raw, reason,
            "account-id" AS account_id, "interface-id" AS interface_id, "instance-id" AS instance_id, region,
            "az-id" AS az_id, lower("flow-direction") AS flow_direction,
            coalesce("pkt-srcaddr", srcaddr) AS source_text, coalesce("pkt-dstaddr", dstaddr) AS destination_text,
            address(coalesce("pkt-srcaddr", srcaddr)) AS source_ip, address(coalesce("pkt-dstaddr", dstaddr)) AS destination_ip,
            address(srcaddr) AS outer_source_ip, address(dstaddr) AS outer_destination_ip,
            TRY_CAST(srcport AS BIGINT) AS source_port, TRY_CAST(dstport AS BIGINT) AS destination_port,
            TRY_CAST(protocol AS BIGINT) AS protocol, TRY_CAST(packets AS BIGINT) AS packets, TRY_CAST(bytes AS BIGINT) AS bytes,
            bytes AS bytes_text, packets AS packets_text, srcport AS source_port_text, dstport AS destination_port_text,
            protocol AS protocol_text,
            unix_ns(coalesce("start", "end")) AS start_ns, unix_ns(coalesce("end", "start")) AS end_ns,
            upper(action) AS action, TRY_CAST("traffic-path" AS BIGINT) AS traffic_path, "type" AS record_type,
            upper("log-status") AS log_status
        FROM records
    ), classified AS (
        SELECT *, reason IS NULL AND (coalesce(log_status IN ('NODATA', 'SKIPDATA'), false)
            OR (log_status IS NULL AND source_text IS NULL AND destination_text IS NULL AND bytes_text IS NULL)) AS is_gap
        FROM typed
    )
    SELECT * EXCLUDE (reason), CASE
        WHEN reason IS NOT NULL THEN reason
        WHEN is_gap AND coalesce(start_ns, 0) BETWEEN 0 AND 4102444800000000000
            AND coalesce(end_ns, 0) BETWEEN 0 AND 4102444800000000000 THEN NULL
        WHEN start_ns IS NULL OR end_ns IS NULL THEN 'bad_value: start and end are missing or no numbers'
        WHEN end_ns < start_ns THEN 'bad_value: end is before start'
        -- flow logs aggregate over ten minutes at most; 2100 is no date of theirs
        WHEN end_ns - start_ns > 86400000000000 THEN 'bad_value: the record spans more than a day'
        WHEN start_ns < 0 OR end_ns > 4102444800000000000 THEN 'bad_value: the time is out of range'
        WHEN source_ip IS NULL OR destination_ip IS NULL THEN 'bad_value: an address is missing or is none'
        WHEN (bytes IS NULL AND bytes_text IS NOT NULL) OR bytes NOT BETWEEN 0 AND 1000000000000000 THEN 'bad_value: bytes is no count'
        WHEN (packets IS NULL AND packets_text IS NOT NULL) OR packets NOT BETWEEN 0 AND 1000000000000000 THEN 'bad_value: packets is no count'
        WHEN (source_port IS NULL AND source_port_text IS NOT NULL) OR source_port NOT BETWEEN 0 AND 65535
          OR (destination_port IS NULL AND destination_port_text IS NOT NULL) OR destination_port NOT BETWEEN 0 AND 65535
            THEN 'bad_value: a port is no port'
        WHEN protocol IS NULL AND protocol_text IS NOT NULL THEN 'bad_value: protocol is no IANA number'
        WHEN action IS NOT NULL AND action NOT IN ('ACCEPT', 'REJECT') THEN 'bad_value: action is neither ACCEPT nor REJECT'
        WHEN flow_direction IS NOT NULL AND flow_direction NOT IN ('ingress', 'egress')
            THEN 'bad_value: flow-direction is neither ingress nor egress'
        END AS reason
    FROM classified
"""


# --- staging ---------------------------------------------------------------------------------------------------------
def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new object of a VPC flow log source. The same bytes at a second place are duplicates, as a whole."""
    loads = lake.loads()
    done, digests = set(loads["object_id"]), set(loads.filter(loads["source"] == source.name)["digest"])
    fresh = [landed for landed in list_objects(source) if landed.object_id not in done]
    if not fresh:
        return
    configured = source.options.get("format")
    fields = parse_format(configured) if isinstance(configured, str) else None
    lake.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".vpc-", dir=lake.root) as folder:
        con = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(Path(folder) / "spill")})
        con.create_function("canonical_address", canonical_address, ["VARCHAR"], "VARCHAR", null_handling="special")  # type: ignore[call-overload]
        for macro in _MACROS:
            con.execute(macro)
        try:
            for number, landed in enumerate(fresh, start=1):
                report_progress(progress, source, number, len(fresh))
                _stage_object(con, landed, lake, fields, duplicate=landed.digest in digests)
                digests.add(landed.digest)
        finally:
            con.close()


def _stage_object(
    con: duckdb.DuckDBPyConnection, landed: LandedObject, lake: Lake, fields: list[str] | None, *, duplicate: bool
) -> None:
    batch = lake.batch(landed)
    counts = batch.count(landed, FLOW)
    try:
        headers = _parse(con, landed, batch, fields)
    except FormatUnknown as error:
        counts.read = 1
        batch.reject(landed, FLOW, 1, f"format: {error.what}; {error.fix}", error.where)
        batch.warn(landed, error.what)
        batch.commit()
        return
    records, gaps = con.sql(
        "SELECT count(*), count(*) FILTER (WHERE is_gap AND reason IS NULL) FROM parsed"
    ).fetchall()[0]
    counts.read = records + headers
    if duplicate:
        counts.duplicate, counts.control = records, headers
        batch.warn(landed, "the same bytes were already staged from another place")
        batch.commit()
        return
    counts.control = gaps + headers
    kept = _copy(con, batch, landed, FLOW, "reason IS NULL AND NOT is_gap")
    counts.kept += kept
    if gaps:
        gap_counts = batch.count(landed, GAP)
        gap_counts.read = gaps
        gap_counts.kept += _copy(con, batch, landed, GAP, "reason IS NULL AND is_gap")
    rejected = con.sql(
        "SELECT line_number, reason, left(raw, 2000) AS raw FROM parsed WHERE reason IS NOT NULL ORDER BY 1"
    ).pl()
    if rejected.height:
        batch.reject_frame(landed, FLOW, rejected)
    batch.commit()


def _copy(con: duckdb.DuckDBPyConnection, batch: Batch, landed: LandedObject, table: str, where: str) -> int:
    target = batch.scratch(landed, table)
    # without a status nothing says that an empty record lost no data, so it counts as lost
    written = con.execute(
        f"""COPY (SELECT {TABLES[table].cast_list()} FROM (
                SELECT * REPLACE (coalesce(log_status, 'SKIPDATA') AS log_status), $object_id AS object_id, $cluster AS cluster
                FROM parsed WHERE {where}))
            TO {_literal(target)} (FORMAT parquet, COMPRESSION zstd)""",
        {"object_id": landed.object_id, "cluster": landed.source.cluster or "default"},
    ).fetchall()[0][0]
    if not written:
        batch.discard(landed, table)
    return int(written)


def _parse(con: duckdb.DuckDBPyConnection, landed: LandedObject, batch: Batch, configured: list[str] | None) -> int:
    """Fill `parsed`; returns the number of header lines (records that are no data)."""
    with landed.path.open("rb") as handle:
        magic = handle.read(4)
    if magic == b"PAR1":
        try:
            present = [
                name for name, *_ in con.sql(f"DESCRIBE SELECT * FROM read_parquet({_literal(landed.path)})").fetchall()
            ]
            _warn_missing(landed, batch, [name.replace("_", "-") for name in present])
            con.execute(_TYPED.format(records=_parquet_relation(landed.path, present)))
        except duckdb.Error as error:
            raise FormatUnknown(
                "the parquet file can't be read", where=str(error)[:500], fix="fetch it again"
            ) from error
        return 0
    first_line, first = _first_line(landed)
    header = header_fields(first)
    fields = header or configured or DEFAULT_FORMAT
    _warn_missing(landed, batch, fields)
    lines = LineFile(landed.path)
    reader = lines.reader()
    con.register("line_batches", reader)
    try:
        relation = _text_relation(fields)
        if header:
            relation += f" WHERE line_number > {first_line}"
        con.execute(_TYPED.format(records=relation))
    except (duckdb.DataError, duckdb.InvalidInputException) as error:
        raise FormatUnknown("the file can't be parsed", where=str(error)[:500], fix="report this file") from error
    finally:
        con.unregister("line_batches")
    if lines.broken:
        batch.warn(landed, f"the file ends early, what could be read was kept ({lines.broken})")
    return 1 if header else 0


def _first_line(landed: LandedObject) -> tuple[int, str]:
    """The first line that is not blank, with its number."""
    try:
        with open_bytes(landed.path) as handle:
            for number, line in enumerate(handle, start=1):
                if line.strip():
                    return number, line[:10000].decode(errors="replace")
    except (OSError, EOFError) as error:
        raise FormatUnknown("the file can't be read", where=str(error), fix="fetch it again") from error
    return 0, ""


def _warn_missing(landed: LandedObject, batch: Batch, fields: Sequence[str]) -> None:
    present = set(fields)
    if not {"start", "end"} & present:
        batch.warn(landed, "the format has neither start nor end: no record can be placed in time")
    elif not {"start", "end"} <= present:
        batch.warn(landed, "the format has no start or no end: a record counts in the hour of the one it has")
    if "bytes" not in present:
        batch.warn(landed, "the format has no bytes")


def _literal(path: object) -> str:
    return "'" + str(path).replace("'", "''") + "'"

"""Benchmark sizes: millions of Hubble records as exporter files, and connections as parquet, in bounded memory.

One file a node and chunk; nothing is held but one batch. Records are those of the exporter (about 2 KB a line) with the
addresses, ports and times of a cluster of the given size; the same seed writes the same bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000_000
BATCH_ROWS = 1_000_000
RECORDS_A_FILE = 100_000  # about 200 MB a file
CONNECTION_SCHEMA = pa.schema(
    [
        pa.field("connection_id", pa.int64()),
        pa.field("hour_utc", pa.timestamp("us")),
        pa.field("client_ip", pa.uint32()),
        pa.field("client_port", pa.int32()),
        pa.field("server_ip", pa.uint32()),
        pa.field("server_port", pa.int32()),
        pa.field("first_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("sent_bytes", pa.int64()),
        pa.field("received_bytes", pa.int64()),
    ]
)
_LABELS = ",".join(
    f'"k8s:{key}={value}"'
    for key, value in {
        "app.kubernetes.io/managed-by": "training-operator", "app.kubernetes.io/part-of": "kubeflow-training-platform",
        "training.kubeflow.org/operator-name": "pytorchjob-controller", "training.kubeflow.org/replica-type": "worker",
        "io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "team-research-large-language-models",
        "io.cilium.k8s.policy.cluster": "train-1", "io.cilium.k8s.policy.serviceaccount": "default",
        "io.kubernetes.pod.namespace": "team-research",
    }.items()
)  # fmt: skip
_RECORD = (
    '{{"flow":{{"time":"{time}","uuid":"{uuid}","emitter":{{"name":"Hubble","version":"1.19.2"}},"verdict":"FORWARDED",'
    '"ethernet":{{"source":"0a:58:0a:00:00:01","destination":"0a:58:0a:00:00:02"}},'
    '"IP":{{"source":"{source}","destination":"{destination}","ipVersion":"IPv4"}},'
    '"l4":{{"TCP":{{"source_port":{source_port},"destination_port":{destination_port},"flags":{{"PSH":true,"ACK":true}}}}}},'
    '"source":{{"identity":{identity},"cluster_name":"train-1","namespace":"team-research","labels":[' + _LABELS + "],"
    '"pod_name":"job-{job}-worker-{index}"}},'
    '"destination":{{"ID":{endpoint},"identity":{peer},"cluster_name":"train-1","namespace":"team-research","labels":['
    + _LABELS
    + "],"
    '"pod_name":"job-{job}-worker-{next_index}","workloads":[{{"name":"job-{job}","kind":"PyTorchJob"}}]}},'
    '"Type":"L3_L4","node_name":"train-1/{node}","node_labels":["kubernetes.io/hostname={node}","topology.kubernetes.io/zone=us-east-1{zone}"],'
    '"event_type":{{"type":4}},"traffic_direction":"INGRESS","trace_observation_point":"TO_ENDPOINT","trace_reason":"ESTABLISHED",'
    '"is_reply":false,"Summary":"TCP Flags: ACK, PSH"}},"node_name":"train-1/{node}","time":"{time}"}}\n'
)


def write_flow_records(
    folder: Path, records: int, *, nodes: int, seed: int, start_ns: int, compress: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> int:  # fmt: skip
    """Write `records` exporter lines over `nodes` nodes, file by file; returns the bytes written before compression."""
    folder.mkdir(parents=True, exist_ok=True)
    written = bytes_written = number = 0
    while written < records:
        count = min(RECORDS_A_FILE, records - written)
        node = f"node-{number % nodes}"
        (folder / node).mkdir(exist_ok=True)
        rng = np.random.default_rng([seed, number])
        path = folder / node / f"events-{number:05d}.log{'.gz' if compress else ''}"
        with _opened(path, compress) as handle:
            bytes_written += _write_file(handle, count, node, "abc"[number % 3], rng, start_ns, number)
        written, number = written + count, number + 1
        say(f"{written:,} of {records:,} flow records")
    return bytes_written


def _opened(path: Path, compress: bool) -> IO[bytes]:
    return gzip.GzipFile(path, "wb", compresslevel=3, mtime=0) if compress else path.open("wb")  # type: ignore[return-value]


def _write_file(
    handle: IO[bytes], count: int, node: str, zone: str, rng: np.random.Generator, start_ns: int, number: int
) -> int:
    offsets = np.sort(rng.integers(0, 86_400 * SECOND, count))
    hosts = rng.integers(0, 1 << 16, (count, 2))
    ports = rng.integers(32768, 61000, (count, 2))
    identities = rng.integers(10_000, 60_000, (count, 3))
    size = 0
    for row in range(count):
        at = start_ns + int(offsets[row])
        a, b = int(hosts[row, 0]), int(hosts[row, 1])
        line = _RECORD.format(
            time=f"{datetime.fromtimestamp(at // SECOND, UTC):%Y-%m-%dT%H:%M:%S}.{at % SECOND:09d}Z",
            uuid=f"{number:08x}-{row & 0xFFFF:04x}-4000-8000-{row:012x}",
            source=f"10.{1 + (a >> 14)}.{a >> 8 & 63}.{a & 255}", destination=f"10.{1 + (b >> 14)}.{b >> 8 & 63}.{b & 255}",
            source_port=ports[row, 0], destination_port=ports[row, 1], identity=identities[row, 0], peer=identities[row, 1],
            endpoint=identities[row, 2], job=a % 977, index=a & 7, next_index=b & 7, node=node, zone=zone,
        ).encode()  # fmt: skip
        handle.write(line)
        size += len(line)
    return size


def write_connections(
    path: Path, rows: int, *, pods: int, seed: int, start_ns: int, say: Callable[[str], None] = lambda text: None
) -> None:
    """Write `rows` connections as one parquet file, a million a row group; bytes are log-uniform over five decades."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, CONNECTION_SCHEMA, compression="zstd") as writer:
        for batch, first in enumerate(range(0, rows, BATCH_ROWS)):
            count = min(BATCH_ROWS, rows - first)
            rng = np.random.default_rng([seed, batch])
            opened = start_ns + rng.integers(0, 86_400 * SECOND, count)
            life = (10 ** rng.uniform(0, 3.5, count) * SECOND).astype(np.int64)
            ends = rng.integers(0, pods, (count, 2)).astype(np.uint32) + np.uint32(0x0A000000)
            sizes = (10 ** rng.uniform(3, 8, (count, 2))).astype(np.int64)
            hour = (opened // (3600 * SECOND)) * 3_600_000_000
            columns = [
                np.arange(first, first + count), hour.astype("datetime64[us]"), ends[:, 0], rng.integers(32768, 61000, count, dtype=np.int32),
                ends[:, 1], rng.integers(1024, 32768, count, dtype=np.int32), opened, opened + life, sizes[:, 0], sizes[:, 1],
            ]  # fmt: skip
            writer.write_table(pa.table([pa.array(column) for column in columns], schema=CONNECTION_SCHEMA))
            say(f"{first + count:,} of {rows:,} connections")

"""Shared object access: list a source's location, digest, open (plain, gzip, zstandard). No format is known here."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import zstandard

from connectors.errors import SourceMissing, UnsafePath

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """One configured source: `kind` picks the connector, `location` is a local folder or file."""

    name: str
    kind: str
    location: Path
    cluster: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class LandedObject:
    """One object as received. `object_id` is the same whenever the same bytes lie at the same place."""

    object_id: str
    source: Source
    location: str  # relative to the source's location, with forward slashes
    path: Path
    digest: str  # sha256 of the bytes
    size_bytes: int
    modified_ns: int


def list_objects(source: Source) -> list[LandedObject]:
    """Every regular file below the source's location, in order of name. Links that lead out of it are refused."""
    root = source.location
    if not root.exists():
        raise SourceMissing(
            f"source {source.name!r} ({source.kind}) has no such location",
            where=str(root),
            fix="correct `location` in zoneledger.toml, or put the files there",
        )
    candidates = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    landed = []
    for path in candidates:
        name = path.relative_to(root if root.is_dir() else root.parent).as_posix()
        if name.rsplit("/", 1)[-1].startswith("."):
            continue
        landed.append(land(source, path, name))
    return landed


def land(source: Source, path: Path, name: str) -> LandedObject:
    """Describe one file as a landed object (reads it once for its digest)."""
    base = (source.location if source.location.is_dir() else source.location.parent).resolve()
    if not path.resolve().is_relative_to(base):
        raise UnsafePath(
            "a file lies outside its source's folder",
            where=f"{source.name}: {name}",
            fix="replace the link by the file",
        )
    digest = file_digest(path)
    status = path.stat()
    identity = "\x1f".join((source.name, name, digest))
    return LandedObject(
        object_id=hashlib.sha256(identity.encode()).hexdigest()[:32],
        source=source,
        location=name,
        path=path,
        digest=digest,
        size_bytes=status.st_size,
        modified_ns=status.st_mtime_ns,
    )


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, in bounded memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def open_bytes(path: Path) -> IO[bytes]:
    """Open for reading, decompressed by content (gzip and zstandard magic bytes), whatever the name says."""
    handle = path.open("rb")
    magic = handle.read(4)
    handle.seek(0)
    if magic[:2] == b"\x1f\x8b":
        handle.close()
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if magic == b"\x28\xb5\x2f\xfd":
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(handle, read_across_frames=True), _CHUNK)
    return handle


def compression_of(path: Path) -> str:
    """`gzip`, `zstd` or `none`, by content, whatever the name says (DuckDB's names)."""
    with path.open("rb") as handle:
        magic = handle.read(4)
    return "gzip" if magic[:2] == b"\x1f\x8b" else "zstd" if magic == b"\x28\xb5\x2f\xfd" else "none"


def csv_header(path: Path) -> list[str]:
    """The first row of a CSV file, without a byte order mark; empty when the file is."""
    with open_bytes(path) as handle, io.TextIOWrapper(handle, encoding="utf-8-sig", newline="") as text:
        return next(csv.reader(text), [])


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line without its end) of a possibly compressed file."""
    with open_bytes(path) as handle:
        for number, line in enumerate(handle, start=1):
            yield number, line.rstrip(b"\r\n")


def report_progress(progress: Callable[[str], None], source: Source, number: int, of: int, *, every: int = 25) -> None:
    """One line for the first, each `every`th and the last object: enough to see that work goes on."""
    if number in (1, of) or number % every == 0:
        progress(f"{source.name}: {number} of {of} new files")

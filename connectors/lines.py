"""Line files as Arrow batches: numbered lines of plain, gzip or zstandard files in bounded memory, bad bytes kept aside.

What a line means is not known here. Also the canonical text of an address, which every network source needs.
"""

from __future__ import annotations

import gzip
import ipaddress
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import zstandard

from connectors.objects import open_bytes

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 20
LINE_SCHEMA = pa.schema(
    [("line_number", pa.int64()), ("line", pa.large_string()), ("problem", pa.string()), ("raw", pa.string())]
)
_READ_ERRORS = (EOFError, OSError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
# a container runtime's prefix: time, stream, F(ull) or P(artial)
_CRI = re.compile(rb"^\S+ (?:stdout|stderr) ([FP]) ")
_RAW_BYTES = 2000


@dataclass
class LineFile:
    """One file's lines. After iteration `broken` says why reading ended early (null: it did not)."""

    path: Path
    block_bytes: int = BLOCK_BYTES
    max_line_bytes: int = MAX_LINE_BYTES
    broken: str | None = None
    _partial: list[bytes] = field(default_factory=list)
    _partial_line: int = 0

    def reader(self) -> pa.RecordBatchReader:
        """A stream of `LINE_SCHEMA`: `line` is null where `problem` says why the line can't be read."""
        return pa.RecordBatchReader.from_batches(LINE_SCHEMA, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        number = 1
        for block, too_long in self._blocks():
            if too_long:
                yield _problem_batch(number, "line_too_long", block)
                number += 1
                continue
            ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == 10).astype(np.int64) + 1
            if len(ends) == 0 or ends[-1] != len(block):
                ends = np.append(ends, len(block))
            if self._partial or _CRI.match(block):
                yield self._unwrap(block, number)
            else:
                yield _batch(block, ends, number)
            number += len(ends)
        if self._partial:
            yield _problem_batch(
                self._partial_line, "partial_line: the runtime's last part never came", b"".join(self._partial)
            )
            self._partial = []

    def _blocks(self) -> Iterator[tuple[bytes, bool]]:
        """Whole lines, many at a time; a line over the limit comes alone, cut, with True."""
        kept = b""
        skipping = False
        try:
            with open_bytes(self.path) as handle:
                while chunk := _read_some(handle, self.block_bytes):
                    if skipping:
                        cut = chunk.find(b"\n")
                        if cut < 0:
                            continue
                        chunk, skipping = chunk[cut + 1 :], False
                    kept += chunk
                    end = kept.rfind(b"\n") + 1
                    if end:
                        yield kept[:end], False
                        kept = kept[end:]
                    if len(kept) > self.max_line_bytes:
                        yield kept[:_RAW_BYTES], True
                        kept, skipping = b"", True
        except _READ_ERRORS as error:
            self.broken = f"{type(error).__name__}: {error}"
        if kept:
            yield kept, False

    def _unwrap(self, block: bytes, number: int) -> pa.RecordBatch:
        """Take off the container runtime's prefix and join partial lines; a joined line has its first part's number."""
        rows: list[tuple[int, str | None, str | None, str | None]] = []
        for offset, line in enumerate(block.splitlines()):
            match = _CRI.match(line)
            if match is None:
                rows.append(_decoded(number + offset, line))
                continue
            if not self._partial:
                self._partial_line = number + offset
            self._partial.append(line[match.end() :])
            if match[1] == b"F" or sum(map(len, self._partial)) > self.max_line_bytes:
                rows.append(_decoded(self._partial_line, b"".join(self._partial)))
                self._partial = []
        return _rows_batch(rows)


def _read_some(handle: IO[bytes], size: int) -> bytes:
    # read1 hands over what it has before a truncated stream raises; read would lose it
    read1 = getattr(handle, "read1", None)
    if read1 is None:
        return handle.read(size)
    parts: list[bytes] = []
    total = 0
    while total < size:
        try:
            part = read1(size - total)
        except _READ_ERRORS:
            if parts:
                break  # the next call raises again
            raise
        if not part:
            break
        parts.append(part)
        total += len(part)
    return b"".join(parts)


def _batch(block: bytes, ends: np.ndarray, number: int) -> pa.RecordBatch:
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), ends])
    count = len(ends)
    lines = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(block))
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid:
        return _rows_batch(
            [_decoded(number + n, line.rstrip(b"\r\n")) for n, line in enumerate(block.split(b"\n")[:count])]
        )
    numbers = pa.array(np.arange(number, number + count, dtype=np.int64))
    nulls = pa.nulls(count, pa.string())
    return pa.record_batch([numbers, lines, nulls, nulls], schema=LINE_SCHEMA)


def _decoded(number: int, line: bytes) -> tuple[int, str | None, str | None, str | None]:
    try:
        return number, line.decode(), None, None
    except UnicodeDecodeError:
        return number, None, "bad_encoding: not UTF-8", line[:_RAW_BYTES].decode(errors="replace")


def _problem_batch(number: int, problem: str, raw: bytes) -> pa.RecordBatch:
    return _rows_batch([(number, None, problem, raw[:_RAW_BYTES].decode(errors="replace"))])


def _rows_batch(rows: list[tuple[int, str | None, str | None, str | None]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return pa.record_batch(
        [pa.array(list(c), type=f.type) for c, f in zip(columns, LINE_SCHEMA, strict=True)], schema=LINE_SCHEMA
    )


@lru_cache(maxsize=1 << 16)
def canonical_address(text: str | None) -> str | None:
    """RFC 5952 text of an address, IPv4-mapped IPv6 as IPv4; None when it is no address."""
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text.strip().split("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)

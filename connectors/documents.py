"""Documents of a file: JSON (one, one a line, concatenated, pretty) or YAML, plain or compressed, each with its line.

What a document means is not known here. Everything read is hostile: sizes are bounded, YAML is loaded safely and without
aliases, and one bad document does not hide the others. Also the time that a file's name states.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import orjson
import yaml
import zstandard

from connectors.objects import LandedObject, open_bytes

MAX_DOCUMENT_BYTES = 1 << 30
MAX_YAML_BYTES = 64 << 20
MAX_TIME_NS = 7_258_118_400_000_000_000  # 2200: no event of a cluster lies behind it
READ_ERRORS = (EOFError, OSError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError)
_FILE_TIME = re.compile(r"(\d{4}-\d{2}-\d{2})T(\d{2})[-:]?(\d{2})[-:]?(\d{2})Z")
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BOM = b"\xef\xbb\xbf"
# (line, document, problem): a document that can't be read has a problem, and its text in the document's place
Document = tuple[int | None, Any, str | None]


def read_documents(path: Path) -> Iterator[Document]:
    """Every document of a file, in order. A stream that ends early gives what it held and then a problem."""
    with open_bytes(path) as handle:
        try:
            yield from _documents(handle)
        except READ_ERRORS as error:
            yield None, "", f"unreadable: {type(error).__name__}: {error}"


def _documents(handle: IO[bytes]) -> Iterator[Document]:
    number, line = 0, b""
    for number, line in _lines(handle):
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            break
    else:
        return
    if line.lstrip()[:1] not in (b"{", b"["):
        yield from _yaml_documents(line + handle.read(MAX_YAML_BYTES + 1), number)
        return
    try:
        yield number, orjson.loads(line), None
    except orjson.JSONDecodeError:
        yield from _json_text(line + handle.read(MAX_DOCUMENT_BYTES), number)
        return
    for further, text in _lines(handle, number):
        yield from _json_line(text, further)


def _lines(handle: IO[bytes], after: int = 0) -> Iterator[tuple[int, bytes]]:
    """(number, line) of the rest of a file; a line over the limit comes in parts, which will not parse."""
    number = after
    while line := handle.readline(MAX_DOCUMENT_BYTES):
        number += 1
        yield number, line


def _json_line(line: bytes, number: int) -> Iterator[Document]:
    if line.strip():
        try:
            yield number, orjson.loads(line), None
        except orjson.JSONDecodeError as error:
            yield number, line[:2000].decode("utf-8", "replace"), f"bad_json: {error}"


def _json_text(data: bytes, first: int) -> Iterator[Document]:
    """A text whose first line is no document: one document over many lines, several, or lines of which the first is bad."""
    if len(data) >= MAX_DOCUMENT_BYTES:
        yield first, "", f"too_large: one document over {MAX_DOCUMENT_BYTES >> 20} MiB; record one list a line"
        return
    try:
        yield first, orjson.loads(data), None
        return
    except orjson.JSONDecodeError:
        pass
    lines = data.splitlines()
    if any(_is_document(line) for line in lines[1:3]):
        for number, line in enumerate(lines, first):
            yield from _json_line(line, number)
        return
    yield from _concatenated(data, first)


def _is_document(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _concatenated(data: bytes, first: int) -> Iterator[Document]:
    text, decoder, position, line = data.decode("utf-8", "replace"), json.JSONDecoder(), 0, first
    while True:
        start = position
        while position < len(text) and text[position].isspace():
            position += 1
        line += text.count("\n", start, position)
        if position == len(text):
            return
        try:
            _, end = decoder.raw_decode(text, position)
            document = orjson.loads(text[position:end])
        except (ValueError, RecursionError) as error:
            yield line, text[position : position + 2000], f"bad_json: {error}"
            end = text.find("\n{", position)  # the next document starts a line
            if end < 0:
                return
        else:
            yield line, document, None
        line += text.count("\n", position, end)
        position = end


def _yaml_documents(data: bytes, first: int) -> Iterator[Document]:
    if len(data) > MAX_YAML_BYTES:
        yield first, "", f"too_large: YAML over {MAX_YAML_BYTES >> 20} MiB; record JSON"
        return
    text = data.decode("utf-8", "replace")
    for line, chunk in _yaml_chunks(text, first):
        try:
            for document in _load_yaml(chunk):
                if document is not None:
                    yield line, document, None
        except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
            kind = "template: markers are not rendered" if "{{" in chunk else "bad_yaml"
            yield line, chunk[:2000], f"{kind}: {' '.join(str(error).split())[:300]}"


def _yaml_chunks(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Documents apart: a line that starts with `---` always ends one, so that a bad one hurts no other."""
    start = first
    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), first):
        if line.startswith("---") and not line[3:4].strip():
            yield start, "\n".join(lines)
            start, lines = number, [line[3:]]
        elif not line.startswith("%"):
            lines.append(line)
    yield start, "\n".join(lines)


def _load_yaml(chunk: str) -> list[Any]:
    # Kubernetes never writes an alias; a bomb is made of them
    if "*" in chunk and any(isinstance(e, yaml.events.AliasEvent) for e in yaml.parse(chunk, Loader=_YAML_LOADER)):
        raise yaml.YAMLError("aliases are not read")
    return list(yaml.load_all(chunk, Loader=_YAML_LOADER))


# --- times ---------------------------------------------------------------------------------------------------------
def time_ns(value: object) -> int | None:
    """RFC 3339 (or a datetime of YAML) as nanoseconds since 1970 UTC; None when absent or Go's zero time.

    Raises ValueError when it is no time, or lies after 2200.
    """
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        return _bounded(value.replace(microsecond=0), value.microsecond * 1000)
    return _text_ns(str(value))


@lru_cache(maxsize=1 << 16)  # an object's stamps come again in every list
def _text_ns(text: str) -> int | None:
    stem, zone = (text[:-1], "+00:00") if text[-1] in "Zz" else (text, "")
    whole, dot, fraction = stem.partition(".")
    if dot and not zone:
        digits = len(fraction) - len(fraction.lstrip("0123456789"))
        fraction, zone = fraction[:digits], fraction[digits:]
    if dot and not fraction.isdigit():
        raise ValueError(f"not a time: {text[:40]!r}")
    return _bounded(datetime.fromisoformat(whole + zone), int(fraction[:9].ljust(9, "0")) if fraction else 0)


def _bounded(moment: datetime, fraction_ns: int) -> int | None:
    if moment.year < 1970:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    ns = int(moment.timestamp()) * 1_000_000_000 + fraction_ns
    if ns > MAX_TIME_NS:
        raise ValueError(f"a time after 2200: {moment.isoformat()}")
    return ns


def file_time(landed: LandedObject) -> tuple[int, str]:
    """(time, basis) of a file that states none inside: from its name (`...2026-11-23T10-00-00Z...`), else its modification."""
    for match in _FILE_TIME.finditer(landed.location.rsplit("/", 1)[-1]):
        try:
            stamped = time_ns(f"{match[1]}T{match[2]}:{match[3]}:{match[4]}Z")
        except ValueError:
            continue
        if stamped is not None:
            return stamped, "file_name"
    return landed.modified_ns, "modified"

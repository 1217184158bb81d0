"""The lake: what is committed exists, what is not does not; counts close or the batch is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.errors import SourceMissing, UnsafePath
from connectors.objects import LandedObject, Source, list_objects, read_lines
from connectors.sink import Lake
from models.contracts import TABLES


def landed(folder: Path) -> LandedObject:
    (folder / "flows").mkdir(exist_ok=True)
    (folder / "flows" / "events.log").write_bytes(b"one\ntwo\n")
    return list_objects(Source("hubble", "hubble", folder / "flows", "train-1"))[0]


def test_what_is_committed_exists_and_what_is_not_does_not(tmp_path: Path) -> None:
    lake, found = Lake(tmp_path / "lake"), landed(tmp_path)
    rows = TABLES["staging.hubble_control"].frame(
        [{"object_id": found.object_id, "cluster": "train-1", "control_kind": "lost_events", "time_ns": 10**18}]
    )
    batch = lake.batch(found)
    batch.write(found, "staging.hubble_control", rows)
    batch.reject(found, "staging.hubble_control", 2, "bad_json: not an object", "two")
    batch.count(found, "staging.hubble_control").read = 2
    assert lake.held_files("staging.hubble_control") == []
    batch.commit()
    load = lake.loads().row(0, named=True)
    assert (load["rows_read"], load["rows_kept"], load["rows_rejected"]) == (2, 1, 1)
    assert load["min_time_utc"].year == 2001
    assert len(lake.held_files("staging.hubble_control")) == 1


def test_n8_counts_that_do_not_close_are_refused(tmp_path: Path) -> None:
    lake, found = Lake(tmp_path / "lake"), landed(tmp_path)
    batch = lake.batch(found)
    batch.count(found, "staging.hubble_flow").read = 5
    with pytest.raises(AssertionError, match="do not close"):
        batch.commit()
    assert lake.loads().height == 0


def test_the_same_bytes_at_the_same_place_are_the_same_object(tmp_path: Path) -> None:
    first = landed(tmp_path)
    assert landed(tmp_path).object_id == first.object_id
    (tmp_path / "flows" / "events.log").write_bytes(b"one\ntwo\nthree\n")
    grown = list_objects(first.source)[0]
    assert grown.object_id != first.object_id


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    source = landed(tmp_path).source
    (tmp_path / "secret").write_text("x")
    (tmp_path / "flows" / "z.log").symlink_to(tmp_path / "secret")
    with pytest.raises(UnsafePath, match="outside"):
        list_objects(source)


def test_a_missing_location_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing, match=r"zoneledger\.toml"):
        list_objects(Source("hubble", "hubble", tmp_path / "absent", "train-1"))


def test_lines_are_read_whatever_the_compression(tmp_path: Path) -> None:
    import gzip

    import zstandard

    text = b"a\r\nb\n"
    for name, data in {"x.log": text, "x.gz": gzip.compress(text), "odd.log": zstandard.compress(text)}.items():
        (tmp_path / name).write_bytes(data)
        assert list(read_lines(tmp_path / name)) == [(1, b"a"), (2, b"b")], name

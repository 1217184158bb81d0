"""GPU metrics: query_range, OpenMetrics, exposition text, promtool dumps, and traces as CSV, on inline and real files."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from connectors import gpu_activity_csv, prometheus
from connectors.objects import Source
from connectors.prometheus import SAMPLE, parse_series, series_columns
from connectors.sink import Lake

UTIL = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="node-a",namespace="ml",pod="w-0"}'
AT = "2026-11-23T10-00-00Z"
AT_NS = 1_795_428_000_000_000_000


def staged(
    folder: Path, name: str, content: bytes | str, kind: str = "prometheus", **options: object
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, Any]]:
    """(samples, rejected rows, load row) of one file."""
    place = folder / "in"
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    lake = Lake(folder / "lake")
    connector = gpu_activity_csv if kind == "gpu-activity-csv" else prometheus
    connector.stage(Source("gpu", kind, place, cluster="c1", options=options), lake, lambda text: None)
    held, rejected = lake.held_files(SAMPLE), lake.rejected_files()
    return (
        pl.read_parquet(held).sort("time_ns", "metric", "gpu_uuid", "pod") if held else pl.DataFrame(),
        pl.read_parquet(rejected) if rejected else pl.DataFrame(),
        lake.loads().row(0, named=True),
    )


def answer(*series: dict[str, Any], **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more})


def one(metric: str, values: list[list[Any]], **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": metric, "UUID": "GPU-1", "gpu": "0", **labels}, "values": values}


def test_query_range_gives_samples_in_nanoseconds(tmp_path: Path) -> None:
    text = answer(
        one("DCGM_FI_DEV_GPU_UTIL", [[1795428000.25, "97"], [1795428030.25, "98.5"]], pod="w-0", namespace="ml")
    )
    samples, _, load = staged(tmp_path, "util.json", text)
    assert samples["time_ns"].to_list() == [AT_NS + 250_000_000, AT_NS + 30_250_000_000]
    assert samples.select("metric", "value", "gpu_uuid", "pod", "namespace").row(1) == (
        "gpu_util",
        98.5,
        "GPU-1",
        "w-0",
        "ml",
    )
    assert (load["rows_read"], load["rows_kept"]) == (2, 2)


@pytest.mark.parametrize(
    ("line", "time_ns"),
    [
        (f"{UTIL} 5 1795428000000", AT_NS),  # exposition text: milliseconds
        (f"{UTIL} 5 1795428000.5", AT_NS + 500_000_000),  # OpenMetrics: seconds
        (f"{UTIL} 5 1795428000", AT_NS),  # OpenMetrics without a fraction
        (f'{UTIL} 5 1795428000.5 # {{trace_id="a}}b"}} 0.6', None),  # an exemplar that can't be told from labels
        (f'{UTIL} 5 1795428000.5 # {{trace_id="ab"}} 0.6 1', AT_NS + 500_000_000),
        ('{__name__="DCGM_FI_DEV_GPU_UTIL", UUID="GPU-1", pod="w-0"} 5 1795428000000', AT_NS),  # promtool dump
        ('{__name__="DCGM_FI_DEV_GPU_UTIL", UUID="GPU-1", pod="w-0"} 5 60000', 60_000_000_000),  # small stamps as well
        ('{"DCGM_FI_DEV_GPU_UTIL", UUID="GPU-1", pod="w-0"} 5 1795428000000', AT_NS),  # quoted metric name
        (f"{UTIL} 5", AT_NS),  # a scrape: the file's time
    ],
)
def test_times_of_text_lines(tmp_path: Path, line: str, time_ns: int | None) -> None:
    samples, rejected, _ = staged(tmp_path, f"scrape-{AT}.prom", line + "\n# EOF\n")
    if time_ns is None:
        assert samples.is_empty() and rejected.height == 1
    else:
        assert samples["time_ns"].to_list() == [time_ns]
        assert samples["value"].to_list() == [5.0]


def test_a_scrape_without_any_time_warns(tmp_path: Path) -> None:
    _, _, load = staged(tmp_path, "scrape.prom", UTIL + " 5\n")
    assert "modification time" in load["warning"]


@pytest.mark.parametrize(
    "value", ["9223372036854775794", "9.223372036854776e+18", "2147483632", "140737488355328", "NaN"]
)
def test_n3_a_blank_value_is_no_row(tmp_path: Path, value: str) -> None:
    """Case 36: DCGM's blanks and staleness markers become nothing, never a number."""
    samples, rejected, load = staged(tmp_path, "a.prom", f"{UTIL} {value} 1795428000000\n")
    assert samples.is_empty() and rejected.is_empty()
    assert (load["rows_read"], load["rows_control"]) == (1, 1)


@pytest.mark.parametrize("value", ["-1", "+Inf", "none"])
def test_b5_a_value_that_is_no_measurement_is_kept_aside(tmp_path: Path, value: str) -> None:
    _, rejected, load = staged(tmp_path, "a.prom", f"{UTIL} {value} 1795428000000\n")
    assert rejected["line_number"].to_list() == [1] and rejected["reason"][0].startswith("bad_value")
    assert (load["rows_read"], load["rows_rejected"]) == (1, 1)


def test_exported_labels_are_the_exporters_own(tmp_path: Path) -> None:
    """Case 34: under honorLabels false, `pod` is the exporter and `exported_pod` the holder."""
    target = {"pod": "nvidia-dcgm-exporter-x", "namespace": "gpu-operator", "container": "nvidia-dcgm-exporter"}
    held = series_columns({"UUID": "GPU-1", **target, "exported_pod": "w-0", "exported_namespace": "ml"})
    free = series_columns({"UUID": "GPU-1", **target})
    assert (held["pod"], held["namespace"]) == ("w-0", "ml")
    assert (free["pod"], free["namespace"]) == (None, None)


def test_empty_pod_label_is_nobody() -> None:
    """Case 35: nobody by the kubelet's word; the model asks the scheduler's view by node and GPU."""
    columns = series_columns({"UUID": "GPU-1", "Hostname": "node-a", "pod": "", "namespace": "", "container": ""})
    assert (columns["pod"], columns["namespace"], columns["node_name"]) == (None, None, "node-a")


@pytest.mark.parametrize(
    "labels",
    [
        {"UUID": "GPU-1", "Hostname": "node-a", "modelName": "A10G", "pod": "w-0", "namespace": "ml", "GPU_I_ID": "3"},
        {
            "uuid": "GPU-1",
            "hostname": "node-a",
            "model_name": "A10G",
            "pod_name": "w-0",
            "pod_namespace": "ml",
            "GPU_I_ID": "3",
        },
        {"gpu_uuid": "GPU-1", "node": "node-a", "card_model": "A10G", "pod": "w-0", "namespace": "ml", "gpu_i_id": "3"},
    ],
)
def test_label_names_of_every_exporter_version_agree(labels: dict[str, str]) -> None:
    """Case 37."""
    columns = series_columns(labels)
    assert [columns[c] for c in ("gpu_uuid", "node_name", "gpu_model", "pod", "namespace", "gpu_instance")] == [
        "GPU-1", "node-a", "A10G", "w-0", "ml", "3",
    ]  # fmt: skip


@pytest.mark.parametrize("host", ["dcgm-exporter-6ldbb", "424773df46e0"])
def test_a_host_name_that_is_the_exporter_is_no_node(host: str) -> None:
    assert series_columns({"UUID": "GPU-1", "Hostname": host})["node_name"] is None


def test_a_series_without_a_gpu_is_rejected_and_others_are_kept(tmp_path: Path) -> None:
    text = answer(
        {"metric": {"__name__": "DCGM_FI_DEV_GPU_UTIL"}, "values": [[1795428000, "1"]]},
        one("DCGM_FI_DEV_GPU_UTIL", [[1795428000, "2"]]),
    )
    samples, rejected, _ = staged(tmp_path, "a.json", text)
    assert samples["value"].to_list() == [2.0]
    assert "no GPU" in rejected["reason"][0]


def test_percent_and_ratio_stay_apart(tmp_path: Path) -> None:
    """Case 38: GPU_UTIL is 0 to 100, profiling metrics 0 to 1; the metric's name carries the unit."""
    lines = [UTIL + " 98 1795428000000", UTIL.replace("DEV_GPU_UTIL", "PROF_GR_ENGINE_ACTIVE") + " 0.98 1795428000000"]
    samples, _, _ = staged(tmp_path, "a.prom", "\n".join(lines))
    assert dict(samples.select("metric", "value").rows()) == {"gpu_util": 98.0, "engine_active": 0.98}


def test_g2_replicas_of_a_pair_are_one_series(tmp_path: Path) -> None:
    """Case 45: an HA pair writes each sample twice; staging keeps one."""
    pair = [one("DCGM_FI_DEV_GPU_UTIL", [[1795428000, "7"]], prometheus_replica=r) for r in ("a", "b")]
    samples, _, load = staged(tmp_path, "a.json", answer(*pair))
    assert samples.height == 1 and load["rows_duplicate"] == 1


def test_the_shared_end_of_two_requests_counts_once(tmp_path: Path) -> None:
    """Case 43: query_range includes both ends, so split requests share a point."""
    first = answer(one("DCGM_FI_DEV_GPU_UTIL", [[1795428000, "7"], [1795428015, "8"]]))
    second = answer(one("DCGM_FI_DEV_GPU_UTIL", [[1795428015, "8"], [1795428030, "9"]]))
    samples, _, load = staged(tmp_path, "a.jsonl", first + "\n" + second)
    assert samples["value"].to_list() == [7.0, 8.0, 9.0] and load["rows_duplicate"] == 1


def test_a_refused_query_and_a_servers_warning_are_seen(tmp_path: Path) -> None:
    refused = '{"status":"error","errorType":"bad_data","error":"exceeded maximum resolution of 11,000 points"}'
    _, rejected, load = staged(tmp_path, "a.jsonl", refused + "\n" + answer(warnings=["partial response"]))
    assert "11,000 points" in rejected["reason"][0]
    assert "partial response" in load["warning"]


def test_escapes_braces_and_commas_in_label_values() -> None:
    name, labels = parse_series(r'm{ a="x\"y,}" , b="c\\d\ne" ,}')
    assert (name, labels) == ("m", {"a": 'x"y,}', "b": "c\\d\ne"})
    with pytest.raises(ValueError, match="can't be read"):
        parse_series("m{a=b}")


def test_a_bad_line_hurts_no_other_and_a_cut_archive_keeps_its_lines(tmp_path: Path) -> None:
    body = "\n".join(f"{UTIL} {n} {1795428000000 + n * 1000}" for n in range(50)) + "\nnot a sample at all {\n"
    samples, rejected, load = staged(tmp_path, "a.prom.gz", gzip.compress(body.encode())[:-6])
    assert samples.height == 50 and rejected["line_number"].to_list() == [51]
    assert "ends early" in load["warning"]


def test_configured_metrics(tmp_path: Path) -> None:
    line = 'my:gpu{uuid="GPU-1"} 4 1795428000000'
    samples, _, _ = staged(tmp_path, "a.prom", line, metrics={"my:gpu": "gpu_util", "other": "no_such_metric"})
    assert samples["metric"].to_list() == ["gpu_util"]


def test_real_files(tmp_path: Path, shared_data: Path) -> None:
    """Lines of public issues, README blocks and promtool's own test data: read without a rejected sample."""
    (tmp_path / "in").mkdir()
    for file in [*(shared_data / "gpu").glob("*.prom"), *(shared_data / "gpu").glob("prom_query*.json")]:
        shutil.copy(file, tmp_path / "in")
    lake = Lake(tmp_path / "lake")
    prometheus.stage(Source("gpu", "prometheus", tmp_path / "in", cluster="c1"), lake, lambda text: None)
    loads = {row["location"]: row for row in lake.loads().iter_rows(named=True)}
    assert loads["prom_query_range_DERIVED_from_gentd26.json"]["rows_kept"] == 60
    assert loads["dcgm_exporter_real_lines.prom"]["rows_kept"] == 9
    assert loads["dcgm_exporter_v2_readme.prom"]["rows_kept"] == 0
    assert loads["promtool_dump-test-1.prom"]["rows_control"] == 15
    assert loads["promtool_dump-openmetrics-test.prom"]["rows_control"] == 11
    assert loads["promtool_dump-series-1.prom"]["rows_rejected"] == 3  # labels without samples
    samples = pl.read_parquet(lake.held_files(SAMPLE))
    mig = samples.filter(pl.col("gpu_instance") == "1").row(0, named=True)
    assert (mig["metric"], mig["gpu_uuid"], mig["pod"]) == (
        "engine_active",
        "GPU-af2c63a8-8c8b-21cc-581a-bab6bba89d08",
        None,
    )
    held = samples.filter(pl.col("pod") == "d85np-t6mdg")
    assert held.select("namespace", "value").row(0) == ("ai-1", 0.008246)


# --- traces as CSV -------------------------------------------------------------------------------------------------
def test_a_trace_as_csv(tmp_path: Path) -> None:
    text = (
        "timestamp,container_ip,gpu_duty_cycle_pct\n1795428000,p1,5\n1795428057,p1,NA\nlater,p1,5\n1795428114,p1,101\n"
    )
    samples, rejected, load = staged(tmp_path, "a.csv", text, "gpu-activity-csv")
    assert samples.select("time_ns", "metric", "value", "gpu_uuid", "pod").rows() == [
        (AT_NS, "gpu_util", 5.0, "p1", "p1")
    ]
    assert rejected["line_number"].to_list() == [4, 5]
    assert (load["rows_read"], load["rows_control"]) == (4, 1)


def test_options_name_the_columns_of_a_trace(tmp_path: Path) -> None:
    text = "t,g,u,who\n2026-11-23T10:00:00Z,GPU-1,50,w-0\n"
    samples, _, _ = staged(
        tmp_path, "a.csv", text, "gpu-activity-csv", time_column="t", gpu_column="g", value_column="u", pod_column="who"
    )
    assert samples.select("time_ns", "value", "gpu_uuid", "pod").row(0) == (AT_NS, 50.0, "GPU-1", "w-0")


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "", "timestamp,container_ip,gpu_duty_cycle_pct\n1,2,3,4,5\n"])
def test_a_file_that_is_no_trace_is_rejected(tmp_path: Path, text: str) -> None:
    samples, rejected, _ = staged(tmp_path, "a.csv", text, "gpu-activity-csv")
    assert samples.is_empty() and rejected["reason"][0].startswith("bad_csv")


def test_real_trace(tmp_path: Path, shared_data: Path) -> None:
    """GenTD26: every sample of every pod, with its memory beside it (the oracle counts the samples)."""
    name = "gentd26_pod_gpu_duty_cycle_trim.csv"
    samples, rejected, load = staged(tmp_path, name, (shared_data / "gpu" / name).read_bytes(), "gpu-activity-csv")
    expected = (
        pl.read_csv(shared_data / "gpu" / "gentd26_expected.csv").select("container_ip", "samples").sort("container_ip")
    )
    found = samples.filter(pl.col("metric") == "gpu_util").group_by("pod").len().sort("pod")
    assert found.rows() == expected.rows()
    assert rejected.is_empty() and load["rows_kept"] == 21678

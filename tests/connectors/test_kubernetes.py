"""Kubernetes files to staging: shapes, times, completeness, GPUs (P6), zones (P4), hostile input, real files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from connectors import kubernetes
from connectors.kubernetes import effective_gpus, instance_id, node_row, pod_row, quantity, stage, workload_row
from connectors.objects import Source
from connectors.sink import Lake

AT_NS = 1_795_428_000_000_000_000  # 2026-11-23T10:00:00Z
NAME = "pods-2026-11-23T10-00-00Z.json"


def pod(uid: str = "u1", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "ml",
            "uid": uid,
            "creationTimestamp": "2026-11-23T09:00:00Z",
            **more,
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.5",
            "podIPs": [{"ip": "10.0.0.5"}, {"ip": "FD00::5"}],
            "hostIP": "10.1.0.1",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-23T09:00:01Z"}],
            "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-23T09:01:00.5Z"}}}],
        },
    }


def without_kind(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}


class Staged:
    """What one source's files became."""

    def __init__(self, folder: Path, lake: Path, **options: object) -> None:
        self.lake = Lake(lake)
        stage(Source("k", "kubernetes", folder, cluster="c1", options=options), self.lake, lambda text: None)
        self.loads = self.lake.loads()

    def table(self, name: str) -> pl.DataFrame:
        held = self.lake.held_files(f"staging.{name}")
        return pl.read_parquet(held) if held else pl.DataFrame()

    @property
    def rejected(self) -> list[dict[str, Any]]:
        files = self.lake.rejected_files()
        return pl.read_parquet(files).sort("object_id", "line_number").to_dicts() if files else []

    @property
    def warnings(self) -> str:
        return " ".join(filter(None, self.loads["warning"].to_list()))


def staged(folder: Path, content: bytes | str, name: str = NAME, **options: object) -> Staged:
    place = folder / "in"
    place.mkdir(exist_ok=True)
    (place / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return Staged(place, folder / "lake", **options)


SHAPES: dict[str, tuple[str, bytes]] = {
    "api_list": (NAME, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [without_kind(pod())]}).encode()),
    "kubectl_list": (NAME, json.dumps({"kind": "List", "apiVersion": "v1", "items": [pod()]}, indent=2).encode()),
    "bare_object": (NAME, json.dumps(pod(), indent=1).encode()),
    "array": (NAME, json.dumps([pod()]).encode()),
    "yaml": ("pods-2026-11-23T10-00-00Z.yaml", yaml.safe_dump(pod()).encode()),
    "yaml_documents": ("pods-2026-11-23T10-00-00Z.yaml", b"---\n" + yaml.safe_dump(pod()).encode() + b"---\n---\n"),
    "gzip": (NAME + ".gz", gzip.compress(json.dumps(pod()).encode())),
    "byte_order_mark": (NAME, b"\xef\xbb\xbf" + json.dumps(pod()).encode()),
    "envelope": (
        "a.jsonl",
        json.dumps({"observed_at": "2026-11-23T10:00:00Z", "list": {"kind": "PodList", "items": [pod()]}}).encode(),
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_row(tmp_path: Path, shape: str) -> None:
    """Case 1."""
    name, content = SHAPES[shape]
    found = staged(tmp_path, content, name).table("pod_observation").row(0, named=True)
    expected = pod_row(pod())
    assert {key: found[key] for key in expected} == expected
    assert (found["observed_ns"], found["mode"], found["cluster"]) == (AT_NS, "list", "c1")
    assert (found["gpus"], found["pod_ips"], found["main_started_ns"]) == (
        8.0,
        '["10.0.0.5","fd00::5"]',
        1_795_424_460_500_000_000,
    )


@pytest.mark.parametrize("kind", [True, False])
def test_a_watch_event_gives_the_same_row(tmp_path: Path, kind: bool) -> None:
    event = {"observed_at": "2026-11-23T10:00:00Z", "type": "ADDED", "object": pod() if kind else without_kind(pod())}
    found = staged(tmp_path, json.dumps(event), "w.jsonl").table("pod_observation").row(0, named=True)
    assert found["mode"] == "added" and {k: found[k] for k in pod_row(pod())} == pod_row(pod())


def test_concatenated_documents_resume_after_a_bad_one(tmp_path: Path) -> None:
    text = (
        json.dumps(pod("a"), indent=1)
        + "\n"
        + json.dumps(pod("b"), indent=1)[:-9]
        + "\n"
        + json.dumps(pod("c"), indent=1)
    )
    found = staged(tmp_path, text)
    assert sorted(found.table("pod_observation")["uid"]) == ["a", "c"]
    assert [r["reason"].split(":")[0] for r in found.rejected] == ["bad_json"]


def test_time_comes_from_the_file_when_nothing_states_it(tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    (place / "pods.json").write_text(json.dumps(pod()), encoding="utf-8")
    os.utime(place / "pods.json", ns=(AT_NS, AT_NS + 5))
    found = Staged(place, tmp_path / "lake")
    assert found.table("pod_observation")["observed_ns"].to_list() == [AT_NS + 5]
    assert found.table("snapshot")["observed_basis"].to_list() == ["modified"]
    assert "modification time" in found.warnings


def plain(*namespaces: str, **metadata: Any) -> str:
    return json.dumps(
        {
            "kind": "PodList",
            "metadata": metadata,
            "items": [pod(f"u{n}", namespace=ns) for n, ns in enumerate(namespaces)],
        }
    )


@pytest.mark.parametrize(
    ("content", "options", "complete"),
    [
        (plain("ml", "web"), {}, True),
        (plain("ml", "ml"), {}, False),  # kubectl without -A shows one namespace
        (plain("ml", "ml"), {"complete": True}, True),
        (plain("ml", "web", **{"continue": "token"}), {"complete": True}, False),
        (plain("ml", "web", remainingItemCount=7), {}, False),
        (plain(), {}, False),
        (json.dumps(pod()), {}, False),
        ('{"observed_at":"2026-11-23T10:00:00Z","complete":true,"list":{"kind":"PodList","items":[]}}', {}, True),
        ('{"observed_at":"2026-11-23T10:00:00Z","complete":false,"list":{"kind":"PodList","items":[]}}', {}, False),
        (
            '{"observed_at":"2026-11-23T10:00:00Z","complete":true,"scope":"ml","list":{"kind":"PodList","items":[]}}',
            {},
            False,
        ),
    ],
)
def test_p1_which_lists_are_complete(tmp_path: Path, content: str, options: dict[str, Any], complete: bool) -> None:
    """Case 8: a list of one namespace, a selection or a page ends nothing."""
    assert staged(tmp_path, content, **options).table("snapshot")["complete"].to_list() == [complete]


def test_p1_completeness_is_told_by_kind(tmp_path: Path) -> None:
    """`kubectl get nodes,pods` shows all nodes and the pods of one namespace."""
    mixed = {"kind": "List", "items": [pod(), node({})]}
    found = staged(tmp_path, json.dumps(mixed))
    assert dict(found.table("snapshot").select("resource_kind", "complete").rows()) == {"Pod": False, "Node": True}
    assert "one namespace" in found.warnings


def watch(*events: tuple[str, str, dict[str, Any]]) -> str:
    return "\n".join(
        json.dumps({"observed_at": f"2026-11-23T{at}Z", "type": kind, "object": item}) for at, kind, item in events
    )


def test_p1_a_watch_is_a_stretch_and_410_ends_it(tmp_path: Path) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired"}
    mark = {"kind": "Pod", "metadata": {"resourceVersion": "5"}}
    found = staged(
        tmp_path,
        watch(
            ("10:00:00", "ADDED", pod()),
            ("10:05:00", "BOOKMARK", mark),
            ("10:05:01", "ERROR", gone),
            ("10:20:00", "ADDED", pod()),
        ),
        "w.jsonl",
    )
    stretches = found.table("snapshot").sort("observed_ns").select("observed_ns", "watch_to_ns", "items").rows()
    minute = 60_000_000_000
    assert stretches == [(AT_NS, AT_NS + 5 * minute, 1), (AT_NS + 20 * minute, AT_NS + 20 * minute, 1)]
    load = found.loads.filter(pl.col("table_name") == "staging.snapshot").row(0, named=True)
    assert (load["rows_read"], load["rows_kept"], load["rows_control"]) == (4, 2, 2)


def test_events_of_one_moment_keep_their_order(tmp_path: Path) -> None:
    pending = pod() | {"status": {"phase": "Pending"}}
    events = watch(("10:00:00", "ADDED", pending), ("10:00:00", "MODIFIED", pod()), ("10:00:00", "DELETED", pod()))
    rows = staged(tmp_path, events, "w.jsonl").table("pod_observation").sort("observed_ns")
    assert rows.select("observed_ns", "mode", "phase").rows() == [
        (AT_NS, "added", "Pending"), (AT_NS + 1, "modified", "Running"), (AT_NS + 2, "deleted", "Running"),
    ]  # fmt: skip


# --- pods ----------------------------------------------------------------------------------------------------------
def test_deletion_is_requested_before_its_stamp() -> None:
    """Case 10: the stamp is the request plus the grace period."""
    row = pod_row(pod(deletionTimestamp="2026-11-23T10:00:30Z", deletionGracePeriodSeconds=30))
    assert row["delete_requested_ns"] == AT_NS


def test_p6_a_gated_pod_is_not_bound() -> None:
    """Case 20."""
    gate = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "lastTransitionTime": "2026-11-23T09:00:00Z",
    }
    gated = pod() | {
        "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [gate], "nominatedNodeName": "n1"},
    }
    row = pod_row(gated)
    assert (row["node_name"], row["scheduled_ns"], row["unscheduled_reason"]) == (None, None, "SchedulingGated")


def test_a_terminal_pod_ended_when_its_last_container_did() -> None:
    ends = [{"name": n, "state": {"terminated": {"finishedAt": f"2026-11-23T10:0{n}:00Z"}}} for n in "12"]
    done = pod() | {
        "spec": {"containers": [{"name": "1"}, {"name": "2"}]},
        "status": {"phase": "Succeeded", "containerStatuses": ends},
    }
    assert pod_row(done)["finished_ns"] == AT_NS + 120_000_000_000
    assert pod_row(done | {"status": {**done["status"], "phase": "Running"}})["finished_ns"] is None


def test_gos_zero_time_is_no_time() -> None:
    assert pod_row(pod(creationTimestamp="0001-01-01T00:00:00Z"))["created_ns"] is None


def containers(*requests: dict[str, str], init: tuple[tuple[dict[str, str], bool], ...] = ()) -> dict[str, Any]:
    return {
        "containers": [{"name": f"c{n}", "resources": {"limits": r}} for n, r in enumerate(requests)],
        "initContainers": [
            {"name": f"i{n}", "resources": {"requests": r}, **({"restartPolicy": "Always"} if side else {})}
            for n, (r, side) in enumerate(init)
        ],
    }


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        (containers({GPU: "4"}, {GPU: "4"}, init=(({GPU: "1"}, True), ({GPU: "8"}, False))), 9.0),  # case 18
        (containers({GPU: "4"}, {GPU: "4"}, init=(({GPU: "8"}, False),)), 8.0),
        (containers({GPU: "1"}, init=(({GPU: "8"}, False), ({GPU: "1"}, True))), 8.0),
        (
            containers({GPU: "1"}, init=(({GPU: "1"}, True), ({GPU: "8"}, False))),
            9.0,
        ),  # the sidecar runs beside the init
        (containers({"nvidia.com/mig-3g.20gb": "2"}), 6 / 7),
        (containers({"nvidia.com/mig-1c.3g.20gb": "1"}), 3 / 7),
        (containers({GPU: "1", "nvidia.com/gpucores": "25"}), 0.25),  # case 22: HAMi
        (containers({GPU: "1", "nvidia.com/gpumem-percentage": "50"}), 0.5),
        (containers({"amd.com/gpu": "1k"}), 1000.0),
        (containers({"cpu": "4", "memory": "1Gi"}), 0.0),
        ({}, 0.0),
    ],
)
def test_p6_effective_request(spec: dict[str, Any], gpus: float) -> None:
    assert effective_gpus(spec, {})[1] == pytest.approx(gpus)


def test_p6_fractions_count_and_their_reservation_does_not() -> None:
    """Case 23: two pods of half a GPU and the pod that reserves the device are one GPU."""
    half = pod("a", annotations={"gpu-fraction": "0.5"}) | {
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]}
    }
    reservation = pod("r", namespace="kai-resource-reservation")
    assert [pod_row(p)["gpus"] for p in (half, half, reservation)] == [0.5, 0.5, 0.0]


def test_p6_an_allocated_claim_counts_its_devices(tmp_path: Path) -> None:
    devices = [{"driver": "gpu.nvidia.com", "device": d} for d in ("gpu-0", "gpu-1", "gpu-2-mig-3g20gb-0")]
    results = [
        *devices,
        {"driver": "gpu.nvidia.com", "device": "gpu-9", "adminAccess": True},
        {"driver": "net.example", "device": "n"},
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u1"}],
    }
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "ml", "uid": "rc"}, "status": status}
    row = staged(tmp_path, json.dumps(claim)).table("workload_observation").row(0, named=True)
    assert json.loads(row["replicas"]) == {"gpu.nvidia.com": pytest.approx(2 + 3 / 7)}
    assert json.loads(row["annotations"]) == {"reserved_for": ["u1"]}


@pytest.mark.parametrize(("text", "value"), [("8", 8.0), ("500m", 0.5), ("2Gi", 2.0**31), ("1e3", 1000.0), (3, 3.0)])
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("many")


# --- nodes ---------------------------------------------------------------------------------------------------------
def node(labels: dict[str, str], provider_id: str | None = None, **capacity: str) -> dict[str, Any]:
    resources = {key.replace("_", "/", 1): value for key, value in capacity.items()}
    return {
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "n", "labels": labels},
        "spec": {"providerID": provider_id} if provider_id else {},
        "status": {"capacity": resources, "allocatable": resources},
    }


STABLE, LEGACY = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


@pytest.mark.parametrize(
    ("labels", "provider_id", "zone", "basis"),
    [
        ({STABLE: "us-east-1a", LEGACY: "us-east-1b"}, "aws:///us-east-1c/i-1", "us-east-1a", "label"),
        ({LEGACY: "us-east-2c"}, "aws:///us-east-2b/i-1", "us-east-2c", "legacy_label"),  # case 13
        ({"topology.ebs.csi.aws.com/zone": "us-east-1a"}, None, "us-east-1a", "csi_label"),
        ({"topology.gke.io/zone": "us-central1-a"}, None, "us-central1-a", "gke_label"),
        ({}, "aws:///us-west-2b/i-1", "us-west-2b", "provider_id"),  # case 16
        ({}, "gce://project/us-central1-a/vm-1", "us-central1-a", "provider_id"),
        ({STABLE: "eastus-1"}, None, "eastus-1", "label"),
        ({STABLE: "0"}, "azure:///subscriptions/s/vm/0", None, None),  # case 15: a fault domain
        ({"topology.kubernetes.io/region": "nyc3"}, "digitalocean://123", None, None),  # case 14
    ],
)
def test_p4_zone_precedence(
    labels: dict[str, str], provider_id: str | None, zone: str | None, basis: str | None
) -> None:
    row = node_row(node(labels, provider_id))
    assert (row["zone"], row["zone_basis"]) == (zone, basis)


@pytest.mark.parametrize(
    ("provider_id", "expected"),
    [
        ("aws:///us-east-1a/i-0abc", "i-0abc"),
        (
            "azure:///subscriptions/S/resourceGroups/RG/virtualMachines/0",
            "/subscriptions/s/resourcegroups/rg/virtualmachines/0",
        ),
        ("gce://p/us-central1-a/vm-1", "vm-1"),
        (None, None),
    ],
)
def test_instance_id_joins_the_bill(provider_id: str | None, expected: str | None) -> None:
    assert instance_id(provider_id) == expected


@pytest.mark.parametrize(
    ("labels", "capacity", "physical", "replicas"),
    [
        ({}, "8", 8.0, 1.0),
        ({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "10"}, "80", 8.0, 10.0),
        ({"nvidia.com/gpu.replicas": "10"}, "80", 8.0, 10.0),
        ({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.replicas": "1"}, "8", 8.0, 1.0),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-MIG-1g.5gb"}, "56", 8.0, 7.0),
    ],
)
def test_p6_physical_gpus_of_shared_nodes(
    labels: dict[str, str], capacity: str, physical: float, replicas: float
) -> None:
    """Case 22: time slices and MIG slices are not GPUs."""
    row = node_row(node(labels, **{"nvidia.com_gpu": capacity}))
    assert (row["gpus"], row["gpu_replicas"]) == (physical, pytest.approx(replicas))


def test_gpu_model_loses_the_suffix_of_sharing() -> None:
    models = [
        node_row(node({"nvidia.com/gpu.product": f"NVIDIA-A100{s}"}))["gpu_model"]
        for s in ("", "-SHARED", "-MIG-1g.5gb")
    ]
    assert models == ["NVIDIA-A100"] * 3


# --- hostile and broken input --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": {"name": "x", "namespace": "ml"}},  # neither uid nor creation
        {"metadata": []},
        {"status": {"phase": 5}},
        {"status": {"conditions": "none", "startTime": "yesterday"}},
        {"metadata": {"name": "x", "uid": "x", "creationTimestamp": "9999-01-01T00:00:00Z"}},
        {
            "metadata": {
                "name": "x",
                "uid": "x",
                "deletionTimestamp": "2026-11-23T10:00:00Z",
                "deletionGracePeriodSeconds": 1e300,
            }
        },
        {"spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "many"}}}]}},
        {"spec": {"containers": [{"name": "m", "resources": {"limits": {GPU: "1e999"}}}]}},
    ],
)
def test_b5_a_bad_item_is_kept_aside_alone(tmp_path: Path, bad: dict[str, Any]) -> None:
    items = {"kind": "List", "items": [pod("good"), pod() | bad]}
    found = staged(tmp_path, json.dumps(items))
    assert found.table("pod_observation")["uid"].to_list() == ["good"]
    assert [(r["table_name"], r["reason"].split(":")[0]) for r in found.rejected] == [
        ("staging.pod_observation", "bad_value")
    ]


@pytest.mark.parametrize(
    "content", ["5", '"text"', '{"observed_at":"now","list":{}}', '{"items":[5]}', "{", "[" * 5000, '{"a":"\\ud800"}']
)
def test_b5_a_bad_document_is_kept_aside_with_its_line(tmp_path: Path, content: str) -> None:
    lines = json.dumps(pod("good")) + "\n" + content + "\n"
    found = staged(tmp_path, lines)
    assert found.table("pod_observation")["uid"].to_list() == ["good"]
    assert [r["line_number"] for r in found.rejected] == [2]


def test_labels_of_yaml_become_text(tmp_path: Path) -> None:
    text = yaml.safe_dump(pod()).replace(
        "  name: pod-u1", "  labels: {version: 1.5, ready: yes, none: }\n  name: pod-u1"
    )
    found = staged(tmp_path, text, "pods-2026-11-23T10-00-00Z.yaml").table("pod_observation")["labels"][0]
    assert json.loads(found) == {"ready": "true", "version": "1.5"}


def test_a_yaml_bomb_is_refused(tmp_path: Path) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"b{n}: &b{n} [*{'a' if n == 0 else f'b{n - 1}'},*a]\n" for n in range(30)
    )
    found = staged(tmp_path, bomb, "x.yaml")
    assert "aliases" in found.rejected[0]["reason"]


def test_a_cut_archive_keeps_what_it_held(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(pod(f"u{n}")) for n in range(200))
    found = staged(tmp_path, gzip.compress(lines.encode())[:-30], NAME + ".gz")
    assert found.table("pod_observation").height > 0
    assert found.rejected[-1]["reason"].startswith(("unreadable", "bad_json")) or found.rejected[0][
        "reason"
    ].startswith("unreadable")


def test_rows_are_flushed_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "FLUSH_ROWS", 2)
    found = staged(tmp_path, "\n".join(json.dumps(pod(f"u{n}")) for n in range(5)))
    assert found.table("pod_observation")["uid"].to_list() == [f"u{n}" for n in range(5)]


def test_staging_twice_loads_once(tmp_path: Path) -> None:
    first = staged(tmp_path, plain("ml", "web"))
    second = Staged(tmp_path / "in", tmp_path / "lake")
    assert first.loads.height == second.loads.height and second.table("pod_observation").height == 2


# --- workloads -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "spec", "replicas", "minimum"),
    [
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, {"master": 1, "worker": 3}, None),
        ("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}, "elasticPolicy": {"minReplicas": 2}}, {"worker": 4}, 2),
        ("JobSet", {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 4}}}, {"name": "d"}]},
         {"w": 8, "d": 1}, None),
        ("RayJob", {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "g", "replicas": 4, "minReplicas": 2}]}}, {"head": 1, "g": 4}, 3),
        ("Job", {"parallelism": 4}, {"worker": 4}, None),
        ("Job", {"minAvailable": 3, "tasks": [{"name": "ps", "replicas": 1}, {"name": "w", "replicas": 2}]}, {"ps": 1, "w": 2}, 3),
        ("PodGroup", {"minMember": 5}, None, 5),
    ],
)  # fmt: skip
def test_g4_declared_sizes(
    kind: str, spec: dict[str, Any], replicas: dict[str, int] | None, minimum: int | None
) -> None:
    row = workload_row({"kind": kind, "metadata": {"name": "j", "uid": "u"}, "spec": spec})
    assert (json.loads(row["replicas"] or "null"), row["min_members"]) == (replicas, minimum)
    assert list(json.loads(row["replicas"] or "{}")) == list(replicas or {})  # order tells the first part


# --- real files ----------------------------------------------------------------------------------------------------
def real(shared_data: Path, lake: Path, *names: str) -> Staged:
    folder = lake.parent / "in"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes((shared_data / "kubernetes" / name).read_bytes())
    return Staged(folder, lake)


def test_real_aks_lists(tmp_path: Path, shared_data: Path) -> None:
    found = real(shared_data, tmp_path / "lake", "podlist_aks_api_snapshot1.json", "podlist_aks_api_snapshot2.json")
    pods = found.table("pod_observation")
    assert (pods.height, pods["uid"].n_unique()) == (20, 10)
    hosts = pods.filter(pl.col("host_network"))
    assert hosts["uid"].n_unique() == 5 and hosts["pod_ips"].unique().to_list() == ['["10.224.0.6"]']
    assert not found.rejected


def test_real_eks_node(tmp_path: Path, shared_data: Path) -> None:
    """Case 13."""
    found = real(shared_data, tmp_path / "lake", "nodelist_eks_legacy_zone_labels.json").table("node_observation")
    row = found.select("zone", "zone_basis", "region", "instance_id", "instance_type", "internal_ips").row(0)
    assert row == ("us-east-2c", "legacy_label", "us-east-2", "i-0a99d3bb7b27d62ac", "t2.large", '["10.0.105.29"]')


def test_real_kubelet_pod_without_creation(tmp_path: Path, shared_data: Path) -> None:
    row = (
        real(shared_data, tmp_path / "lake", "podlist_kubelet_static_pod.json")
        .table("pod_observation")
        .row(0, named=True)
    )
    assert (row["created_ns"], row["host_network"], row["pod_ips"], row["phase"]) == (None, True, None, "Pending")
    assert len(row["uid"]) == 32


def test_real_watch_events(tmp_path: Path, shared_data: Path) -> None:
    found = real(shared_data, tmp_path / "lake", "watch_events_DERIVED.jsonl")
    assert found.table("pod_observation").sort("observed_ns")["mode"].to_list() == ["added", "modified", "deleted"]
    load = found.loads.filter(pl.col("table_name") == "staging.snapshot").row(0, named=True)
    assert load["rows_control"] == 2  # bookmark and 410


def test_real_manifests_are_workloads(tmp_path: Path, shared_data: Path) -> None:
    names = [path.name for path in (shared_data / "kubernetes").glob("crd_*.yaml")]
    found = real(shared_data, tmp_path / "lake", *names)
    kinds = dict(found.table("workload_observation").group_by("kind").len().rows())
    assert kinds == {"PyTorchJob": 4, "TFJob": 1, "MPIJob": 2, "JobSet": 4, "LeaderWorkerSet": 1, "RayJob": 2}
    assert not found.rejected
    mpi = found.table("workload_observation").filter(pl.col("kind") == "MPIJob")
    assert set(mpi["replicas"]) == {'{"launcher":1,"worker":2}'}

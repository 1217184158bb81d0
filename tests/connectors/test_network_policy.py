"""Network policies to staging: shapes, kinds, templates, selectors, real manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from connectors.network_policy import POLICY, stage
from connectors.objects import Source
from connectors.sink import Lake

SPEC = {
    "endpointSelector": {"matchLabels": {"k8s:zone": "zone-a"}},
    "ingress": [{"fromEndpoints": [{"matchExpressions": [{"key": "any:role", "operator": "Exists"}]}]}],
}


def policy(**more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "cilium.io/v2",
        "kind": "CiliumNetworkPolicy",
        "metadata": {"name": "doors", "namespace": "ml", "uid": "u1", "resourceVersion": "7"},
        "spec": SPEC,
        **more,
    }


def staged(
    folder: Path, content: str, name: str = "p-2026-11-23T10-00-00Z.json", **options: object
) -> tuple[Any, Any, Any]:
    """(policies, rejected rows, load row) of one file."""
    (folder / "in").mkdir()
    (folder / "in" / name).write_text(content, encoding="utf-8")
    lake = Lake(folder / "lake")
    stage(Source("p", "policies", folder / "in", cluster="c1", options=options), lake, lambda text: None)
    held, rejected = lake.held_files(POLICY), lake.rejected_files()
    return (
        pl.read_parquet(held).to_dicts() if held else [],
        pl.read_parquet(rejected).to_dicts() if rejected else [],
        lake.loads().row(0, named=True),
    )


@pytest.mark.parametrize(
    "document",
    [
        policy(),
        [policy()],
        {"kind": "List", "apiVersion": "v1", "items": [policy()]},
        {
            "kind": "CiliumNetworkPolicyList",
            "apiVersion": "cilium.io/v2",
            "items": [{k: v for k, v in policy().items() if k not in ("kind", "apiVersion")}],
        },
        {"observed_at": "2026-11-23T10:00:00Z", "complete": True, "list": {"kind": "List", "items": [policy()]}},
        {"observed_at": "2026-11-23T10:00:00Z", "type": "ADDED", "object": policy()},
    ],
)
def test_every_shape_gives_the_same_policy(tmp_path: Path, document: Any) -> None:
    (row,), rejected, load = staged(tmp_path, json.dumps(document))
    assert (row["kind"], row["namespace"], row["name"], row["resource_version"]) == (
        "CiliumNetworkPolicy",
        "ml",
        "doors",
        "7",
    )
    assert row["observed_ns"] == 1_795_428_000_000_000_000
    assert json.loads(row["selector_keys"]) == ["role", "zone"]
    assert json.loads(row["subject_selectors"]) == [SPEC["endpointSelector"]]
    assert json.loads(row["document"])["spec"] == SPEC
    assert not rejected and load["rows_read"] == 1


def test_a_policy_that_is_gone_is_marked(tmp_path: Path) -> None:
    events = [
        {"observed_at": f"2026-11-23T10:0{n}:00Z", "type": t, "object": policy()}
        for n, t in enumerate(("ADDED", "DELETED"))
    ]
    rows, _, _ = staged(tmp_path, "\n".join(map(json.dumps, events)))
    assert [row["mode"] for row in rows] == ["added", "deleted"]


def test_d2_kinds_that_are_not_evaluated_are_named(tmp_path: Path) -> None:
    others = [
        policy(kind="NetworkPolicy", apiVersion="crd.projectcalico.org/v1"),
        policy(kind="AdminNetworkPolicy", apiVersion="policy.networking.k8s.io/v1alpha1"),
        policy(apiVersion="example.com/v1"),
        policy(kind="Service", apiVersion="v1"),
    ]
    rows, rejected, load = staged(tmp_path, json.dumps(others))
    assert not rows and load["rows_control"] == 1
    assert [r["reason"].split(" is not")[0] for r in rejected] == [
        "unsupported_kind: NetworkPolicy of crd.projectcalico.org",
        "unsupported_kind: AdminNetworkPolicy of policy.networking.k8s.io",
        "unsupported_kind: CiliumNetworkPolicy of example.com",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spec": {"endpointSelector": {}, "egress": [{"toCIDR": ["{{.ExternalIPv4}}/32"]}]}}, "template"),
        ({"spec": None}, "bad_value"),
        ({"metadata": {}}, "bad_value"),
        ({"metadata": {"name": "x", "creationTimestamp": "yesterday"}}, "bad_value"),
    ],
)
def test_b5_a_policy_that_cannot_be_used_is_kept_aside(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    rows, rejected, _ = staged(tmp_path, json.dumps([policy(**changes), policy()]))
    assert len(rows) == 1
    assert [r["reason"].split(":")[0] for r in rejected] == [reason]


def test_a_description_may_hold_a_marker(tmp_path: Path) -> None:
    rows, rejected, _ = staged(
        tmp_path, json.dumps(policy(spec={**SPEC, "description": "towards {{.ExternalTarget}}"}))
    )
    assert len(rows) == 1 and not rejected


def test_the_namespace_that_a_manifest_leaves_out(tmp_path: Path) -> None:
    bare = policy(metadata={"name": "doors"})
    (row,), _, _ = staged(tmp_path, json.dumps(bare), namespace="cilium-test")
    assert row["namespace"] == "cilium-test"


def test_yaml_documents_stand_alone_and_aliases_are_refused(tmp_path: Path) -> None:
    good = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: a}\nspec: {podSelector: {}}\n"
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\n"
    rows, rejected, load = staged(
        tmp_path, f"{good}---\n{bomb}---\nkey: [\n---\n{good.replace('name: a', 'name: b')}", "p.yaml"
    )
    assert [row["name"] for row in rows] == ["a", "b"]
    assert [(r["line_number"], r["reason"].split(":")[0]) for r in rejected] == [(5, "bad_yaml"), (8, "bad_yaml")]
    assert "modification time" in load["warning"]


def test_real_manifests(tmp_path: Path, shared_data: Path) -> None:
    """Cilium's connectivity manifests and the lab: what is a policy is read, an unrendered template is named."""
    lake = Lake(tmp_path / "lake")
    stage(Source("p", "policies", shared_data / "policies", cluster="c1"), lake, lambda text: None)
    rows = pl.read_parquet(lake.held_files(POLICY))
    assert dict(rows.group_by("kind").len().rows()) == {
        "CiliumNetworkPolicy": 56,
        "CiliumClusterwideNetworkPolicy": 4,
        "NetworkPolicy": 7,
    }
    lab = rows.filter(pl.col("name") == "allow-intra-zone-b").row(0, named=True)
    assert lab["namespace"] == "ml-demo" and "zone" in json.loads(lab["selector_keys"])
    rejected = pl.read_parquet(lake.rejected_files()).join(lake.loads().select("object_id", "location"), on="object_id")
    manifests = rejected.filter(pl.col("location").str.ends_with(".yaml"))
    reasons = manifests["reason"].str.split(":").list.first().unique().sort().to_list()
    assert reasons == ["template", "unsupported_kind"]

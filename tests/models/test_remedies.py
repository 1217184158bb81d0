"""First remedies: what is offered, where it goes, and what is never offered (F2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from models.engine.warehouse import Warehouse
from models.findings_doors import End, Policy, door_open, load_policies
from models.findings_finding import Finding, load_runs
from models.parameters import Parameters
from models.remedies import TEMPLATES, best_zone, for_split
from tests.models.finding_world import JOB, TEN, ZONE_A, ZONE_B, job, load, node, pod, policy, zone_policies

HERE, THERE = End("ml", {"app": "train", "zone": "zone-a"}), End("ml", {"app": "train", "zone": "zone-b"})


def remedy(warehouse: Warehouse, pods: list[dict[str, Any]], **changes: Any) -> str | None:
    load(warehouse, {"core.job_run": [job(**changes)], "core.pod_life": pods})
    return split_remedy(warehouse)


def split_remedy(warehouse: Warehouse) -> str | None:
    finding = Finding("split", "c", JOB, TEN, TEN, None, [(TEN, TEN + 1)], "")
    run = load_runs(warehouse, [JOB])[JOB]
    return for_split(warehouse, run, finding, load_policies(warehouse), Parameters(), TEN)


def test_f2_a_pin_is_not_given_alone_where_a_door_stays_closed(warehouse: Warehouse) -> None:
    """The coordinator is apart and a policy keys on its label: the pin comes with the label."""
    load(warehouse, {"core.zone": [], "core.node_life": [], "staging.policy_observation": zone_policies()})
    words = remedy(warehouse, [pod("w0"), pod("m0", ZONE_B, "coordinator")])
    assert words is not None and "The pin alone does not open the door" in words and "`zone: zone-a`" in words


def test_f2_the_zone_is_the_one_with_most_gpus_of_the_run(warehouse: Warehouse) -> None:
    words = remedy(warehouse, [pod("w0"), pod("w1", ZONE_B), pod("w2", ZONE_B)])
    assert words is not None and "zone us-east-1b" in words and "16 of the run's 24 GPUs" in words


def test_f2_ties_go_to_the_zone_with_most_free_gpus(warehouse: Warehouse) -> None:
    others = pod("other", ZONE_A, gpus=24.0, job_key=5)
    load(warehouse, {"core.job_run": [job()], "core.pod_life": [pod("w0"), pod("w1", ZONE_B), others]})
    target = best_zone(warehouse, load_runs(warehouse, [JOB])[JOB], TEN)
    assert target is not None and (target.zone, target.free) == ("us-east-1b", 24.0)


def test_f2_too_few_free_gpus_are_said(warehouse: Warehouse) -> None:
    others = [pod(f"o{zone}", zone, gpus=20.0, job_key=5) for zone in (ZONE_A, ZONE_B)]
    words = remedy(warehouse, [pod("w0"), pod("w1", ZONE_B), *others])
    assert words is not None and "Only 4 GPUs were free there and 8 more are needed" in words


def test_f2_a_run_in_one_zone_or_in_unknown_zones_needs_no_pin(warehouse: Warehouse) -> None:
    assert remedy(warehouse, [pod("w0"), pod("w1", -1)]) is None


def test_f2_a_coordinator_sent_among_gpu_nodes_may_need_a_toleration(warehouse: Warehouse) -> None:
    words = remedy(warehouse, [pod("w0"), pod("m0", ZONE_B, "coordinator")])
    assert words is not None and "toleration" in words
    warehouse.con.execute("DELETE FROM core.node_life")
    warehouse.con.execute("DELETE FROM core.pod_life")
    load(
        warehouse,
        {
            "core.zone": [],
            "core.node_life": [node(ZONE_A), node(ZONE_A, 0.0, node_key=99)],
            "core.pod_life": [pod("w0"), pod("m0", ZONE_B, "coordinator")],
        },
    )
    again = split_remedy(warehouse)
    assert again is not None and "toleration" not in again


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("PyTorchJob", "spec.pytorchReplicaSpecs.Worker.template.spec"),
        ("MPIJob", "spec.mpiReplicaSpecs.Launcher.template.spec"),
        ("RayJob", "spec.rayClusterSpec.headGroupSpec.template.spec"),
        ("JobSet", "spec.replicatedJobs[].template.spec.template.spec"),
        ("TrainJob", "spec.podTemplateOverrides[]"),
        ("Job", "spec.template.spec"),
        ("Pod", "pod template"),
    ],
)
def test_f2_the_pin_goes_where_the_framework_keeps_its_pod_template(warehouse: Warehouse, kind: str, path: str) -> None:
    words = remedy(warehouse, [pod("w0"), pod("w1", ZONE_B), pod("m0", ZONE_B, "coordinator")], kind=kind)
    assert words is not None and path in words


def test_f2_a_zone_spread_constraint_is_never_offered(warehouse: Warehouse) -> None:
    words = [remedy(warehouse, [pod("w0"), pod("w1", ZONE_B)]), json.dumps(TEMPLATES)]
    assert not any("spread" in (text or "").lower() for text in words)


# --- doors ----------------------------------------------------------------------------------------------------------
def opens(
    warehouse: Warehouse, policies: list[dict[str, Any]], client: End = HERE, server: End = HERE, port: int = 23456
) -> bool | None:
    load(warehouse, {"staging.policy_observation": policies})
    return door_open(load_policies(warehouse), client, server, port, "TCP", TEN)


def test_d2_label_policies_close_between_zones_and_open_within(warehouse: Warehouse) -> None:
    assert opens(warehouse, zone_policies(), HERE, THERE) is False
    assert door_open(load_policies(warehouse), HERE, HERE, 23456, "TCP", TEN) is True


def with_spec(spec: dict[str, Any], kind: str = "CiliumNetworkPolicy") -> list[dict[str, Any]]:
    return [policy("p", {}, [], kind=kind, document=json.dumps({"spec": spec}))]


ALL: dict[str, Any] = {"endpointSelector": {}}
TO_ALL: dict[str, Any] = {"toEndpoints": [{}]}


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ({**ALL}, True),
        ({**ALL, "egress": [{}]}, False),
        ({**ALL, "egress": [TO_ALL]}, True),
        ({**ALL, "egress": [{"toEndpoints": []}]}, False),
        ({**ALL, "egress": [{"toCIDR": ["10.0.0.0/8"]}]}, False),
        ({**ALL, "egress": [{"toEntities": ["cluster"]}]}, True),
        ({**ALL, "egress": [{**TO_ALL, "toPorts": [{"ports": [{"port": "23456", "protocol": "TCP"}]}]}]}, True),
        ({**ALL, "egress": [{**TO_ALL, "toPorts": [{"ports": [{"port": "80", "protocol": "TCP"}]}]}]}, False),
        ({**ALL, "egress": [{**TO_ALL, "toPorts": [{"ports": [{"port": "20000", "endPort": 30000}]}]}]}, True),
        ({**ALL, "egress": [{**TO_ALL, "toPorts": [{"ports": [{"port": "http"}]}]}]}, None),
        ({**ALL, "egress": [{"toServices": [{}]}]}, None),
        ({**ALL, "egressDeny": [TO_ALL], "egress": [TO_ALL]}, False),
        ({**ALL, "egressDeny": [{"toEndpoints": [{"matchLabels": {"app": "x"}}]}]}, False),
        ({**ALL, "egress": [TO_ALL], "egressDeny": [{"toServices": [{}]}]}, None),
        ({**ALL, "egress": "open, please"}, None),
        ({"endpointSelector": {"matchLabels": ["zone"]}, "egress": [TO_ALL]}, None),
        ({"endpointSelector": {"matchLabels": {"reserved:host": ""}}, "egress": [TO_ALL]}, None),
        ({**ALL, "egress": [{}], "enableDefaultDeny": {"egress": False}}, True),
        ({"endpointSelector": {"matchLabels": {"app": "other"}}, "egress": [{}]}, True),
        ({**ALL, "ingress": [{"fromEndpoints": [{"matchLabels": {"k8s:zone": "zone-a"}}]}]}, True),
        ({**ALL, "ingress": [{"fromEndpoints": [{"matchLabels": {"io.kubernetes.pod.namespace": "x"}}]}]}, False),
    ],
)  # fmt: skip
def test_d2_cilium_doors_open_closed_or_unknown(
    warehouse: Warehouse, spec: dict[str, Any], answer: bool | None
) -> None:
    assert opens(warehouse, with_spec(spec)) is answer


@pytest.mark.parametrize(
    ("spec", "answer"),
    [
        ({"podSelector": {}, "policyTypes": ["Ingress"]}, False),
        ({"podSelector": {}, "ingress": [{}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "train"}}}]}]}, True),
        ({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}, False),
        ({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]}]}, None),
        ({"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}, False),
        ({"podSelector": {}, "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "y"}}}]}]}, False),
    ],
)
def test_d2_kubernetes_doors_open_closed_or_unknown(
    warehouse: Warehouse, spec: dict[str, Any], answer: bool | None
) -> None:
    assert opens(warehouse, with_spec(spec, "NetworkPolicy")) is answer


# --- the oracle: published policies with the verdicts of Cilium's own tests and of the lab --------------------------
NAMESPACE = "cilium-test"


def published(shared_data: Path, names: list[str], namespace: str) -> list[Policy]:
    """Policies of real YAML files, without Go templates."""
    found = []
    for name in names:
        (path,) = (shared_data / "policies").glob(f"*/{name}.yaml")
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document is not None:
                found.append(Policy("c", document["kind"], namespace, document["metadata"]["name"], [(0, document)]))
    return found


@pytest.mark.parametrize(
    ("client_zone", "server_zone", "answer"),
    [("zone-a", "zone-b", False), ("zone-a", "zone-a", True), ("zone-a", None, False)],
)
def test_d2_the_labs_doors_key_on_the_label_zone(
    shared_data: Path, client_zone: str, server_zone: str | None, answer: bool
) -> None:
    policies = published(shared_data, ["topology-network-policy"], "ml-demo")
    worker = End("ml-demo", {"app": "ml-training", "role": "gpu-worker", "zone": client_zone})
    zone = {"zone": server_zone} if server_zone else {}
    coordinator = End("ml-demo", {"app": "ml-training", "role": "coordinator", **zone})
    assert door_open(policies, worker, coordinator, 9999, "TCP", TEN) is answer


CLIENT = End(NAMESPACE, {"kind": "client", "name": "client"})
CLIENT_2 = End(NAMESPACE, {"kind": "client", "name": "client2", "other": "client"})
ECHO = End(NAMESPACE, {"kind": "echo", "name": "echo-same-node", "other": "echo"})


@pytest.mark.parametrize(
    ("names", "client", "server", "answer"),
    [
        (["deny-all-ingress"], CLIENT, ECHO, False),
        (["deny-all-egress"], CLIENT, ECHO, False),
        (["allow-cluster-entity"], CLIENT, ECHO, True),
        (["client-ingress-from-client2"], CLIENT_2, CLIENT, True),
        (["client-ingress-from-client2"], ECHO, CLIENT, False),
        (["echo-ingress-from-other-client"], CLIENT_2, ECHO, True),
        (["echo-ingress-from-other-client"], CLIENT, ECHO, False),
        (["client-egress-to-echo"], CLIENT, ECHO, True),
        (["client-egress-to-echo"], CLIENT, CLIENT_2, False),
        (["allow-all-egress", "allow-all-ingress", "client-egress-to-echo-expression-deny"], CLIENT, ECHO, False),
        (["allow-all-egress", "allow-all-ingress", "client-egress-to-echo-expression-deny"], CLIENT_2, ECHO, True),
    ],
)
def test_d2_doors_agree_with_ciliums_own_connectivity_tests(
    shared_data: Path, names: list[str], client: End, server: End, answer: bool
) -> None:
    assert door_open(published(shared_data, names, NAMESPACE), client, server, 8080, "TCP", TEN) is answer

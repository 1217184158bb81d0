"""First remedies in plain words (F2): what to change, where in the job's own object, and why it would help.

A remedy is offered only where it is known to help: a pin never opens a door that keys on a label, a change of label
is offered only if the captured policies, evaluated with it, open the door, and a zone spread constraint never is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_blocked import labels_of
from models.findings_doors import End, Policy, door_open
from models.findings_finding import FOREVER_NS, Finding, Run, rows_of, zone_names
from models.parameters import Parameters

ZONE_LABEL = "topology.kubernetes.io/zone"
# where the pod template of each role stands in the object that the user writes (kind -> role -> path)
TEMPLATES: dict[str, dict[str, str]] = {
    "PyTorchJob": {
        "coordinator": "spec.pytorchReplicaSpecs.Master.template.spec",
        "worker": "spec.pytorchReplicaSpecs.Worker.template.spec",
    },
    "TFJob": {
        "coordinator": "spec.tfReplicaSpecs.Chief.template.spec",
        "worker": "spec.tfReplicaSpecs.Worker.template.spec",
    },
    "XGBoostJob": {
        "coordinator": "spec.xgbReplicaSpecs.Master.template.spec",
        "worker": "spec.xgbReplicaSpecs.Worker.template.spec",
    },
    "PaddleJob": {
        "coordinator": "spec.paddleReplicaSpecs.Master.template.spec",
        "worker": "spec.paddleReplicaSpecs.Worker.template.spec",
    },
    "JAXJob": {
        "coordinator": "spec.jaxReplicaSpecs.Worker.template.spec",
        "worker": "spec.jaxReplicaSpecs.Worker.template.spec",
    },
    "MPIJob": {
        "coordinator": "spec.mpiReplicaSpecs.Launcher.template.spec",
        "worker": "spec.mpiReplicaSpecs.Worker.template.spec",
    },
    "RayJob": {
        "coordinator": "spec.rayClusterSpec.headGroupSpec.template.spec",
        "worker": "spec.rayClusterSpec.workerGroupSpecs[].template.spec",
    },
    "RayCluster": {
        "coordinator": "spec.headGroupSpec.template.spec",
        "worker": "spec.workerGroupSpecs[].template.spec",
    },
    "JobSet": {
        "coordinator": "spec.replicatedJobs[].template.spec.template.spec",
        "worker": "spec.replicatedJobs[].template.spec.template.spec",
    },
    "TrainJob": {
        "coordinator": "spec.podTemplateOverrides[] (Trainer 2.0: spec.podSpecOverrides[]; 2.2 and later: spec.runtimePatches[])"
        " for `node` and, where there is one, `launcher`",
        "worker": "spec.podTemplateOverrides[] (Trainer 2.0: spec.podSpecOverrides[]; 2.2 and later: spec.runtimePatches[])"
        " for `node` and, where there is one, `launcher`",
    },
    "LeaderWorkerSet": {
        "coordinator": "spec.leaderWorkerTemplate.leaderTemplate.spec",
        "worker": "spec.leaderWorkerTemplate.workerTemplate.spec",
    },
    "VolcanoJob": {"coordinator": "spec.tasks[].template.spec", "worker": "spec.tasks[].template.spec"},
    "Job": {"coordinator": "spec.template.spec", "worker": "spec.template.spec"},
}
_ANY_TEMPLATE = {"coordinator": "the coordinator's pod template", "worker": "the workers' pod template"}
_NOTES = {
    "TrainJob": "A TrainJob can be edited only while it is suspended.",
    "PyTorchJob": "It takes effect on pods that are created anew.",
    "MPIJob": "It takes effect on pods that are created anew.",
}


@dataclass(frozen=True)
class Target:
    """The zone to bring a run together in. Counts are GPUs at the time of the finding."""

    zone: str
    zone_key: int
    gpus_there: float
    gpus_elsewhere: float
    free: float
    only_gpu_nodes: bool

    @property
    def fits(self) -> bool:
        return self.free >= self.gpus_elsewhere


def template_path(kind: str, role: str) -> str:
    return TEMPLATES.get(kind, _ANY_TEMPLATE).get(role, _ANY_TEMPLATE["worker"])


def best_zone(warehouse: Warehouse, run: Run, at_ns: int) -> Target | None:
    """The zone with most GPUs of the run, ties by free GPUs, then by name; None when no zone is known."""
    by_zone: dict[int, float] = {}
    for pod in run.members_at(at_ns):
        if pod["gpus"] > 0:
            by_zone[pod["zone_key"]] = by_zone.get(pod["zone_key"], 0.0) + pod["gpus"]
    total = sum(by_zone.values())
    by_zone.pop(-1, None)
    if not by_zone:
        return None
    names, free = zone_names(warehouse), _free_gpus(warehouse, run.job["cluster"], at_ns)
    zone_key = min(by_zone, key=lambda key: (-by_zone[key], -free.get(key, (0.0, 0))[0], names.get(key, "")))
    free_there, cpu_nodes = free.get(zone_key, (0.0, 0))
    zone = names.get(zone_key, "the zone of most of its GPUs")
    return Target(zone, zone_key, by_zone[zone_key], total - by_zone[zone_key], free_there, cpu_nodes == 0)


def _free_gpus(warehouse: Warehouse, cluster: str, at_ns: int) -> dict[int, tuple[float, int]]:
    """Zone key to (allocatable GPUs that no pod holds, nodes without GPUs) at an instant."""
    rows = warehouse.query(
        "SELECT n.zone_key, CAST(sum(greatest(coalesce(n.gpus_allocatable, n.gpus) - coalesce(h.gpus, 0), 0)) AS DOUBLE) AS free,"
        " CAST(count(*) FILTER (WHERE n.gpus = 0) AS BIGINT) AS cpu_nodes FROM core.node_life AS n"
        " LEFT JOIN (SELECT node_key, sum(gpus) AS gpus FROM core.pod_life WHERE held_from_ns <= $at"
        "  AND coalesce(held_to_ns, $forever) > $at GROUP BY node_key) AS h ON h.node_key = n.node_key"
        " WHERE n.cluster = $cluster AND n.valid_from_ns <= $at AND n.valid_to_ns > $at AND n.zone_key <> -1"
        " GROUP BY n.zone_key ORDER BY n.zone_key",
        {"at": at_ns, "cluster": cluster, "forever": FOREVER_NS},
    )
    return {row["zone_key"]: (row["free"], row["cpu_nodes"]) for row in rows_of(rows)}


def pin(run: Run, target: Target, roles: tuple[str, ...]) -> str:
    """A required node affinity on the zone label, where to put it, why that zone, and whether the GPUs fit."""
    paths = " and ".join(dict.fromkeys(template_path(run.job["kind"], role) for role in roles))
    words = [
        f"Pin {'the coordinator' if roles == ('coordinator',) else 'all of the run'} to zone {target.zone}: a required nodeAffinity"
        f" on {ZONE_LABEL} In [{target.zone}] in {paths}.",
        f"That zone already holds {target.gpus_there:g} of the run's {target.gpus_there + target.gpus_elsewhere:g} GPUs.",
    ]
    if target.gpus_elsewhere > 0 and target.fits:
        words.append(f"The other {target.gpus_elsewhere:g} fit: {target.free:g} GPUs were free there.")
    elif target.gpus_elsewhere > 0:
        words.append(
            f"Only {target.free:g} GPUs were free there and {target.gpus_elsewhere:g} more are needed:"
            " until they are free the run would wait."
        )
    if target.only_gpu_nodes and "coordinator" in roles:
        words.append(
            "No node without GPUs was seen in that zone: the coordinator may need a toleration of the GPU taint."
        )
    if run.job["kind"] in _NOTES:
        words.append(_NOTES[run.job["kind"]])
    return " ".join(words)


# --- per kind ---------------------------------------------------------------------------------------------------
def for_split(
    warehouse: Warehouse, run: Run, finding: Finding, policies: list[Policy], parameters: Parameters, at_ns: int
) -> str | None:
    """Bring the members together (split, slow, billed): a pin, with capacity stated; never past a door that stays closed."""
    target = best_zone(warehouse, run, at_ns)
    if target is None:
        return None
    members = run.members_at(at_ns)
    away = [pod for pod in members if pod["zone_key"] not in (-1, target.zone_key)]
    if not away:
        return None
    held = [policy for policy in policies if policy.cluster == run.job["cluster"]]
    closed = _closed_pair(members, held, at_ns)
    if closed is not None:
        door = replace(finding, role=closed[0]["role"], peer_role=closed[1]["role"], port="dynamic", opened_ns=at_ns)
        return for_blocked(warehouse, run, door, policies, parameters)
    roles = tuple(role for role in ("coordinator", "worker") if any(pod["role"] == role for pod in members))
    only_coordinator = all(pod["role"] == "coordinator" and pod["gpus"] == 0 for pod in away)
    return pin(run, target, ("coordinator",) if only_coordinator else roles)


def _closed_pair(
    members: list[dict[str, Any]], policies: list[Policy], at_ns: int
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A worker and a member that the captured policies keep apart on every port; host-network pods have no doors (D2)."""
    pods = [pod for pod in members if not pod["host_network"]]
    kinds = {(pod["role"], pod["labels"]): pod for pod in pods}
    for client in kinds.values():
        for server in kinds.values():
            if client["role"] != "worker" or (client is server and len(pods) > 1):
                continue
            if door_open(policies, _end(client), _end(server), None, "TCP", at_ns) is False:
                return client, server
    return None


def for_blocked(
    warehouse: Warehouse, run: Run, finding: Finding, policies: list[Policy], parameters: Parameters
) -> str | None:
    """Open the door: by the label that it keys on (and the zone that goes with it), else by the policies themselves."""
    client, server = _ends(run, finding)
    held = [policy for policy in policies if policy.cluster == run.job["cluster"]]
    if finding.peer_role == "dns":
        names = _names(held, [client]) if client else ""
        return (
            f"Allow UDP and TCP port 53 to the cluster's DNS in the egress rules{names} that select the {finding.role}."
        )
    if client is None or server is None:
        return None
    port, protocol = _port(finding)
    ends = (_end(client), _end(server))
    label = _label_remedy(warehouse, run, finding, held, (client, server), parameters)
    if label is not None:
        return label
    if held and door_open(held, *ends, port, protocol, finding.opened_ns) is True:
        return "The captured policies would let this pass: look for a policy that changed between two captures."
    where = f"port {finding.port}" if finding.port != "dynamic" else "the ports that it chooses at run time"
    return (
        f"Allow {finding.role} to {finding.peer_role} of this run on {where}, at both doors: egress of the {finding.role}"
        f" and ingress of the {finding.peer_role}{_names(held, [client, server])}."
        " Moving pods between zones would not open a door that a policy closes by label."
    )


def _label_remedy(
    warehouse: Warehouse,
    run: Run,
    finding: Finding,
    policies: list[Policy],
    pods: tuple[dict[str, Any], dict[str, Any]],
    parameters: Parameters,
) -> str | None:

    target = best_zone(warehouse, run, finding.opened_ns)
    selecting = [p for p in policies if any(p.selects(pod["namespace"], labels_of(pod)) for pod in pods)]
    keys = sorted({key for p in selecting for key in p.selector_keys} & set(parameters.declared_zone_labels))
    if target is None:
        return None
    for key in keys:
        values = [labels_of(pod).get(key) for pod in pods]
        wanted = _value_in(run, key, target.zone_key, finding.opened_ns)
        if wanted is None or values[0] == values[1]:
            continue
        port, protocol = _port(finding)
        changed = [End(pod["namespace"], {**labels_of(pod), key: wanted}) for pod in pods]
        if door_open(policies, changed[0], changed[1], port, protocol, finding.opened_ns) is not True:
            continue
        moved = [pod for pod, value in zip(pods, values, strict=True) if value != wanted]
        roles = tuple(dict.fromkeys(pod["role"] for pod in moved))
        names = ", ".join(sorted({p.name for p in selecting if key in p.selector_keys}))
        label_paths = " and ".join(
            template_path(run.job["kind"], role).replace("template.spec", "template.metadata.labels") for role in roles
        )
        words = (
            f"The door keys on the pod label `{key}` ({names}): set `{key}: {wanted}` on"
            f" {' and '.join(f'the {role}' for role in roles)} ({label_paths}), as on the pods that run in that zone."
        )
        if all(pod["zone_key"] == target.zone_key for pod in moved):
            return f"{words} They already run in zone {target.zone}: only the label is wrong."
        pinned = roles if roles == ("coordinator",) else ("coordinator", "worker")
        return f"{pin(run, target, pinned)} The pin alone does not open the door. {words}"
    return None


def _value_in(run: Run, key: str, zone_key: int, at_ns: int) -> str | None:
    """The label's value on most GPUs of the run in that zone."""
    weights: dict[str, float] = {}
    for pod in run.members_at(at_ns):
        value = labels_of(pod).get(key)
        if pod["zone_key"] == zone_key and pod["gpus"] > 0 and value is not None:
            weights[value] = weights.get(value, 0.0) + pod["gpus"]
    return min(weights, key=lambda value: (-weights[value], value)) if weights else None


def _ends(run: Run, finding: Finding) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """A pod of each role at the time of the finding, the one farthest from most GPUs first."""
    members = run.members_at(finding.opened_ns)
    client = next((pod for pod in members if pod["role"] == finding.role), None)
    server = next((pod for pod in members if pod["role"] == finding.peer_role and pod is not client), None)
    return client, server


def _end(pod: dict[str, Any]) -> End:
    return End(pod["namespace"], labels_of(pod))


def _port(finding: Finding) -> tuple[int | None, str]:
    if finding.port is None or "/" not in finding.port:
        return None, "TCP"
    number, protocol = finding.port.split("/", 1)
    return int(number), protocol


def _names(policies: list[Policy], pods: list[dict[str, Any]]) -> str:
    names = sorted({p.name for p in policies for pod in pods if p.selects(pod["namespace"], labels_of(pod))})
    return f" (policies that select them: {', '.join(names)})" if names else ""


def for_waiting(missing: int, unscheduled: int, gang: bool) -> str:
    if unscheduled:
        waits = "member waits" if unscheduled == 1 else "members wait"
        words = f"{unscheduled} {waits} for a node: free or add that capacity, or make the run smaller."
    elif missing:
        words = f"{missing} of its members have no pod: look at the job's events and quota."
    else:
        words = "Look at the logs of the member that restarts or does not start."
    if gang:
        return words
    return words + " Gang scheduling (a PodGroup, Kueue or Volcano) keeps GPUs free until all members can start."


def for_unreleased() -> str:
    return (
        "Nothing runs on these GPUs any more: delete the pods, and set cleanPodPolicy (or ttlSecondsAfterFinished)"
        " on the job so that they go when the work is done."
    )

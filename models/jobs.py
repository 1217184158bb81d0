"""Which training job a pod belongs to, and as what (P5, N2): a table of recognisers and one small algorithm.

Sources of the labels and owners: the operators' own code, as listed in the module's table. A recogniser names kind and
name; the run is the uid of the outermost job object, found on the pod, by climbing captured objects, or from its
siblings; where no uid is known, ten minutes without a live pod start a new run. No role is invented (P5).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from models.parameters import SECOND_NS, Parameters

COORDINATOR, WORKER, AUXILIARY, NONE = "coordinator", "worker", "auxiliary", "none"
KUBEFLOW_KINDS = ("PyTorchJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob", "MPIJob")
OPERATOR_KINDS = {f"{kind.lower()}-controller": kind for kind in KUBEFLOW_KINDS} | {"mpi-operator": "MPIJob"}
COORDINATOR_WORDS = {
    "coordinator",
    "master",
    "launcher",
    "head",
    "driver",
    "leader",
    "chief",
    "scheduler",
    "rank0",
    "control",
}
AUXILIARY_WORDS = {"evaluator", "dataset-initializer", "model-initializer", "tensorboard", "submitter"}
TRAINJOB_PARTS = {"node", "launcher", "dataset-initializer", "model-initializer"}
# objects that wrap a job and are not the job (facts: owner walk); climbing stops below them
WRAPPERS = {"Workflow", "CronJob", "ScheduledWorkflow", "AppWrapper", "DynamoGraphDeployment"}
# kinds that are a user's job; climbing to one of them is climbing to the job
JOB_KINDS = {*KUBEFLOW_KINDS, "JobSet", "TrainJob", "RayJob", "RayCluster", "LeaderWorkerSet", "SparkApplication"}
GANG_KINDS = {
    *KUBEFLOW_KINDS,
    "JobSet",
    "TrainJob",
    "RayJob",
    "RayCluster",
    "VolcanoJob",
    "LeaderWorkerSet",
    "PodGroup",
}
QUEUE_LABELS = (
    "kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "runai/queue",
    "kai.scheduler/queue",
)  # fmt: skip
POD_GROUP_KEYS = (
    "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io/name", "scheduling.k8s.io/group-name",
)  # fmt: skip
PIPELINE_LABELS = ("workflows.argoproj.io/workflow", "pipeline/runid")
Labels = dict[str, str]


@dataclass(frozen=True)
class PodFacts:
    """What the resolver may look at: one pod, its labels, annotations and controller."""

    cluster: str
    uid: str
    namespace: str
    name: str
    labels: Labels
    annotations: Labels
    owner_kind: str | None
    owner_name: str | None
    owner_uid: str | None
    gpus: float
    created_ns: int
    from_ns: int
    to_ns: int


@dataclass(frozen=True)
class Workload:
    """A captured job object."""

    cluster: str
    kind: str
    namespace: str
    name: str
    uid: str
    owner_kind: str | None
    owner_name: str | None
    owner_uid: str | None
    created_ns: int | None
    finished_ns: int | None
    state: str | None
    replicas: dict[str, int]
    min_members: int | None
    gang_by_itself: bool  # batch Job: Indexed with a subdomain
    labels: Labels
    volcano: bool = False


@dataclass(frozen=True)
class Membership:
    """A pod's place in a job. `run` is None until it is known."""

    kind: str
    name: str
    role: str
    replica_type: str | None
    index: int | None
    resolved_by: str
    run: str | None = None


@dataclass
class Captured:
    """Captured job objects, by uid and by name."""

    by_uid: dict[tuple[str, str], Workload] = field(default_factory=dict)
    by_name: dict[tuple[str, str, str, str], list[Workload]] = field(default_factory=dict)
    below: dict[tuple[str, str], list[Workload]] = field(default_factory=dict)  # by the uid of the owner
    of_kind: dict[tuple[str, str, str], list[Workload]] = field(default_factory=dict)  # by cluster, namespace, kind

    @classmethod
    def of(cls, workloads: Iterable[Workload]) -> Captured:
        captured = cls()
        for workload in workloads:
            captured.by_uid[(workload.cluster, workload.uid)] = workload
            key = (workload.cluster, workload.namespace, workload.kind, workload.name)
            captured.by_name.setdefault(key, []).append(workload)
            captured.of_kind.setdefault(key[:3], []).append(workload)
            if workload.owner_uid is not None:
                captured.below.setdefault((workload.cluster, workload.owner_uid), []).append(workload)
        return captured

    def owner_of(self, workload: Workload) -> Workload | None:
        """The captured owner; a namesake with another uid is not it."""
        if workload.owner_uid is None or workload.owner_kind in WRAPPERS:
            return None
        return self.by_uid.get((workload.cluster, workload.owner_uid))

    def outermost(self, workload: Workload) -> Workload:
        seen = {workload.uid}
        while (above := self.owner_of(workload)) is not None and above.uid not in seen:
            seen.add(above.uid)
            workload = above
        return workload


def resolve(pods: list[PodFacts], captured: Captured, parameters: Parameters) -> dict[tuple[str, str], Membership]:
    """(cluster, pod uid) -> membership with its run, for every pod that belongs to a job."""
    found = {}
    for pod in pods:
        membership = _recognise(pod, captured, parameters)
        if membership is not None:
            found[(pod.cluster, pod.uid)] = membership
    return _one_coordinator_type(_with_runs(pods, found, parameters), pods)


def _recognise(pod: PodFacts, captured: Captured, parameters: Parameters) -> Membership | None:
    """The first recogniser that holds; the order is the precedence."""
    mapped = _mapped(pod, parameters)
    if mapped is not None:
        return mapped
    for recogniser in RECOGNISERS:
        membership = recogniser(pod, captured)
        if membership is not None:
            return membership
    if pod.gpus > 0:
        return Membership("Pod", pod.name, NONE, None, None, "pod", pod.uid)
    return None


def _index(*values: object) -> int | None:
    for value in values:
        if value is not None and str(value).isdigit():
            return int(str(value))
    return None


def _role(word: str | None) -> str:
    if word is None:
        return NONE
    if word in COORDINATOR_WORDS:
        return COORDINATOR
    return AUXILIARY if word in AUXILIARY_WORDS else WORKER


def _owned_by(pod: PodFacts, kind: str, name: str) -> str | None:
    return pod.owner_uid if pod.owner_kind == kind and pod.owner_name == name else None


def _named_run(pod: PodFacts, captured: Captured, kind: str, name: str) -> str | None:
    """uid of the captured object of that name that was there when the pod was created."""
    namesakes = captured.by_name.get((pod.cluster, pod.namespace, kind, name), [])
    earlier = [w for w in namesakes if w.created_ns is None or w.created_ns <= pod.created_ns + 5 * SECOND_NS]
    return max(earlier, key=lambda w: w.created_ns or 0).uid if earlier else None


def _mapped(pod: PodFacts, parameters: Parameters) -> Membership | None:
    """Configured label pairs (job label, role label): the user's word comes first. A pod without the role label has no role."""
    for job_label, role_label in parameters.plain_job_labels:
        name, word = pod.labels.get(job_label), pod.labels.get(role_label)
        if name:
            role = NONE if not word else _role(word) if word in COORDINATOR_WORDS or "worker" in word else AUXILIARY
            return Membership("Labels", name, role, word, None, "mapping")
    return None


# label-only frameworks: kind, (label, value) that marks it, label of the job, of the role, of the index, of the run
LABELLED: tuple[tuple[str, tuple[str, str] | None, str, str | None, str | None, str | None], ...] = (
    ("SparkApplication", None, "sparkoperator.k8s.io/app-name", "spark-role", "spark-exec-id", "sparkoperator.k8s.io/submission-id"),
    ("SkyPilotCluster", ("parent", "skypilot"), "skypilot-cluster", "ray-node-type", None, None),
    ("DeterminedTask", None, "determined.ai/task_id", None, None, "determined.ai/task_id"),
)  # fmt: skip


def _labelled(pod: PodFacts, captured: Captured) -> Membership | None:
    for kind, mark, job, role, index, run in LABELLED:
        name = pod.labels.get(job)
        if name and (mark is None or pod.labels.get(mark[0]) == mark[1]):
            word = pod.labels.get(role) if role else None
            number = _index(pod.labels.get(index)) if index else None
            return Membership(kind, name, _role(word), word, number, "label", pod.labels.get(run) if run else None)
    return None


def _ray(pod: PodFacts, captured: Captured) -> Membership | None:
    cluster, labels = pod.labels.get("ray.io/cluster"), pod.labels
    origin = labels.get("ray.io/originated-from-cr-name")
    if origin and labels.get("ray.io/originated-from-crd") == "RayJob" and labels.get("ray.io/is-ray-node") != "yes":
        run = _named_run(pod, captured, "RayJob", origin)
        return Membership("RayJob", origin, AUXILIARY, "submitter", None, "label", run)
    if not cluster or labels.get("ray.io/is-ray-node", "yes") != "yes":
        return None
    kind_of_node = labels.get("ray.io/node-type")
    role = COORDINATOR if kind_of_node == "head" else WORKER if kind_of_node == "worker" else AUXILIARY
    index = _index(labels.get("ray.io/worker-group-replica-index"))
    uid = _owned_by(pod, "RayCluster", cluster) or _named_run(pod, captured, "RayCluster", cluster)
    known = captured.by_uid.get((pod.cluster, uid)) if uid else None
    top = captured.outermost(known) if known else None
    if top is not None and top.kind == "RayJob":
        return Membership("RayJob", top.name, role, kind_of_node, index, "owner", top.uid)
    if known is not None and known.owner_kind == "RayJob" and known.owner_name and known.owner_uid:
        return Membership("RayJob", known.owner_name, role, kind_of_node, index, "owner", known.owner_uid)
    if known is not None:
        return Membership("RayCluster", cluster, role, kind_of_node, index, "owner", uid)
    # without the RayCluster object nobody says whether a RayJob is above it; its name may
    job = next(
        (
            job
            for job in captured.of_kind.get((pod.cluster, pod.namespace, "RayJob"), [])
            if re.fullmatch(re.escape(job.name) + r"(-raycluster)?-[a-z0-9]{5}", cluster)
        ),
        None,
    )
    if job is not None:
        run = _named_run(pod, captured, "RayJob", job.name)
        return Membership("RayJob", job.name, role, kind_of_node, index, "rayjob_suffix", run)
    return Membership("RayCluster", cluster, role, kind_of_node, index, "inferred", uid)


def _kubeflow(pod: PodFacts, captured: Captured) -> Membership | None:
    labels = pod.labels
    old = labels.get("group-name") == "kubeflow.org"
    name = labels.get("training.kubeflow.org/job-name") or (labels.get("job-name") if old else None)
    if not name:
        return None
    kind = pod.owner_kind if pod.owner_kind in KUBEFLOW_KINDS else None
    kind = kind or OPERATOR_KINDS.get(labels.get("training.kubeflow.org/operator-name", ""))
    if kind is None:
        return None
    job_role = labels.get("training.kubeflow.org/job-role") or (labels.get("job-role") if old else None)
    replica = labels.get("training.kubeflow.org/replica-type") or (labels.get("replica-type") if old else None)
    replica = (replica or job_role or "").lower() or None
    role = COORDINATOR if job_role in ("master", "launcher") else _role(replica)
    if kind == "PyTorchJob" and replica == "worker" and job_role != "master":
        role = WORKER
    index = _index(labels.get("training.kubeflow.org/replica-index"), labels.get("replica-index") if old else None)
    run = _owned_by(pod, kind, name) or _climbed(pod, captured, kind) or _named_run(pod, captured, kind, name)
    return Membership(kind, name, role, replica, index, "owner" if pod.owner_kind == kind else "label", run)


def _climbed(pod: PodFacts, captured: Captured, kind: str) -> str | None:
    """uid of the job of that kind above the pod's owner, by captured objects."""
    owner = captured.by_uid.get((pod.cluster, pod.owner_uid)) if pod.owner_uid else None
    if owner is None:
        return None
    if owner.owner_kind == kind and owner.owner_uid:
        return owner.owner_uid
    top = captured.outermost(owner)
    return top.uid if top.kind == kind else None


def _volcano(pod: PodFacts, captured: Captured) -> Membership | None:
    name = pod.labels.get("volcano.sh/job-name") or pod.annotations.get("volcano.sh/job-name")
    if not name:
        return None
    task = pod.labels.get("volcano.sh/task-spec") or pod.annotations.get("volcano.sh/task-spec")
    run = pod.owner_uid if pod.owner_kind == "Job" and pod.owner_name == name else None
    index = _index(pod.labels.get("volcano.sh/task-index"))
    return Membership("VolcanoJob", name, _role(task), task, index, "label", run)


def _leader_worker_set(pod: PodFacts, captured: Captured) -> Membership | None:
    name = pod.labels.get("leaderworkerset.sigs.k8s.io/name")
    if not name:
        return None
    index = _index(pod.labels.get("leaderworkerset.sigs.k8s.io/worker-index"))
    group = pod.labels.get("leaderworkerset.sigs.k8s.io/group-index", "0")
    role = COORDINATOR if index == 0 else WORKER
    uid = _climbed(pod, captured, "LeaderWorkerSet") or _named_run(pod, captured, "LeaderWorkerSet", name)
    return Membership("LeaderWorkerSet", f"{name}-{group}", role, "leader" if index == 0 else "worker", index, "label",
                      f"{uid}-{group}" if uid else None)  # fmt: skip


def _jobset(pod: PodFacts, captured: Captured) -> Membership | None:
    labels = {**pod.annotations, **pod.labels}
    name = labels.get("jobset.sigs.k8s.io/jobset-name")
    if not name:
        return None
    part = labels.get("jobset.sigs.k8s.io/replicatedjob-name")
    uid = labels.get("jobset.sigs.k8s.io/jobset-uid") or _climbed(pod, captured, "JobSet")
    uid = uid or _named_run(pod, captured, "JobSet", name)
    known = captured.by_uid.get((pod.cluster, uid)) if uid else None
    owned = known is not None and known.owner_kind == "TrainJob"
    train = owned or (known is None and part in TRAINJOB_PARTS)
    if owned and known is not None and known.owner_uid:
        uid = known.owner_uid
    elif train:
        uid = _named_run(pod, captured, "TrainJob", name) or uid
    index = _index(labels.get("batch.kubernetes.io/job-completion-index"))
    job_index = _index(labels.get("jobset.sigs.k8s.io/job-index"))
    parts = list(known.replicas) if known is not None else []
    role = _jobset_role(pod, labels, parts, index, job_index, train)
    return Membership("TrainJob" if train else "JobSet", name, role, part, index, "jobset_name", uid)


def _jobset_role(
    pod: PodFacts, labels: Labels, parts: list[str], index: int | None, job_index: int | None, train: bool
) -> str:
    """The declared coordinator, else the part that is named so, else index 0 of the first part where that is known."""
    part = labels.get("jobset.sigs.k8s.io/replicatedjob-name")
    if part in AUXILIARY_WORDS:
        return AUXILIARY
    endpoint = labels.get("jobset.sigs.k8s.io/coordinator")
    if endpoint:
        return COORDINATOR if pod.name.startswith(endpoint.split(".")[0] + "-") else WORKER
    if part in COORDINATOR_WORDS:
        return COORDINATOR
    if train and "launcher" in parts:
        return WORKER
    lowest = index in (0, None) and job_index in (0, None) and not (index is None and job_index is None)
    everywhere, here = (
        labels.get(f"jobset.sigs.k8s.io/{key}") for key in ("global-replicas", "replicatedjob-replicas")
    )
    first = (
        part == "node"
        if train
        else labels.get("jobset.sigs.k8s.io/job-global-index") == "0"
        or (bool(parts) and part == parts[0] and not COORDINATOR_WORDS & set(parts))
        or (everywhere is not None and everywhere == here)
    )
    return COORDINATOR if lowest and first else WORKER


def _kueue_group(pod: PodFacts, captured: Captured) -> Membership | None:
    name = pod.labels.get("kueue.x-k8s.io/pod-group-name") or pod.annotations.get("kueue.x-k8s.io/pod-group-name")
    return Membership("PodGroup", name, WORKER, None, None, "label") if name else None


def _batch_job(pod: PodFacts, captured: Captured) -> Membership | None:
    labels = {**pod.annotations, **pod.labels}
    name = labels.get("batch.kubernetes.io/job-name") or labels.get("job-name")
    if pod.owner_kind == "Job":
        name = name or pod.owner_name
    if not name or pod.owner_kind not in ("Job", None):
        return None
    uid = pod.owner_uid or labels.get("batch.kubernetes.io/controller-uid") or labels.get("controller-uid")
    index = _index(labels.get("batch.kubernetes.io/job-completion-index"))
    known = captured.by_uid.get((pod.cluster, uid)) if uid else None
    many = known is not None and sum(known.replicas.values()) > 1
    role = COORDINATOR if index == 0 and many else WORKER
    if known is not None and known.owner_kind in JOB_KINDS and known.owner_name and known.owner_uid:
        above = captured.owner_of(known)
        top = captured.outermost(above) if above is not None else None
        kind, name, uid = (
            (top.kind, top.name, top.uid) if top else (known.owner_kind, known.owner_name, known.owner_uid)
        )
        return Membership(kind, name, NONE, None, index, "owner", uid)
    return Membership("Job", name, role, "worker", index, "owner" if pod.owner_kind == "Job" else "label", uid)


def _pod_group(pod: PodFacts, captured: Captured) -> Membership | None:
    for key in POD_GROUP_KEYS:
        name = pod.labels.get(key) or pod.annotations.get(key)
        if name:
            return Membership("PodGroup", name, WORKER, None, None, "label")
    return None


def _slurm_node(pod: PodFacts, captured: Captured) -> Membership | None:
    """A slurmd pod is a node of another scheduler, whose jobs no pod names: its GPUs stand under the pod, and it says why."""
    if pod.gpus > 0 and pod.labels.get("app.kubernetes.io/name") == "slurmd":
        return Membership("Pod", pod.name, NONE, None, None, "slurm_node", pod.uid)
    return None


Recogniser = Callable[[PodFacts, Captured], Membership | None]
RECOGNISERS: tuple[Recogniser, ...] = (
    _labelled, _ray, _kubeflow, _volcano, _leader_worker_set, _jobset, _kueue_group, _batch_job, _pod_group, _slurm_node,
)  # fmt: skip


# --- runs ----------------------------------------------------------------------------------------------------------
def _with_runs(
    pods: list[PodFacts], found: dict[tuple[str, str], Membership], parameters: Parameters
) -> dict[tuple[str, str], Membership]:
    """Give each membership its run: its own uid, else that of siblings alive at the time, else a gap-separated run."""
    groups: dict[tuple[str, str, str, str], list[PodFacts]] = {}
    for pod in pods:
        membership = found.get((pod.cluster, pod.uid))
        if membership is not None:
            groups.setdefault((pod.cluster, pod.namespace, membership.kind, membership.name), []).append(pod)
    resolved = dict(found)
    for members in groups.values():
        known = [pod for pod in members if found[(pod.cluster, pod.uid)].run is not None]
        spans: dict[str, tuple[int, int]] = {}
        for pod in known:
            run = str(found[(pod.cluster, pod.uid)].run)
            low, high = spans.get(run, (pod.from_ns, pod.to_ns))
            spans[run] = (min(low, pod.from_ns), max(high, pod.to_ns))
        lone = []
        for pod in sorted(members, key=lambda p: (p.from_ns, p.uid)):
            if found[(pod.cluster, pod.uid)].run is not None:
                continue
            beside = [run for run, (low, high) in spans.items() if pod.from_ns < high and low < pod.to_ns]
            if len(beside) == 1:
                resolved[(pod.cluster, pod.uid)] = replace(found[(pod.cluster, pod.uid)], run=beside[0])
            else:
                lone.append(pod)
        for run, group in _separated(lone, parameters.run_gap_seconds * SECOND_NS):
            for pod in group:
                resolved[(pod.cluster, pod.uid)] = replace(found[(pod.cluster, pod.uid)], run=run)
    return resolved


def _one_coordinator_type(
    found: dict[tuple[str, str], Membership], pods: list[PodFacts]
) -> dict[tuple[str, str], Membership]:
    """Where a run has a part that is named as its coordinator (a launcher), index 0 of its other parts is a worker."""
    namespaces = {(pod.cluster, pod.uid): pod.namespace for pod in pods}

    def run_of(key: tuple[str, str]) -> tuple[str, str, str, str, str | None]:
        return (key[0], namespaces[key], found[key].kind, found[key].name, found[key].run)

    led = {run_of(key) for key, m in found.items() if m.role == COORDINATOR and m.replica_type in COORDINATOR_WORDS}
    return {
        key: replace(m, role=WORKER)
        if m.role == COORDINATOR and m.replica_type not in COORDINATOR_WORDS and run_of(key) in led
        else m
        for key, m in found.items()
    }


def _separated(pods: list[PodFacts], gap_ns: int) -> list[tuple[str, list[PodFacts]]]:
    """Pods in order of start, cut where none was alive for the gap; each run is named after its first second."""
    runs: list[tuple[str, list[PodFacts]]] = []
    end = None
    for pod in pods:
        if end is None or pod.from_ns - end >= gap_ns:
            runs.append((f"start-{pod.from_ns // SECOND_NS}", []))
            end = pod.to_ns
        runs[-1][1].append(pod)
        end = max(end, pod.to_ns)
    return runs


def declared_size(workload: Workload | None, most_alive: int) -> tuple[int | None, str]:
    """(size, basis) of a run (G4): minimum members, else declared coordinator and worker replicas, else most alive."""
    if workload is not None:
        if workload.min_members is not None:
            return workload.min_members, "ray" if workload.kind.startswith("Ray") else "min_member"
        members = {name: count for name, count in workload.replicas.items() if name not in AUXILIARY_WORDS}
        if members:
            return sum(members.values()), "replicas"
    return (most_alive, "most_alive") if most_alive else (None, "most_alive")


def is_gang(kind: str, workload: Workload | None, parameters: Parameters) -> bool:
    """Does the run wait for all its members (G4)? A batch Job only if Indexed with a subdomain, or configured."""
    if kind == "Job":
        return parameters.gang_batch_jobs or (workload is not None and workload.gang_by_itself)
    return kind in GANG_KINDS


def queue_of(labels: Labels) -> str | None:
    return next((labels[key] for key in QUEUE_LABELS if labels.get(key)), None)


def pipeline_of(labels: Labels) -> str | None:
    return next((labels[key] for key in PIPELINE_LABELS if labels.get(key)), None)


def parse_map(text: str | None) -> dict[str, Any]:
    """A JSON object of staging as a dict; absent or not an object is empty."""
    value = json.loads(text) if text else {}
    return value if isinstance(value, dict) else {}

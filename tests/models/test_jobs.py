"""Job identity: recognisers, precedence, roles (P5) and runs (N2). Labels as the operators write them."""

from __future__ import annotations

from typing import Any

import pytest

from models.jobs import (
    AUXILIARY,
    COORDINATOR,
    NONE,
    WORKER,
    Captured,
    PodFacts,
    Workload,
    declared_size,
    is_gang,
    pipeline_of,
    queue_of,
    resolve,
)
from models.parameters import MINUTE_NS, Parameters

KF = "training.kubeflow.org/"
JS = "jobset.sigs.k8s.io/"


def pod(uid: str = "p1", owner: tuple[str, str, str] | None = None, **more: Any) -> PodFacts:
    kind, name, owner_uid = owner or (None, None, None)
    defaults: dict[str, Any] = {
        "cluster": "c1", "uid": uid, "namespace": "ml", "name": f"pod-{uid}", "labels": {}, "annotations": {},
        "owner_kind": kind, "owner_name": name, "owner_uid": owner_uid, "gpus": 8.0, "created_ns": 0, "from_ns": 0,
        "to_ns": 60 * MINUTE_NS,
    }  # fmt: skip
    return PodFacts(**(defaults | more))


def job(kind: str, name: str, uid: str, owner: tuple[str, str, str] | None = None, **more: Any) -> Workload:
    kind_above, name_above, uid_above = owner or (None, None, None)
    defaults: dict[str, Any] = {
        "cluster": "c1", "kind": kind, "namespace": "ml", "name": name, "uid": uid, "owner_kind": kind_above,
        "owner_name": name_above, "owner_uid": uid_above, "created_ns": 0, "finished_ns": None, "state": None,
        "replicas": {}, "min_members": None, "gang_by_itself": False, "labels": {},
    }  # fmt: skip
    return Workload(**(defaults | more))


def resolved(*pods: PodFacts, workloads: tuple[Workload, ...] = (), **parameters: Any) -> list[tuple[Any, ...]]:
    """(kind, name, run, role, replica type, index) of each pod, in order."""
    found = resolve(list(pods), Captured.of(workloads), Parameters(**parameters))
    members = [found.get((p.cluster, p.uid)) for p in pods]
    return [(m.kind, m.name, m.run, m.role, m.replica_type, m.index) if m else () for m in members]


def kubeflow(
    replica: str, index: str, role: str | None = None, operator: str = "pytorchjob-controller"
) -> dict[str, str]:
    labels = {
        KF + "job-name": "bert",
        KF + "operator-name": operator,
        KF + "replica-type": replica,
        KF + "replica-index": index,
    }
    return labels | ({KF + "job-role": role} if role else {})


def test_p5_pytorchjob_with_a_master() -> None:
    owner = ("PyTorchJob", "bert", "uid-job")
    members = [
        pod("m", owner, labels=kubeflow("master", "0", "master"), annotations={"volcano.sh/task-spec": "master"}),
        pod("w", owner, labels=kubeflow("worker", "0")),
    ]
    assert resolved(*members) == [
        ("PyTorchJob", "bert", "uid-job", COORDINATOR, "master", 0),
        ("PyTorchJob", "bert", "uid-job", WORKER, "worker", 0),
    ]


def test_p5_elastic_pytorchjob_has_worker_0_as_coordinator() -> None:
    """Case 26: no Master declared; the operator marks worker 0."""
    owner = ("PyTorchJob", "bert", "uid-job")
    members = [pod(f"w{n}", owner, labels=kubeflow("worker", str(n), "master" if n == 0 else None)) for n in range(2)]
    assert [member[3] for member in resolved(*members)] == [COORDINATOR, WORKER]


@pytest.mark.parametrize(
    ("replica", "role", "expected"),
    [("chief", "master", COORDINATOR), ("ps", None, WORKER), ("evaluator", None, AUXILIARY), ("worker", None, WORKER)],
)
def test_p5_tfjob_roles(replica: str, role: str | None, expected: str) -> None:
    """Case 49: an evaluator in another zone is auxiliary, so nothing follows from where it is."""
    labels = kubeflow(replica, "0", role, "tfjob-controller")
    assert resolved(pod(labels=labels))[0][0::3] == ("TFJob", expected)


def test_p5_labels_of_before_kubeflow_1_4() -> None:
    labels = {
        "group-name": "kubeflow.org",
        "job-name": "bert",
        "replica-type": "master",
        "replica-index": "0",
        "job-role": "master",
    }
    assert resolved(pod(owner=("PyTorchJob", "bert", "u"), labels=labels)) == [
        ("PyTorchJob", "bert", "u", COORDINATOR, "master", 0)
    ]


def mpi_v2(role: str, index: str | None = None) -> dict[str, str]:
    labels = {KF + "job-name": "hpl", KF + "operator-name": "mpi-operator", KF + "job-role": role}
    return labels | ({KF + "replica-index": index} if index else {})


@pytest.mark.parametrize("captured", [True, False])
def test_n2_mpijob_launcher_belongs_to_the_mpijob_not_to_its_batch_job(captured: bool) -> None:
    """Case 27: the launcher's owner is a batch Job; its run is the MPIJob's, by captured objects or by its workers."""
    launcher = pod("l", ("Job", "hpl-launcher", "uid-child"), labels=mpi_v2("launcher"), gpus=0.0)
    worker = pod("w", ("MPIJob", "hpl", "uid-mpi"), labels=mpi_v2("worker", "0"))
    objects = (job("Job", "hpl-launcher", "uid-child", ("MPIJob", "hpl", "uid-mpi")),) if captured else ()
    assert resolved(launcher, worker, workloads=objects) == [
        ("MPIJob", "hpl", "uid-mpi", COORDINATOR, "launcher", None),
        ("MPIJob", "hpl", "uid-mpi", WORKER, "worker", 0),
    ]


def test_p5_mpijob_v1_launcher() -> None:
    labels = {
        KF + "job-name": "hpl",
        KF + "operator-name": "mpijob-controller",
        KF + "replica-type": "launcher",
        KF + "job-role": "master",
    }
    assert resolved(pod(owner=("MPIJob", "hpl", "u"), labels=labels)) == [
        ("MPIJob", "hpl", "u", COORDINATOR, "launcher", None)
    ]


def jobset(part: str, job_index: int = 0, index: int = 0, **more: str) -> dict[str, str]:
    return {
        JS + "jobset-name": "sft", JS + "replicatedjob-name": part, JS + "job-index": str(job_index),
        "batch.kubernetes.io/job-completion-index": str(index), **{JS + key.replace("_", "-"): v for key, v in more.items()},
    }  # fmt: skip


def test_p5_jobset_with_a_declared_coordinator() -> None:
    """Case 29: the endpoint label names the pod."""
    endpoint = "sft-driver-0-0.sft"
    members = [
        pod("d", name="sft-driver-0-0-abcde", labels=jobset("driver", coordinator=endpoint, jobset_uid="u")),
        pod("w", name="sft-workers-0-0-fghij", labels=jobset("workers", coordinator=endpoint, jobset_uid="u")),
    ]
    assert [member[:4] for member in resolved(*members)] == [
        ("JobSet", "sft", "u", COORDINATOR),
        ("JobSet", "sft", "u", WORKER),
    ]


@pytest.mark.parametrize(
    ("labels", "workloads", "expected"),
    [
        (jobset("leader"), (), COORDINATOR),
        (jobset("workers", job_global_index="0"), (), COORDINATOR),
        (jobset("workers", job_global_index="0", index=1), (), WORKER),
        (jobset("workers", global_replicas="4", replicatedjob_replicas="4"), (), COORDINATOR),
        (jobset("workers", global_replicas="5", replicatedjob_replicas="4"), (), WORKER),
        (jobset("b"), (job("JobSet", "sft", "u", replicas={"a": 1, "b": 4}),), WORKER),
        (jobset("a"), (job("JobSet", "sft", "u", replicas={"a": 1, "b": 4}),), COORDINATOR),
        (jobset("workers"), (), WORKER),  # one part of we don't know how many: none is invented
    ],
)
def test_p5_jobset_roles(labels: dict[str, str], workloads: tuple[Workload, ...], expected: str) -> None:
    assert resolved(pod(labels={k: str(v) for k, v in labels.items()}), workloads=workloads)[0][3] == expected


@pytest.mark.parametrize("captured", [True, False])
def test_p5_trainjob_over_jobset_over_job(captured: bool) -> None:
    """Case 25: the same pods are TrainJob, JobSet and Job; the TrainJob is the job. Index 0 of `node` coordinates."""
    objects = (job("JobSet", "sft", "uid-js", ("TrainJob", "sft", "uid-tj")), job("TrainJob", "sft", "uid-tj"))
    members = [
        pod("n0", ("Job", "sft-node-0", "j0"), labels=jobset("node", index=0, jobset_uid="uid-js")),
        pod("n1", ("Job", "sft-node-0", "j0"), labels=jobset("node", index=1, jobset_uid="uid-js")),
        pod(
            "d",
            ("Job", "sft-dataset-initializer-0", "j1"),
            labels=jobset("dataset-initializer", jobset_uid="uid-js"),
            gpus=0.0,
        ),
    ]
    found = resolved(*members, workloads=objects if captured else ())
    assert [member[:2] for member in found] == [("TrainJob", "sft")] * 3
    assert {member[2] for member in found} == {"uid-tj" if captured else "uid-js"}
    assert [member[3] for member in found] == [COORDINATOR, WORKER, AUXILIARY]


def test_p5_trainjob_with_a_launcher_has_one_coordinator() -> None:
    members = [pod("l", labels=jobset("launcher", jobset_uid="u")), pod("n", labels=jobset("node", jobset_uid="u"))]
    assert [member[3] for member in resolved(*members)] == [COORDINATOR, WORKER]


def ray(node_type: str, cluster: str = "tune-x7k2p") -> dict[str, str]:
    return {"ray.io/cluster": cluster, "ray.io/is-ray-node": "yes", "ray.io/node-type": node_type}


@pytest.mark.parametrize(
    ("workloads", "expected"),
    [
        ((), ("RayCluster", "tune-x7k2p", "uid-rc", "inferred")),
        ((job("RayCluster", "tune-x7k2p", "uid-rc"),), ("RayCluster", "tune-x7k2p", "uid-rc", "owner")),
        (
            (job("RayCluster", "tune-x7k2p", "uid-rc", ("RayJob", "tune", "uid-rj")),),
            ("RayJob", "tune", "uid-rj", "owner"),
        ),
        ((job("RayJob", "tune", "uid-rj"),), ("RayJob", "tune", "uid-rj", "rayjob_suffix")),
        ((job("RayJob", "other", "uid-rj"),), ("RayCluster", "tune-x7k2p", "uid-rc", "inferred")),
    ],
)
def test_p5_ray_workers(workloads: tuple[Workload, ...], expected: tuple[str, ...]) -> None:
    """Case 28: a RayJob by its RayCluster, or by the name; else the cluster, marked as inferred."""
    worker = pod(owner=("RayCluster", "tune-x7k2p", "uid-rc"), labels=ray("worker"))
    found = resolve([worker], Captured.of(workloads), Parameters())[("c1", "p1")]
    assert (found.kind, found.name, found.run, found.resolved_by) == expected
    assert found.role == WORKER


def test_p5_ray_head_and_submitter() -> None:
    submitter = {"ray.io/originated-from-cr-name": "tune", "ray.io/originated-from-crd": "RayJob"}
    members = [
        pod("h", ("RayCluster", "tune-x7k2p", "rc"), labels=ray("head"), gpus=0.0),
        pod("s", ("Job", "tune", "uid-sub"), labels=submitter, gpus=0.0),
    ]
    found = resolved(
        *members,
        workloads=(job("RayJob", "tune", "rj"), job("RayCluster", "tune-x7k2p", "rc", ("RayJob", "tune", "rj"))),
    )
    assert [member[:4] for member in found] == [
        ("RayJob", "tune", "rj", COORDINATOR),
        ("RayJob", "tune", "rj", AUXILIARY),
    ]


def test_p5_volcano_job() -> None:
    labels = {
        "volcano.sh/job-name": "v",
        "volcano.sh/task-spec": "ps",
        "volcano.sh/task-index": "1",
        "volcano.sh/queue-name": "q",
    }
    assert resolved(pod(owner=("Job", "v", "uid-v"), labels=labels)) == [("VolcanoJob", "v", "uid-v", WORKER, "ps", 1)]
    assert queue_of(labels) == "q"


def test_p5_leader_worker_set_groups_are_gangs_of_their_own() -> None:
    def member(group: int, index: int) -> PodFacts:
        lws = {"name": "serve", "group-index": str(group), "worker-index": str(index)}
        labels = {f"leaderworkerset.sigs.k8s.io/{key}": value for key, value in lws.items()}
        return pod(f"{group}{index}", ("StatefulSet", "serve", "ss"), labels=labels)

    found = resolved(member(0, 0), member(0, 1), member(1, 0), workloads=(job("LeaderWorkerSet", "serve", "u"),))
    assert [m[:4] for m in found] == [
        ("LeaderWorkerSet", "serve-0", "u-0", COORDINATOR),
        ("LeaderWorkerSet", "serve-0", "u-0", WORKER),
        ("LeaderWorkerSet", "serve-1", "u-1", COORDINATOR),
    ]


def test_p5_indexed_batch_job() -> None:
    labels = {"batch.kubernetes.io/job-name": "fit", "batch.kubernetes.io/job-completion-index": "0"}
    several = job("Job", "fit", "u", replicas={"worker": 4})
    assert resolved(pod(owner=("Job", "fit", "u"), labels=labels), workloads=(several,)) == [
        ("Job", "fit", "u", COORDINATOR, "worker", 0)
    ]
    assert resolved(pod(owner=("Job", "fit", "u"), labels=labels))[0][3] == WORKER


def test_n2_a_child_job_without_labels_climbs_to_the_outermost_job() -> None:
    child = job("Job", "sft-node-0", "j", ("JobSet", "sft", "js"))
    above = (job("JobSet", "sft", "js", ("TrainJob", "sft", "tj")), job("TrainJob", "sft", "tj"))
    bare = pod(owner=("Job", "sft-node-0", "j"))
    assert resolved(bare, workloads=(child, *above))[0][:3] == ("TrainJob", "sft", "tj")
    assert resolved(bare, workloads=(child,))[0][:3] == ("JobSet", "sft", "js")


def test_n2_a_wrapper_is_a_pipeline_and_never_the_job() -> None:
    step = job("Job", "train-step", "j", ("Workflow", "nightly", "wf"))
    labels = {"workflows.argoproj.io/workflow": "nightly"}
    assert resolved(pod(owner=("Job", "train-step", "j"), labels=labels), workloads=(step,))[0][:3] == (
        "Job",
        "train-step",
        "j",
    )
    assert pipeline_of(labels) == "nightly"


def test_p5_kueue_labels_name_a_queue_and_change_no_job() -> None:
    """Case 30."""
    labels = kubeflow("worker", "1") | {"kueue.x-k8s.io/podset": "Worker", "kueue.x-k8s.io/local-queue-name": "team-a"}
    assert resolved(pod(owner=("PyTorchJob", "bert", "u"), labels=labels))[0][:3] == ("PyTorchJob", "bert", "u")
    assert queue_of(labels) == "team-a"
    assert resolved(pod(labels={"kueue.x-k8s.io/pod-group-name": "g"}))[0][:2] == ("PodGroup", "g")


def test_p5_a_slurm_node_names_no_job_and_says_so() -> None:
    """Case 31: slurmd pods are nodes of Slurm; the job is not to be had from the pod."""
    found = resolve([pod(labels={"app.kubernetes.io/name": "slurmd"})], Captured(), Parameters())[("c1", "p1")]
    assert (found.kind, found.role, found.resolved_by) == ("Pod", NONE, "slurm_node")


def test_p5_the_users_mapping_comes_first() -> None:
    labels = {"app": "ml-training", "role": "gpu-worker", **kubeflow("worker", "0")}
    mapping = {"plain_job_labels": (("app", "role"),)}
    assert resolved(pod(labels=labels), **mapping)[0][::3] == ("Labels", WORKER)
    assert resolved(pod(labels={"app": "ml-training", "role": "coordinator"}), **mapping)[0][3] == COORDINATOR
    assert resolved(pod(labels={"app": "ml-training", "role": "dashboard"}), **mapping)[0][3] == AUXILIARY
    assert resolved(pod(labels={"app": "ml-training"}), **mapping)[0][3] == NONE


@pytest.mark.parametrize(
    ("labels", "kind", "role"),
    [
        ({"sparkoperator.k8s.io/app-name": "s", "spark-role": "driver"}, "SparkApplication", COORDINATOR),
        ({"parent": "skypilot", "skypilot-cluster": "s", "ray-node-type": "worker"}, "SkyPilotCluster", WORKER),
        ({"determined.ai/task_id": "t"}, "DeterminedTask", NONE),
    ],
)
def test_p5_label_only_frameworks(labels: dict[str, str], kind: str, role: str) -> None:
    assert resolved(pod(labels=labels))[0][::3] == (kind, role)


def test_n2_a_gpu_pod_that_nothing_resolves_is_a_run_of_its_own() -> None:
    assert resolved(pod("p9")) == [("Pod", "pod-p9", "p9", NONE, None, None)]
    assert resolved(pod("p9", gpus=0.0)) == [()]


def named(uid: str, from_minute: int, to_minute: int) -> PodFacts:
    """A pod of a job whose uid nobody states."""
    return pod(
        uid, labels={"scheduling.x-k8s.io/pod-group": "g"}, from_ns=from_minute * MINUTE_NS, to_ns=to_minute * MINUTE_NS
    )


def test_n2_ten_minutes_without_a_live_pod_start_a_new_run() -> None:
    """Case 12 without uids: the gap tells."""
    runs = [m[2] for m in resolved(named("a", 0, 10), named("b", 5, 20), named("c", 29, 40), named("d", 50, 60))]
    assert runs == ["start-0", "start-0", "start-0", "start-3000"]


def test_n2_namesakes_with_other_owner_uids_are_other_runs() -> None:
    """Case 12: the same job name re-created, without a gap."""
    first = pod("a", ("PyTorchJob", "bert", "u1"), labels=kubeflow("worker", "0"), to_ns=10 * MINUTE_NS)
    second = pod("b", ("PyTorchJob", "bert", "u2"), labels=kubeflow("worker", "0"), from_ns=10 * MINUTE_NS)
    assert [m[2] for m in resolved(first, second)] == ["u1", "u2"]


def test_n2_clusters_and_namespaces_keep_namesakes_apart() -> None:
    apart = [named("a", 0, 10), named("b", 0, 10)]
    other = [PodFacts(**{**apart[1].__dict__, "namespace": "other"})]
    found = resolve([apart[0], *other], Captured(), Parameters())
    assert {m.run for m in found.values()} == {"start-0"} and len(found) == 2


def test_g4_size_and_gang() -> None:
    elastic = job("PyTorchJob", "e", "u", replicas={"worker": 8}, min_members=4)
    fixed = job("TFJob", "f", "u", replicas={"chief": 1, "worker": 4, "evaluator": 1})
    rayjob = job("RayJob", "r", "u", replicas={"head": 1, "gpu": 4}, min_members=3)
    assert declared_size(elastic, 8) == (4, "min_member")
    assert declared_size(fixed, 6) == (5, "replicas")
    assert declared_size(rayjob, 5) == (3, "ray")
    assert declared_size(None, 7) == (7, "most_alive")
    batch, gang = job("Job", "b", "u"), job("Job", "b", "u", gang_by_itself=True)
    assert [is_gang("Job", w, Parameters()) for w in (batch, gang, None)] == [False, True, False]
    assert is_gang("Job", None, Parameters(gang_batch_jobs=True)) and is_gang("PyTorchJob", None, Parameters())

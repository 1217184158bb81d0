"""Who is at each end of a flow (T1, P2, P3, P4, N2, N3): one test a rule, on frames that fit a screen."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.contracts import TABLES
from models.engine.warehouse import Warehouse, Window, utc_ns
from models.parameters import Parameters
from models.traffic import build_traffic

DAY = Window(date(2026, 11, 23), date(2026, 11, 24))
SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9
START, END = DAY.from_ns - 10 * HOUR, DAY.to_ns + 10 * HOUR
TEN = utc_ns("2026-11-23T10:00:00Z")
ZONE_A, ZONE_B, JOB, OTHER_JOB, NODE_A, NODE_B, NODE_C = 1, 2, 77, 88, 11, 12, 13
ADDRESS = {"worker": "10.1.0.1", "master": "10.1.0.2", "web": "10.1.0.3", "side": "10.1.0.4"}


def node(key: int, name: str, zone_key: int, **changes: object) -> dict[str, object]:
    return {
        "node_key": key, "cluster": "c", "node_uid": name, "name": name, "instance_id": f"i-{name}", "lifecycle": "on_demand",
        "zone_key": zone_key, "gpus": 8.0, "valid_from_ns": START, "valid_to_ns": END, "from_basis": "created",
        "to_basis": "last_seen", **changes,
    }  # fmt: skip


def pod(
    uid: str, node_key: int, zone_key: int, job_key: int = -1, role: str = "none", **changes: object
) -> dict[str, object]:
    return {
        "cluster": "c", "pod_uid": uid, "namespace": "ml", "name": uid, "node_key": node_key, "node_name": f"n{node_key}",
        "zone_key": zone_key, "host_network": False, "daemon": False, "job_key": job_key, "role": role, "resolved_by": "owner",
        "gpus": 0.0, "bypasses_kernel": False, "succeeded": False, "last_seen_ns": END, "still_alive": True,
        "held_from_ns": START, "held_to_ns": END, **changes,
    }  # fmt: skip


def address(uid: str, ip: str, from_ns: int = START, to_ns: int = END, *, rival: bool = False) -> dict[str, object]:
    return {
        "cluster": "c", "ip": ip, "pod_uid": uid, "valid_from_ns": from_ns, "valid_to_ns": to_ns, "from_basis": "scheduled",
        "to_basis": "last_seen", "rival": rival,
    }  # fmt: skip


def flow(source: str = "worker", destination: str = "master", at_ns: int = TEN, **changes: object) -> dict[str, object]:
    """One event of a connection from the worker (node a) to the master (node b), as the source's node saw it leave."""
    row: dict[str, object] = {
        "object_id": "o", "cluster": "c", "node_name": "node-a", "time_ns": at_ns, "flow_type": "L3_L4", "verdict": "FORWARDED",
        "event_type": 4, "observation_point": "TO_STACK", "is_reply": False, "protocol": "TCP", "source_ip": ADDRESS.get(source, source),
        "source_port": 40000, "destination_ip": ADDRESS.get(destination, destination), "destination_port": 23456, "tcp_syn": False,
        "tcp_ack": True, "events": 1, "source_namespace": "ml" if source in ADDRESS else None,
        "source_pod": source if source in ADDRESS else None, "destination_namespace": "ml" if destination in ADDRESS else None,
        "destination_pod": destination if destination in ADDRESS else None, "source_local": False, "destination_local": False,
        **changes,
    }  # fmt: skip
    row.setdefault("event_key", str(sorted((k, str(v)) for k, v in row.items())))
    return row


def arrived(
    source: str = "worker", destination: str = "master", at_ns: int = TEN, **changes: object
) -> dict[str, object]:
    """The same packet at the receiver's node."""
    return flow(source, destination, at_ns, **{"node_name": "node-b", "observation_point": "TO_ENDPOINT", **changes})


def reply(at_ns: int = TEN, **changes: object) -> dict[str, object]:
    """A reply of the master, as it arrives at the worker's node."""
    return flow(
        "master", "worker", at_ns,
        **{"source_port": 23456, "destination_port": 40000, "is_reply": True, "observation_point": "TO_ENDPOINT", **changes},
    )  # fmt: skip


def dropped(at_ns: int = TEN, **changes: object) -> dict[str, object]:
    return flow(
        at_ns=at_ns,
        **{
            "verdict": "DROPPED", "event_type": 1, "observation_point": None, "is_reply": None, "tcp_syn": True, "tcp_ack": False,
            "drop_reason": "POLICY_DENIED", **changes,
        },
    )  # fmt: skip


def record(
    source: str, destination: str, size: int, direction: str | None = "egress", **changes: object
) -> dict[str, object]:
    """One VPC flow log record, 10:00:00 to 10:01:00, of the sender's interface (egress) or the receiver's (ingress)."""
    own = "a" if (source in ("worker", "10.0.0.1")) == (direction != "ingress") else "b"
    row: dict[str, object] = {
        "object_id": "v", "cluster": "c", "line_number": 1, "interface_id": f"eni-{own}", "instance_id": f"i-node-{own}",
        "flow_direction": direction, "source_ip": ADDRESS.get(source, source), "destination_ip": ADDRESS.get(destination, destination),
        "source_port": 40000, "destination_port": 23456, "protocol": 6, "bytes": size, "start_ns": TEN, "end_ns": TEN + MINUTE,
        "action": "ACCEPT", **changes,
    }  # fmt: skip
    row.setdefault("outer_source_ip", row["source_ip"])
    row.setdefault("outer_destination_ip", row["destination_ip"])
    return row


def fill(warehouse: Warehouse, **rows: list[dict[str, object]]) -> None:
    """Rows by table name without its schema."""
    tables = {table.short_name: name for name, table in TABLES.items() if table.schema != "mart"}
    tables.update(pod_life="core.pod_life")
    for short, values in rows.items():
        name = tables[short]
        warehouse.append(name, TABLES[name].frame(values))


def standard(warehouse: Warehouse) -> None:
    """Two zones with a node each; a run with a worker in zone a and its master in zone b, a web pod beside the master."""
    fill(
        warehouse,
        zone=[
            {"zone_key": ZONE_A, "provider": "aws", "region": "r", "zone": "ra"},
            {"zone_key": ZONE_B, "provider": "aws", "region": "r", "zone": "rb"},
        ],
        node_life=[node(NODE_A, "node-a", ZONE_A), node(NODE_B, "node-b", ZONE_B)],
        node_address=[
            {"cluster": "c", "ip": f"10.0.0.{n}", "node_key": key, "valid_from_ns": START, "valid_to_ns": END}
            for n, key in ((1, NODE_A), (2, NODE_B))
        ],
        pod_life=[
            pod("worker", NODE_A, ZONE_A, JOB, "worker"),
            pod("master", NODE_B, ZONE_B, JOB, "coordinator"),
            pod("web", NODE_B, ZONE_B),
        ],
        pod_address=[address(name, ADDRESS[name]) for name in ("worker", "master", "web")],
    )


def build(warehouse: Warehouse, window: Window = DAY, **parameters: object) -> None:
    build_traffic(warehouse, window, Parameters(**parameters))  # type: ignore[arg-type]


def only(warehouse: Warehouse, table: str = "core.connection") -> dict[str, object]:
    frame = warehouse.table(table)
    assert frame.height == 1, frame
    return frame.row(0, named=True)


@pytest.fixture
def world(warehouse: Warehouse) -> Warehouse:
    standard(warehouse)
    return warehouse


def resolved(
    warehouse: Warehouse, *rows: dict[str, object], side: str = "server", **parameters: object
) -> tuple[object, ...]:
    """(pod, resolved_by, reason) of one end of the only connection."""
    fill(warehouse, hubble_flow=list(rows))
    build(warehouse, **parameters)
    row = only(warehouse)
    return row[f"{side}_pod_uid"], row[f"{side}_resolved_by"], row[f"{side}_reason"]


# --- pods (T1, P2) ---------------------------------------------------------------------------------------------------
def reuse(warehouse: Warehouse, *lives: dict[str, object]) -> None:
    """Address 10.1.0.9 and its owners."""
    standard(warehouse)
    uids = {str(life["pod_uid"]) for life in lives}
    fill(
        warehouse,
        pod_life=[pod(uid, NODE_B, ZONE_B, OTHER_JOB, name=uid.split("#")[0]) for uid in sorted(uids)],
        pod_address=list(lives),
    )


def to_nine(at_ns: int = TEN, name: str | None = None, **changes: object) -> dict[str, object]:
    return arrived(
        destination="10.1.0.9",
        at_ns=at_ns,
        destination_pod=name,
        destination_namespace="ml" if name else None,
        **changes,
    )


def test_t1_the_pod_that_the_flow_names_wins_while_it_has_the_address(warehouse: Warehouse) -> None:
    reuse(warehouse, address("old", "10.1.0.9", START, TEN), address("new", "10.1.0.9", TEN, END))
    assert resolved(warehouse, to_nine(TEN, "new")) == ("new", "pod", None)


def test_t1_another_owner_makes_the_name_stale(warehouse: Warehouse) -> None:
    reuse(warehouse, address("old", "10.1.0.9", START, TEN), address("new", "10.1.0.9", TEN, END))
    assert resolved(warehouse, to_nine(TEN + MINUTE, "old")) == ("new", "ip", "ipcache_stale")


@pytest.mark.parametrize("entity", ["world", "unmanaged", "init"])
def test_t1_a_pod_taken_for_an_entity_is_found_by_its_address(warehouse: Warehouse, entity: str) -> None:
    reuse(warehouse, address("new", "10.1.0.9"))
    assert resolved(warehouse, to_nine(destination_reserved=entity)) == ("new", "ip", "ipcache_stale")


@pytest.mark.parametrize(("offset", "uid"), [(-1, "worker-0#1"), (0, "worker-0#2"), (HOUR, "worker-0#2")])
def test_n2_a_recreated_pod_of_the_same_name_is_told_by_time(warehouse: Warehouse, offset: int, uid: str) -> None:
    reuse(warehouse, address("worker-0#1", "10.1.0.9", START, TEN), address("worker-0#2", "10.1.0.9", TEN, END))
    assert resolved(warehouse, to_nine(TEN + offset, "worker-0")) == (uid, "pod", None)


@pytest.mark.parametrize(("second", "uid"), [(59, "early"), (60, None), (119, None), (120, "late")])
def test_p2_intervals_are_half_open_and_a_gap_has_no_owner(warehouse: Warehouse, second: int, uid: str | None) -> None:
    reuse(
        warehouse, address("early", "10.1.0.9", START, TEN + MINUTE), address("late", "10.1.0.9", TEN + 2 * MINUTE, END)
    )
    found = resolved(warehouse, to_nine(TEN + second * SECOND), clock_skew_seconds=0)
    assert found[0] == uid
    assert (found[2] == "no_live_owner") == (uid is None)


@pytest.mark.parametrize(("offset", "uid"), [(4, "early"), (5, None), (55, "late"), (54, None)])
def test_p2_clock_skew_reaches_the_nearest_owner_where_it_has_no_rival(
    warehouse: Warehouse, offset: int, uid: str | None
) -> None:
    reuse(warehouse, address("early", "10.1.0.9", START, TEN), address("late", "10.1.0.9", TEN + MINUTE, END))
    assert resolved(warehouse, to_nine(TEN + offset * SECOND))[0] == uid


@pytest.mark.parametrize(
    ("offset", "found"), [(2, ("early", "ip", None)), (4, (None, "none", "ambiguous")), (7, ("late", "ip", None))]
)
def test_p2_within_the_skew_of_two_owners_a_flow_is_ambiguous(
    warehouse: Warehouse, offset: int, found: tuple[object, ...]
) -> None:
    reuse(warehouse, address("early", "10.1.0.9", START, TEN), address("late", "10.1.0.9", TEN + 8 * SECOND, END))
    assert resolved(warehouse, to_nine(TEN + offset * SECOND)) == found


def test_p2_rivals_are_ambiguous_unless_the_flow_names_one(warehouse: Warehouse) -> None:
    reuse(warehouse, address("one", "10.1.0.9", rival=True), address("two", "10.1.0.9", rival=True))
    fill(warehouse, hubble_flow=[to_nine(), to_nine(name="two", source_port=5)])
    build(warehouse)
    rows = warehouse.table("core.connection").sort("client_port")
    assert rows.select(
        "server_pod_uid", "server_resolved_by", "server_reason", "server_zone_key", "locality"
    ).rows() == [
        ("two", "pod", None, ZONE_B, "cross_zone"),
        (None, "none", "ambiguous", -1, "unknown"),
    ]


def test_n2_clusters_with_equal_names_and_addresses_are_apart(warehouse: Warehouse) -> None:
    standard(warehouse)
    fill(
        warehouse,
        pod_life=[pod("other", NODE_B, ZONE_B, OTHER_JOB, cluster="d", name="master")],
        pod_address=[address("other", ADDRESS["master"]) | {"cluster": "d"}],
    )
    fill(
        warehouse,
        hubble_flow=[arrived(), arrived(source_port=5, destination_cluster="d"), arrived(cluster="d", source_port=6)],
    )
    build(warehouse)
    found = dict(warehouse.table("core.connection").select("client_port", "server_pod_uid").iter_rows())
    assert found == {40000: "master", 5: "other", 6: "other"}


def test_t1_both_families_of_a_pod_are_one_pod(world: Warehouse) -> None:
    fill(world, pod_address=[address("master", "2001:db8::2")])
    assert resolved(
        world, arrived(destination="2001:db8::2", destination_pod="master", destination_namespace="ml")
    ) == ("master", "pod", None)


def test_t1_the_nearest_record_names_an_end(world: Warehouse) -> None:
    """The end's own node knows its pod; the other node's cache may not."""
    rows = [
        flow(at_ns=TEN + n, destination_pod=None, destination_namespace=None, destination_reserved="world")
        for n in range(5)
    ]
    assert resolved(world, *rows, arrived(destination_local=True)) == ("master", "pod", None)


# --- nodes, services, entities ---------------------------------------------------------------------------------------
def test_p3_a_host_address_is_a_node(world: Warehouse) -> None:
    fill(world, hubble_flow=[arrived(destination="10.0.0.2", destination_reserved="remote-node")])
    build(world)
    row = only(world)
    assert (row["server_name"], row["server_resolved_by"], row["server_reason"], row["server_job_key"]) == (
        "host/node-b",
        "node",
        "host_network",
        -1,
    )
    assert (row["server_node_key"], row["server_zone_key"], row["locality"]) == (NODE_B, ZONE_B, "cross_zone")


def test_p3_identity_host_is_the_observing_node_by_any_address(world: Warehouse) -> None:
    row = flow("10.1.0.254", "worker", source_reserved="host", destination_local=True, observation_point="TO_ENDPOINT")
    fill(world, hubble_flow=[row])
    build(world)
    found = only(world)
    assert (found["client_name"], found["client_node_key"], found["locality"]) == ("host/node-a", NODE_A, "same_zone")


@pytest.mark.parametrize(("job_key", "reason"), [(JOB, None), (-1, "service_ip")])
def test_t1_a_service_address_is_a_run_only_if_all_of_it_is(world: Warehouse, job_key: int, reason: str | None) -> None:
    fill(
        world,
        service_address=[
            {
                "cluster": "c",
                "ip": "172.20.0.1",
                "namespace": "ml",
                "name": "svc",
                "job_key": job_key,
                "valid_from_ns": START,
                "valid_to_ns": END,
            }
        ],
    )
    fill(world, hubble_flow=[flow(destination="172.20.0.1")])
    build(world)
    row = only(world)
    assert (row["server_name"], row["server_resolved_by"], row["server_job_key"]) == ("ml/svc", "service", job_key)
    assert row["server_reason"] == (reason or "no_zone")
    assert row["locality"] == "unknown"


@pytest.mark.parametrize(
    ("ip", "changes", "expected"),
    [
        ("52.1.2.3", {"destination_reserved": "world"}, ("world", "none", None, "external")),
        (
            "52.1.2.3",
            {"destination_reserved": "world-ipv4", "destination_names": '["s3.test"]'},
            ("s3.test", "none", None, "external"),
        ),
        ("2600:1f18::1", {"destination_reserved": "world-ipv6"}, ("world", "none", None, "external")),
        ("172.18.0.9", {"destination_reserved": "world"}, ("world", "none", "no_zone", "unknown")),
        ("10.1.0.77", {}, ("10.1.0.77", "none", "no_live_owner", "unknown")),
        (
            "10.1.0.77",
            {"destination_pod": "gone", "destination_namespace": "ml"},
            ("ml/gone", "none", "no_live_owner", "unknown"),
        ),
        ("10.0.0.99", {"destination_reserved": "remote-node"}, ("remote-node", "none", "no_live_owner", "unknown")),
        ("10.9.0.1", {"destination_reserved": "kube-apiserver"}, ("kube-apiserver", "none", "no_zone", "unknown")),
    ],
)
def test_t3_entities_and_unknown_ends(
    world: Warehouse, ip: str, changes: dict[str, object], expected: tuple[object, ...]
) -> None:
    fill(world, hubble_flow=[flow(destination=ip, **changes)])
    build(world)
    row = only(world)
    assert (row["server_name"], row["server_resolved_by"], row["server_reason"], row["locality"]) == expected


# --- zones -----------------------------------------------------------------------------------------------------------
def test_p4_without_a_snapshot_the_node_label_serves_the_local_end_only(world: Warehouse) -> None:
    row = flow(
        "10.1.0.50",
        "10.1.0.60",
        node_zone="rb",
        destination_local=True,
        observation_point="TO_ENDPOINT",
        node_name="node-b",
    )
    fill(world, hubble_flow=[row])
    build(world)
    found = only(world)
    assert (found["client_zone_key"], found["server_zone_key"], found["locality"]) == (-1, ZONE_B, "unknown")


def test_n3_an_unknown_zone_is_neither_same_nor_cross(world: Warehouse) -> None:
    fill(
        world,
        node_life=[node(NODE_C, "node-c", -1)],
        pod_life=[pod("side", NODE_C, -1)],
        pod_address=[address("side", ADDRESS["side"])],
    )
    fill(world, hubble_flow=[flow("side", "worker"), flow("side", "side2", destination_ip="10.1.0.5", source_port=5)])
    fill(world, pod_life=[pod("side2", NODE_C, -1)], pod_address=[address("side2", "10.1.0.5")])
    build(world)
    rows = world.table("core.connection").sort("client_port")
    # two pods of one node are in one zone, whichever it is
    assert rows["locality"].to_list() == ["same_zone", "unknown"]
    assert rows["client_reason"].to_list() == ["no_zone", "no_zone"]


def test_t3_localities(world: Warehouse) -> None:
    fill(
        world,
        zone=[{"zone_key": 3, "provider": "aws", "region": "q", "zone": "qa"}],
        node_life=[node(NODE_C, "node-c", 3)],
        pod_life=[pod("side", NODE_C, 3), pod("near", NODE_A, ZONE_A)],
        pod_address=[address("side", ADDRESS["side"]), address("near", "10.1.0.8")],
    )
    fill(
        world,
        hubble_flow=[
            flow(),
            flow(destination="side"),
            flow(destination="10.1.0.8"),
            flow(destination="52.1.1.1"),
            flow(destination="10.7.7.7"),
        ],
    )
    build(world)
    found = dict(world.table("core.connection").select("server_ip", "locality").iter_rows())
    assert found == {
        "10.1.0.2": "cross_zone",
        "10.1.0.4": "cross_region",
        "10.1.0.8": "same_zone",
        "52.1.1.1": "external",
        "10.7.7.7": "unknown",
    }


# --- host network (P3) -----------------------------------------------------------------------------------------------
def host_pod(uid: str, node_key: int, job_key: int, role: str = "worker", **changes: object) -> dict[str, object]:
    zone = ZONE_A if node_key == NODE_A else ZONE_B
    return pod(uid, node_key, zone, job_key, role, host_network=True, gpus=8.0, **changes)


def inferred(
    warehouse: Warehouse, row: dict[str, object], *pods: dict[str, object], **parameters: object
) -> tuple[object, ...]:
    fill(warehouse, pod_life=list(pods), hubble_flow=[row])
    build(warehouse, **parameters)
    found = only(warehouse)
    return found["client_resolved_by"], found["client_job_key"], found["server_resolved_by"], found["server_job_key"]


HOSTS = flow("10.0.0.1", "10.0.0.2", source_reserved="host", destination_reserved="remote-node")
TO_HOST = flow("worker", "10.0.0.2", destination_port=29500)
PORT = '[{"name":"p","port":29500,"protocol":"TCP"}]'
NEITHER = ("node", -1, "node", -1)


def test_p3_a_declared_port_names_the_server(world: Warehouse) -> None:
    assert inferred(world, TO_HOST, host_pod("h", NODE_B, OTHER_JOB, ports=PORT)) == (
        "pod",
        JOB,
        "host_inferred",
        OTHER_JOB,
    )
    assert only(world)["server_pod_uid"] == "h"
    assert only(world)["server_reason"] is None


@pytest.mark.parametrize(
    "pods",
    [
        [host_pod("h", NODE_B, OTHER_JOB, ports=PORT), host_pod("i", NODE_B, OTHER_JOB, ports=PORT)],  # two declare it
        [host_pod("h", NODE_B, OTHER_JOB, ports=PORT, held_to_ns=TEN)],  # no longer alive
        [host_pod("h", NODE_A, OTHER_JOB, ports=PORT)],  # another node
        [host_pod("h", NODE_B, OTHER_JOB, ports=PORT.replace("TCP", "UDP"))],
        [
            host_pod("h", NODE_B, OTHER_JOB, ports=PORT),
            host_pod("i", NODE_B, 99, held_to_ns=TEN - 59 * SECOND),
        ],  # another run just left
    ],
)
def test_p3_no_server_is_inferred_when_it_is_not_certain(world: Warehouse, pods: list[dict[str, object]]) -> None:
    assert inferred(world, TO_HOST, *pods) == ("pod", JOB, "node", -1)


def test_p3_a_run_that_left_over_a_minute_ago_is_no_rival(world: Warehouse) -> None:
    gone = host_pod("i", NODE_B, 99, held_to_ns=TEN - 61 * SECOND)
    assert inferred(world, TO_HOST, host_pod("h", NODE_B, OTHER_JOB, ports=PORT), gone)[2:] == (
        "host_inferred",
        OTHER_JOB,
    )


def test_p3_mutual_node_traffic_is_the_only_runs(world: Warehouse) -> None:
    pods = (
        host_pod("h", NODE_A, OTHER_JOB),
        host_pod("i", NODE_B, OTHER_JOB),
        host_pod("cilium", NODE_B, -1, daemon=True),
    )
    assert inferred(world, HOSTS, *pods) == ("host_inferred", OTHER_JOB, "host_inferred", OTHER_JOB)
    row = only(world)
    assert (row["client_pod_uid"], row["server_pod_uid"], row["server_role"]) == ("h", "i", "worker")


@pytest.mark.parametrize(
    "pods",
    [
        [host_pod("h", NODE_A, OTHER_JOB)],  # the other end is not the run's
        [host_pod("h", NODE_A, OTHER_JOB), host_pod("i", NODE_B, 99)],  # two runs
        [
            host_pod("h", NODE_A, OTHER_JOB),
            host_pod("i", NODE_B, OTHER_JOB),
            host_pod("x", NODE_B, -1),
        ],  # someone else is there
        [host_pod("h", NODE_A, OTHER_JOB) | {"gpus": 0.0}, host_pod("i", NODE_B, OTHER_JOB)],  # holds no GPU there
        [
            host_pod("h", NODE_A, OTHER_JOB),
            host_pod("i", NODE_B, OTHER_JOB),
            host_pod("j", NODE_B, 99, held_from_ns=TEN + 30 * SECOND),
        ],
    ],
)
def test_p3_no_mutual_traffic_is_inferred_when_it_is_not_certain(
    world: Warehouse, pods: list[dict[str, object]]
) -> None:
    assert inferred(world, HOSTS, *pods) == NEITHER


@pytest.mark.parametrize(
    "changes",
    [
        {"destination_port": 4240},
        {"destination_port": 10250},
        {"destination_port": 6443},
        {"destination_port": 22},
        {"destination_port": 8472, "protocol": "UDP"},
        {"destination_port": 51871, "protocol": "UDP"},
        {"protocol": "ESP", "source_port": None, "destination_port": None},
    ],
)
def test_p3_never_for_system_ports_and_tunnels(world: Warehouse, changes: dict[str, object]) -> None:
    row = HOSTS | changes
    assert inferred(world, row, host_pod("h", NODE_A, OTHER_JOB), host_pod("i", NODE_B, OTHER_JOB)) == NEITHER


def test_p3_never_for_one_ended_traffic(world: Warehouse) -> None:
    row = flow("10.0.0.1", "52.1.1.1", destination_reserved="world")
    assert inferred(world, row, host_pod("h", NODE_A, OTHER_JOB))[0] == "node"


def test_p3_a_pod_of_the_run_at_the_other_end_is_mutual(world: Warehouse) -> None:
    row = flow("worker", "10.0.0.2", destination_port=45000, source_port=50000)
    assert inferred(world, row, host_pod("h", NODE_B, JOB)) == ("pod", JOB, "host_inferred", JOB)


def test_p3_is_a_setting(world: Warehouse) -> None:
    pods = (host_pod("h", NODE_A, OTHER_JOB), host_pod("i", NODE_B, OTHER_JOB))
    assert inferred(world, HOSTS, *pods, host_inferred=False) == NEITHER


# --- parity with a plain program -------------------------------------------------------------------------------------
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cuts=st.lists(st.integers(0, 7200), min_size=2, max_size=8, unique=True).map(sorted),
    gaps=st.lists(st.booleans(), min_size=8, max_size=8),
    times=st.lists(st.integers(0, 7199), min_size=1, max_size=20, unique=True),
)
def test_p2_every_flow_finds_the_owner_of_its_instant(cuts: list[int], gaps: list[bool], times: list[int]) -> None:
    """Against a loop over the intervals: touching, gapped, over hour limits; no flow is lost or doubled."""
    lives = [
        (f"p{n}", TEN + cuts[n] * SECOND, TEN + cuts[n + 1] * SECOND) for n in range(len(cuts) - 1) if not gaps[n]
    ]  # fmt: skip
    with Warehouse() as warehouse:
        warehouse.stage_frames()
        standard(warehouse)
        fill(
            warehouse,
            pod_life=[pod(uid, NODE_B, ZONE_B) for uid, *_ in lives],
            pod_address=[address(uid, "10.1.0.9", low, high) for uid, low, high in lives],
            hubble_flow=[to_nine(TEN + second * SECOND, source_port=1 + number) for number, second in enumerate(times)],
        )
        build(warehouse, clock_skew_seconds=0)
        found = dict(warehouse.table("core.connection").select("client_port", "server_pod_uid").iter_rows())
        expected = {
            1 + number: next((uid for uid, low, high in lives if low <= TEN + second * SECOND < high), None)
            for number, second in enumerate(times)
        }
        assert found == expected


def test_p4_a_pod_that_no_snapshot_knows_runs_where_its_flows_are_local(world: Warehouse) -> None:
    """Its node has a zone at that time; nobody owns the traffic, and it keeps its weight there."""
    fill(world, hubble_flow=[arrived("10.1.0.50", "10.1.0.60", destination_local=True, node_zone="elsewhere")])
    build(world)
    row = only(world)
    assert (row["server_zone_key"], row["server_node_key"], row["server_reason"]) == (ZONE_B, NODE_B, "no_live_owner")
    weight = only(world, "core.node_traffic_hourly")
    assert (weight["node_key"], weight["direction"], weight["job_key"], weight["reason"]) == (
        NODE_B,
        "in",
        -1,
        "no_live_owner",
    )


def test_t3_two_ends_local_to_one_node_are_in_one_zone(warehouse: Warehouse) -> None:
    fill(
        warehouse,
        hubble_flow=[arrived(source_local=True, destination_local=True, source_pod=None, destination_pod=None)],
    )
    build(warehouse)
    assert only(warehouse)["locality"] == "same_zone"


def test_t3_a_pod_with_a_public_address_is_not_external(world: Warehouse) -> None:
    fill(world, hubble_flow=[arrived("11.0.0.5", source_pod="gone", source_namespace="ml")])
    build(world)
    assert (only(world)["client_reason"], only(world)["locality"]) == ("no_live_owner", "unknown")

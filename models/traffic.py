"""Flows to connections, drop attempts and hourly traffic (T1-T7, P2, P3), a UTC day at a time.

What is here: the order of the SQL steps, the tables of ports, and what counts as a public address. The meaning of
each step is in `models/sql/core`; nothing here loops over flows.
"""

from __future__ import annotations

from datetime import timedelta

from models.engine.run import Model
from models.engine.warehouse import Warehouse, Window, load_sql
from models.parameters import SECOND_NS, Parameters

# ports of the node's own services (P3): SSH, DNS, etcd, Cilium health and Hubble, API server, node exporter, Cilium
# metrics, kubelet and kube-proxy
SYSTEM_PORTS = (
    (22, 22),
    (53, 53),
    (2379, 2380),
    (4240, 4240),
    (4244, 4245),
    (6443, 6443),
    (9100, 9100),
    (9962, 9965),
    (10248, 10259),
)
# VXLAN, Cilium's VXLAN, Geneve, WireGuard; IPsec is protocol ESP
TUNNEL_PORTS = (4789, 8472, 6081, 51871)
# a five-tuple that is silent for this long and then speaks again is a new connection (TCP retries a SYN for 127 s, with
# gaps of up to 64 s; Cilium forgets UDP after 60 s)
QUIET_SECONDS = 120

_SYSTEM = " OR ".join(f"port BETWEEN {low} AND {high}" for low, high in SYSTEM_PORTS)
_PRIVATE_V4 = (
    r"10\..*|127\..*|0\..*|169\.254\..*|192\.168\..*|172\.(1[6-9]|2\d|3[01])\..*|100\.(6[4-9]|[7-9]\d|1[01]\d|12[0-7])\..*"
    r"|(22[4-9]|2[34]\d|25[0-5])\..*"
)
_PRIVATE_V6 = r"::1?|f[cdef].*"
MACROS = (
    f"CREATE OR REPLACE TEMP MACRO system_port(port) AS coalesce({_SYSTEM}, false)",
    f"""CREATE OR REPLACE TEMP MACRO tunnel_port(protocol, port) AS
        coalesce(protocol = 'ESP' OR (protocol = 'UDP' AND port IN {TUNNEL_PORTS}), false)""",
    f"""CREATE OR REPLACE TEMP MACRO private_address(ip) AS CASE WHEN contains(ip, ':')
        THEN regexp_full_match(ip, '{_PRIVATE_V6}') ELSE regexp_full_match(ip, '{_PRIVATE_V4}') END""",
    # inside a VPC an IPv6 address is public in form, so the form says nothing
    """CREATE OR REPLACE TEMP MACRO public_address(ip) AS coalesce(NOT contains(ip, ':') AND NOT private_address(ip), false)""",
    # traffic-path of a VPC flow log (egress only): 1 same VPC; 2, 8 internet gateway; 3 virtual private gateway;
    # 5 peering to another region; 6 local gateway; 7 gateway endpoint
    """CREATE OR REPLACE TEMP MACRO path_locality(locality, path) AS CASE
        WHEN locality NOT IN ('unknown', 'external') OR path IS NULL THEN locality
        WHEN path IN (2, 3, 6, 7, 8) THEN 'external' WHEN path = 5 THEN 'cross_region' WHEN path IN (1, 4) THEN 'unknown'
        ELSE locality END""",
)
_NO_NAME = "{'local': false, 'records': 0, 'namespace': '', 'pod': '', 'cluster': '', 'reserved': '', 'zone': '', 'host': '', 'observer': '', 'dns': ''}"
_DROP_NAME = """{{'local': coalesce({side}_local, false), 'records': 1, 'namespace': coalesce({side}_namespace, ''),
    'pod': coalesce({side}_pod, ''), 'cluster': coalesce({side}_cluster, ''), 'reserved': coalesce({side}_reserved, ''),
    'zone': CASE WHEN {side}_local THEN coalesce(node_zone, '') ELSE '' END,
    'host': CASE WHEN {side}_reserved = 'host' THEN coalesce(node_name, '') ELSE '' END,
    'observer': CASE WHEN {side}_local THEN coalesce(node_name, '') ELSE '' END, 'dns': {dns}}}"""
_PAIRS = f"""
    SELECT pair_id, cluster, at_ns, protocol, client_ip, client_port, server_ip, server_port, client_called, server_called,
        same_node FROM flow_pair
    UNION ALL
    SELECT pair_id, cluster, at_ns, protocol, client_ip, client_port, server_ip, server_port, {_NO_NAME}, {_NO_NAME}, false FROM flow_portion
    UNION ALL
    SELECT pair_id, cluster, at_ns, protocol, source_ip, source_port, destination_ip, destination_port,
        {_DROP_NAME.format(side="source", dns="''")}, {_DROP_NAME.format(side="destination", dns="coalesce(destination_dns, '')")},
        coalesce((source_local OR source_reserved = 'host') AND (destination_local OR destination_reserved = 'host'), false)
    FROM drop_packet"""
_ENDS = "UNION ALL".join(
    f"""
    SELECT pair_id, '{side}' AS side, cluster, at_ns, {side}_ip AS ip, {side}_called."local" AS is_local,
        {side}_called."namespace" AS "namespace", {side}_called.pod AS pod, {side}_called."cluster" AS foreign_cluster,
        {side}_called.reserved AS reserved, {side}_called.zone AS zone, {side}_called.host AS host, {side}_called.observer AS observer,
        {side}_called.dns AS dns, {side}_called.records = 0 AS from_flow_log
    FROM traffic_pair
    """
    for side in ("client", "server")
)
# name of the temporary table -> the SQL that fills it, in order; a day's worth at a time
_STEPS_BEFORE = (
    ("address_stretch", "core.connection__address"),
    ("host_stretch", "core.connection__host"),
    ("host_port", "core.connection__host_port"),
    ("flow_break", "core.connection__break"),
    ("flow_sighting", "core.connection__sighting"),
    ("flow_orientation", "core.connection__orientation"),
    ("flow_name", "core.connection__name"),
    ("flow_pair", "core.connection__hubble_pair"),
    ("flow_portion", "core.node_traffic_hourly__portion"),
    ("drop_packet", "core.drop_attempt__record"),
)
_STEPS_RESOLVE = (
    ("traffic_end_resolved", "core.connection__end"),
    ("traffic_resolved", "core.connection__pair_resolved"),
    ("flow_interface", "core.node_traffic_hourly__interface"),
    ("flow_metered", "core.node_traffic_hourly__metered"),
    ("drop_resolved", "core.drop_attempt__resolved"),
)
_STEPS_SHARE = (
    ("flow_measured", "core.node_traffic_hourly__measured"),
    ("flow_link", "core.node_traffic_hourly__link"),
    ("flow_tunnel", "core.node_traffic_hourly__tunnel"),
)
OUTPUTS = (
    "core.flow_coverage_hourly",
    "core.connection",
    "core.drop_attempt",
    "core.node_traffic_hourly",
    "core.zone_traffic_hourly",
)


def build_traffic(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    """Fill `OUTPUTS` for each day of the window; a day depends on no other day's result (N7)."""
    for macro in MACROS:
        warehouse.con.execute(macro)
    for day in window.days:
        _build_day(warehouse, Window(day, day + timedelta(days=1)), parameters)


def build_fact_zone_traffic(warehouse: Warehouse, window: Window, parameters: Parameters) -> None:
    warehouse.run_sql_model("mart.fact_zone_traffic", window.parameters(), window=window)


def _build_day(warehouse: Warehouse, day: Window, parameters: Parameters) -> None:
    bound = {
        **day.parameters(),
        "skew_ns": parameters.clock_skew_seconds * SECOND_NS,
        # two clocks may each be off by the skew
        "tolerance_ns": 2 * parameters.clock_skew_seconds * SECOND_NS,
        "quiet_ns": QUIET_SECONDS * SECOND_NS,
        "host_inferred": parameters.host_inferred,
    }
    _table(warehouse, "flow_packet", load_sql("core.connection__packet"), bound)
    for name, sql in _STEPS_BEFORE:
        _table(warehouse, name, load_sql(sql), bound)
    _table(warehouse, "traffic_pair", _PAIRS, bound)
    _table(warehouse, "traffic_end", _ENDS, bound)
    for name, sql in _STEPS_RESOLVE:
        _table(warehouse, name, load_sql(sql), bound)
    warehouse.run_sql_model("core.flow_coverage_hourly", bound, window=day)
    warehouse.run_sql_model("core.connection", bound, window=day)
    warehouse.run_sql_model("core.drop_attempt", bound, window=day)
    for name, sql in _STEPS_SHARE:
        _table(warehouse, name, load_sql(sql), bound)
    warehouse.run_sql_model("core.node_traffic_hourly", bound, window=day)
    warehouse.run_sql_model("core.zone_traffic_hourly", bound, window=day)
    for name in (
        "flow_packet",
        "traffic_pair",
        "traffic_end",
        *(n for n, _ in (*_STEPS_BEFORE, *_STEPS_RESOLVE, *_STEPS_SHARE)),
    ):
        warehouse.con.execute(f"DROP TABLE IF EXISTS {name}")


def _table(warehouse: Warehouse, name: str, select: str, parameters: dict[str, object]) -> None:
    used = {key: value for key, value in parameters.items() if f"${key}" in select}
    warehouse.con.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {select}", used or None)


MODELS = (
    Model(
        name="traffic",
        outputs=OUTPUTS,
        inputs=(
            "staging.hubble_flow",
            "staging.hubble_control",
            "staging.vpc_flow",
            "staging.vpc_gap",
            "core.pod_address",
            "core.pod_life",
            "core.node_life",
            "core.node_address",
            "core.service_address",
            "core.zone",
            "core.job_run",
        ),
        build=build_traffic,
        description="Connections, drop attempts, coverage, and the traffic of nodes and zones, from flow records.",
    ),
    Model(
        name="fact_zone_traffic",
        outputs=("mart.fact_zone_traffic",),
        inputs=("core.zone_traffic_hourly",),
        build=build_fact_zone_traffic,
        description="Zone traffic as published.",
    ),
)

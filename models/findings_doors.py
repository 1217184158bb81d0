"""What captured network policies say about two pods: who is selected, and whether a change would open their door.

Only what a remedy needs (F2): pods as ends, label selectors, ports. Whatever else a policy uses makes the answer
unknown (None), never a guess (D2). The map of all doors belongs elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from models.engine.warehouse import Warehouse
from models.findings_finding import rows_of

NAMESPACE_KEY = "io.kubernetes.pod.namespace"
# labels that Cilium gives every pod, with values that no pod object states
_ALWAYS_THERE = {"io.cilium.k8s.policy.cluster", "io.cilium.k8s.policy.serviceaccount"}
_SOURCES = ("k8s:", "any:")
# peers that name no pod of the cluster: they neither open nor close a door between two pods
_NOT_PODS = {"toCIDR", "toCIDRSet", "fromCIDR", "fromCIDRSet", "toFQDNs", "icmps"}
_UNKNOWN_PEERS = {"toServices", "toGroups", "fromGroups", "toNodes", "fromNodes", "toRequires", "fromRequires"}
# what reading a policy of the wrong shape raises: such a policy leaves the doors that it may close unknown
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
_POD_ENTITIES = {"all", "cluster"}


@dataclass(frozen=True)
class End:
    """A pod as a policy sees it."""

    namespace: str
    labels: dict[str, str]


@dataclass
class Policy:
    """One policy object of one cluster: its versions in order, and when it changed (second sighting on)."""

    cluster: str
    kind: str
    namespace: str | None
    name: str
    versions: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    selector_keys: set[str] = field(default_factory=set)
    changed_ns: list[int] = field(default_factory=list)

    def at(self, instant_ns: int) -> dict[str, Any]:
        """The version last seen at that time, else the first."""
        earlier = [document for seen_ns, document in self.versions if seen_ns <= instant_ns]
        return earlier[-1] if earlier else self.versions[0][1]

    def selects(self, namespace: str, labels: dict[str, str]) -> bool:
        """Does any version select a pod with these labels?"""
        end = End(namespace, labels)
        try:
            return any(
                selects(self, subject, end) is True
                for _, document in self.versions
                for subject, _ in rules(self.kind, document)
            )
        except _MALFORMED:
            return False


def load_policies(warehouse: Warehouse) -> list[Policy]:
    """Every captured policy. A change is a creation, or a new version between two sightings."""
    found: dict[tuple[str, str, str | None, str], Policy] = {}
    last_version: dict[int, str | None] = {}
    for row in rows_of(
        warehouse.query("SELECT * FROM staging.policy_observation ORDER BY cluster, kind, namespace, name, observed_ns")
    ):
        key = (row["cluster"], row["kind"], row["namespace"], row["name"])
        policy = found.setdefault(key, Policy(*key))
        version = row["resource_version"] or row["document"]
        if policy.versions and last_version[id(policy)] == version:
            continue
        if policy.versions:
            policy.changed_ns.append(row["observed_ns"])
        elif row["created_ns"] is not None:
            policy.changed_ns.append(row["created_ns"])
        last_version[id(policy)] = version
        policy.versions.append((row["observed_ns"], json.loads(row["document"])))
        policy.selector_keys |= set(json.loads(row["selector_keys"] or "[]"))
    return list(found.values())


# --- selectors --------------------------------------------------------------------------------------------------
def _bare(key: str) -> str:
    return next((key[len(source) :] for source in _SOURCES if key.startswith(source)), key)


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool | None:
    """A Kubernetes label selector against labels; None when it rests on what can't be known here."""
    held = [
        _requirement(_bare(key), "In", [value], labels) for key, value in (selector.get("matchLabels") or {}).items()
    ]
    held += [
        _requirement(_bare(one["key"]), one["operator"], one.get("values") or [], labels)
        for one in selector.get("matchExpressions") or []
    ]
    return False if False in held else None if None in held else True


def _requirement(key: str, operator: str, values: list[str], labels: dict[str, str]) -> bool | None:
    if key in _ALWAYS_THERE and operator in ("Exists", "DoesNotExist"):
        return operator == "Exists"
    if key in _ALWAYS_THERE or key.startswith("reserved:") or "namespace.labels" in key:
        return None
    return {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(operator)


def rules(kind: str, document: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(subject selector, rule) of each rule of a policy."""
    specs = [document.get("spec") or {}, *(document.get("specs") or [])]
    subject = "podSelector" if kind == "NetworkPolicy" else "endpointSelector"
    return [(spec[subject] or {}, spec) for spec in specs if subject in spec]


def selects(policy: Policy, subject: dict[str, Any], end: End) -> bool | None:
    if policy.kind != "CiliumClusterwideNetworkPolicy" and policy.namespace != end.namespace:
        return False
    return matches(subject, _identity(end))


def _identity(end: End) -> dict[str, str]:
    return {**end.labels, NAMESPACE_KEY: end.namespace}


# --- doors ------------------------------------------------------------------------------------------------------
def door_open(
    policies: Iterable[Policy], client: End, server: End, port: int | None, protocol: str, at_ns: int
) -> bool | None:
    """May `client` open `port` of `server`: the client's egress door and the server's ingress door. None: unknown."""
    held = list(policies)
    doors = [
        _one_door(held, client, server, port, protocol, "egress", at_ns),
        _one_door(held, server, client, port, protocol, "ingress", at_ns),
    ]
    if False in doors:
        return False
    return None if None in doors else True


def _one_door(
    policies: list[Policy], subject: End, peer: End, port: int | None, protocol: str, direction: str, at_ns: int
) -> bool | None:
    closed_by_default = False
    allowed: list[bool | None] = []
    denied: list[bool | None] = []
    for policy in policies:
        if policy.kind != "CiliumClusterwideNetworkPolicy" and policy.namespace != subject.namespace:
            continue
        try:
            says = list(_rules_say(policy, subject, peer, port, protocol, direction, at_ns))
        except _MALFORMED:
            denied.append(None)
            continue
        for closes, allows, denies in says:
            closed_by_default = closed_by_default or closes
            allowed += allows
            denied += denies
    if True in denied:
        return False
    if None in denied:
        return None
    if True in allowed or not closed_by_default:
        return True
    return None if None in allowed else False


def _rules_say(
    policy: Policy, subject: End, peer: End, port: int | None, protocol: str, direction: str, at_ns: int
) -> Iterator[tuple[bool, list[bool | None], list[bool | None]]]:
    """(closes by default, answers of its allows, answers of its denies) of each rule that selects, or may select, a pod."""
    for selector, rule in rules(policy.kind, policy.at(at_ns)):
        selected = selects(policy, selector, subject)
        if selected is None:
            yield False, [], [None]
        elif selected and policy.kind == "NetworkPolicy":
            if _kubernetes_section(rule, direction):
                items = rule.get(direction) or []
                yield True, [_allows_kubernetes(policy, item, peer, port, protocol, direction) for item in items], []
        elif selected:
            allows, denies = rule.get(direction) or [], rule.get(f"{direction}Deny") or []
            if allows or denies:
                yield (
                    (rule.get("enableDefaultDeny") or {}).get(direction, True),
                    [_allows_cilium(policy, item, peer, port, protocol, direction) for item in allows],
                    [_allows_cilium(policy, item, peer, port, protocol, direction) for item in denies],
                )


def _kubernetes_section(rule: dict[str, Any], direction: str) -> bool:
    types = rule.get("policyTypes") or ["Ingress", *(["Egress"] if rule.get("egress") else [])]
    return direction.capitalize() in types


def _allows_kubernetes(
    policy: Policy, item: dict[str, Any], peer: End, port: int | None, protocol: str, direction: str
) -> bool | None:
    ports = [
        _port_matches(entry.get("port"), entry.get("endPort"), entry.get("protocol") or "TCP", port, protocol)
        for entry in item.get("ports") or []
    ]
    if item.get("ports") and not any(answer is not False for answer in ports):
        return False
    peers = item.get("to" if direction == "egress" else "from")
    answers = [_kubernetes_peer(policy, entry, peer) for entry in peers or []] if peers else [True]
    if True in answers:
        return True if not item.get("ports") or True in ports else None
    return None if None in answers else False


def _kubernetes_peer(policy: Policy, entry: dict[str, Any], peer: End) -> bool | None:
    if "ipBlock" in entry:
        return False  # Cilium never matches pods by address
    namespaces = entry.get("namespaceSelector")
    if namespaces is None:
        within: bool | None = policy.namespace == peer.namespace
    elif not namespaces:
        within = True
    else:
        keys = set(namespaces.get("matchLabels") or {}) | {e["key"] for e in namespaces.get("matchExpressions") or []}
        known = {"kubernetes.io/metadata.name": peer.namespace}
        within = matches(namespaces, known) if keys <= set(known) else None
    pods = matches(entry.get("podSelector") or {}, peer.labels)
    return False if within is False or pods is False else None if None in (within, pods) else True


def _allows_cilium(
    policy: Policy, item: dict[str, Any], peer: End, port: int | None, protocol: str, direction: str
) -> bool | None:
    if not item:
        return False  # an empty rule selects nothing in Cilium
    if _UNKNOWN_PEERS & set(item) or item.get("authentication"):
        return None
    ports = _cilium_ports(item.get("toPorts"), port, protocol)
    if ports is False:
        return False
    side = "to" if direction == "egress" else "from"
    answers: list[bool | None] = []
    if f"{side}Endpoints" in item:
        answers += [_cilium_peer(policy, selector, peer) for selector in item[f"{side}Endpoints"] or []] or [False]
    if f"{side}Entities" in item:
        answers.append(bool(_POD_ENTITIES & set(item[f"{side}Entities"] or [])))
    if _NOT_PODS & set(item):
        answers.append(False)
    found = True if not answers or True in answers else None if None in answers else False
    return found if ports is True or found is False else None


def _cilium_peer(policy: Policy, selector: dict[str, Any], peer: End) -> bool | None:
    keys = {_bare(key) for key in selector.get("matchLabels") or {}}
    keys |= {_bare(expression["key"]) for expression in selector.get("matchExpressions") or []}
    clusterwide = policy.kind == "CiliumClusterwideNetworkPolicy"
    if not clusterwide and NAMESPACE_KEY not in keys and peer.namespace != policy.namespace:
        return None if any("namespace.labels" in key for key in keys) else False
    return matches(selector, _identity(peer))


def _cilium_ports(entries: list[dict[str, Any]] | None, port: int | None, protocol: str) -> bool | None:
    if not entries:
        return True
    answers: list[bool | None] = []
    for entry in entries:
        if entry.get("rules"):
            answers.append(None)  # open for some requests only
            continue
        listed = entry.get("ports") or []
        answers += [
            _port_matches(one.get("port"), one.get("endPort"), one.get("protocol") or "ANY", port, protocol)
            for one in listed
        ] or [True]
    return True if True in answers else None if None in answers else False


def _port_matches(wanted: Any, end: Any, wanted_protocol: str, port: int | None, protocol: str) -> bool | None:
    if wanted_protocol not in ("ANY", protocol):
        return False
    if wanted in (None, 0, "0"):
        return True
    if port is None or not str(wanted).isdigit():
        return None
    return int(wanted) <= port <= int(end or wanted)

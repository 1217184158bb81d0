"""Network policies as objects: CiliumNetworkPolicy, CiliumClusterwideNetworkPolicy and NetworkPolicy to staging.

Files are manifests, lists, recorder envelopes (`{"observed_at": ..., "list": {...}}`) or watch events, in JSON or YAML.
Objects that are no policies are control records; a kind of policy that is not evaluated, and a manifest whose template
was never rendered, are rejected with their reason, so that no door is judged by half of what closes it (D2).
Shapes: cilium.io/v2 and networking.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from connectors.documents import file_time, read_documents, time_ns
from connectors.objects import LandedObject, Source, list_objects
from connectors.sink import Batch, Lake
from models.contracts import TABLES

POLICY = "staging.policy_observation"
# kind -> API groups that define it
KINDS = {
    "CiliumNetworkPolicy": ("cilium.io",),
    "CiliumClusterwideNetworkPolicy": ("cilium.io",),
    "NetworkPolicy": ("networking.k8s.io", "extensions"),
}
# other objects that open or close doors: named, never ignored
UNSUPPORTED = (
    "GlobalNetworkPolicy",
    "ClusterNetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
)
WATCH_MODES = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}
_SUBJECTS = ("endpointSelector", "nodeSelector", "podSelector")
_LABEL_SOURCES = ("k8s:", "k8s.", "any:", "any.", "reserved:", "container:", "cidr:", "cidrgroup:")
Object = dict[str, Any]


def stage(source: Source, lake: Lake, progress: Callable[[str], None]) -> None:
    """Stage every new file of the source; a bad one is kept aside with its reason and does not stop the others."""
    known = set(lake.loads()["object_id"])
    fresh = [landed for landed in list_objects(source) if landed.object_id not in known]
    for landed in fresh:
        batch = lake.batch(landed)
        stage_object(landed, batch)
        batch.commit()
    if fresh:
        progress(f"{source.name}: {len(fresh)} new files of policies")


def stage_object(landed: LandedObject, batch: Batch) -> None:
    """Parse one file into the batch: a row a policy, a rejected row with its reason for what can't be used."""
    fallback = file_time(landed)
    counts = batch.count(landed, POLICY)
    rows: list[Object] = []
    used_modified = False
    for number, (line, document, problem) in enumerate(read_documents(landed.path)):
        if problem is not None:
            counts.read += 1
            batch.reject(landed, POLICY, line, problem, str(document))
            continue
        for item, mode, stamp in _objects(document):
            counts.read += 1
            try:
                found = _row(item, str(landed.source.options.get("namespace") or "default"))
                observed_ns = time_ns(stamp)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                batch.reject(landed, POLICY, line, _reason(error), _text(item))
                continue
            if found is None or mode not in ("list", *WATCH_MODES.values()):
                counts.control += 1
                continue
            used_modified |= observed_ns is None and fallback[1] == "modified"
            rows.append(
                found
                | {
                    "object_id": landed.object_id,
                    "snapshot_id": f"{landed.object_id}-{number}",
                    "cluster": landed.source.cluster or "default",
                    "observed_ns": fallback[0] if observed_ns is None else observed_ns,
                    "mode": mode,
                }
            )
    if used_modified:
        batch.warn(
            landed, "time taken from the file's modification time: record with observed_at, or put it in the name"
        )
    batch.write(landed, POLICY, TABLES[POLICY].frame(rows))


def _objects(document: Any) -> Iterator[tuple[Any, str, object]]:
    """(object, mode, time) of each object in a document: envelope, watch event, list, array or bare object."""
    for entry in document if isinstance(document, list) else [document]:
        if not isinstance(entry, dict):
            yield entry, "list", None
            continue
        stamp = entry.get("observed_at")
        if isinstance(entry.get("type"), str) and isinstance(entry.get("object"), dict):
            yield entry["object"], WATCH_MODES.get(entry["type"], str(entry["type"])), stamp
            continue
        listed = entry["list"] if isinstance(entry.get("list"), dict) else entry
        if not isinstance(listed.get("items"), list):
            yield listed, "list", stamp
            continue
        kind = str(listed.get("kind") or "List").removesuffix("List")
        for item in listed["items"]:
            if isinstance(item, dict) and kind:
                item = {"apiVersion": listed.get("apiVersion"), "kind": kind, **item}
            yield item, "list", stamp


class _Unsupported(ValueError):
    """A policy that can't be evaluated as it stands; the message is the reason."""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, _Unsupported) else f"bad_value: {type(error).__name__}: {error}"


def _json(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _text(item: object) -> str:
    try:
        return _json(item)
    except TypeError:
        return repr(item)


def _row(item: Any, default_namespace: str) -> Object | None:
    """A policy as a row (without the observation's own columns); None for an object that is no policy.

    A manifest may leave its namespace to whoever applies it; the source's option `namespace` says which that was.
    """
    if not isinstance(item, dict):
        raise TypeError("not an object")
    kind, group = str(item.get("kind") or ""), str(item.get("apiVersion") or "").split("/")[0]
    if kind not in KINDS and kind not in UNSUPPORTED:
        return None
    if group not in KINDS.get(kind, ()):
        raise _Unsupported(f"unsupported_kind: {kind} of {group or 'no API group'} is not evaluated")
    marker = _marker(item)
    if marker is not None:
        raise _Unsupported(f"template: markers are not rendered: {marker[:200]}")
    metadata = item["metadata"]
    specs = [spec for spec in (item.get("spec"), *(item.get("specs") or [])) if spec is not None]
    if not specs or not all(isinstance(spec, dict) for spec in specs):
        raise ValueError("neither spec nor specs is an object")
    clusterwide = kind == "CiliumClusterwideNetworkPolicy"
    return {
        "api_version": str(item["apiVersion"]),
        "kind": kind,
        "namespace": None if clusterwide else str(metadata.get("namespace") or default_namespace),
        "name": str(metadata["name"]),
        "uid": _optional(metadata.get("uid")),
        "resource_version": _optional(metadata.get("resourceVersion")),
        "created_ns": time_ns(metadata.get("creationTimestamp")),
        "selector_keys": _json(sorted(set(_selector_keys(specs)))),
        "subject_selectors": _json([spec[name] for spec in specs for name in _SUBJECTS if name in spec]),
        "document": _json(item),
    }


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _marker(value: Any) -> str | None:
    """The first text with an unrendered template marker; a description may say what it likes."""
    if isinstance(value, str):
        return value if "{{" in value else None
    inner = (
        [v for k, v in value.items() if k != "description"] + [k for k in value if isinstance(k, str)]
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else []
    )
    return next((found for entry in inner if (found := _marker(entry)) is not None), None)


def _selector_keys(value: Any) -> Iterator[str]:
    """Label keys, without their source, of every matchLabels and matchExpressions below."""
    if isinstance(value, list):
        for entry in value:
            yield from _selector_keys(entry)
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        if name == "matchLabels" and isinstance(inner, dict):
            yield from (_without_source(str(key)) for key in inner)
        elif name == "matchExpressions" and isinstance(inner, list):
            yield from (_without_source(str(e["key"])) for e in inner if isinstance(e, dict) and "key" in e)
        else:
            yield from _selector_keys(inner)


def _without_source(key: str) -> str:
    return next((key[len(prefix) :] for prefix in _LABEL_SOURCES if key.startswith(prefix)), key)

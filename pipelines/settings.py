"""Settings: `zoneledger.toml` read, checked and turned into plain objects. The only module that reads the environment.

A mistake in the file is named with its place and how to mend it; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from connectors.objects import Source
from models.contracts import TABLES
from models.parameters import Parameters

# kind of a source -> (module below `connectors`, whether it belongs to one cluster)
SOURCE_KINDS: dict[str, tuple[str, bool]] = {
    "aws-cur2": ("aws_billing", False),
    "focus": ("focus", False),
    "hubble": ("hubble", True),
    "vpc-flow-logs": ("vpc_flow_logs", True),
    "kubernetes": ("kubernetes", True),
    "policies": ("network_policy", True),
    "prometheus": ("prometheus", True),
    "gpu-activity-csv": ("gpu_activity_csv", True),
}
# what a source may be told beside kind, name, cluster and location
SOURCE_OPTIONS: dict[str, set[str]] = {
    "aws-cur2": {"allow_collapse"},
    "focus": {"allow_collapse"},
    "hubble": {"cluster_prefixes"},
    "vpc-flow-logs": {"format"},
    "kubernetes": {"complete"},
    "policies": {"namespace"},
    "prometheus": {"metrics"},
    "gpu-activity-csv": {
        "time_column",
        "gpu_column",
        "value_column",
        "memory_column",
        "pod_column",
        "node_column",
        "namespace_column",
    },
}
PROVIDERS = ("aws", "azure", "gcp", "on_prem")
CONFIG_VARIABLE = "ZONELEDGER_CONFIG"
_CLUSTER_KEYS = {"name", "provider", "region", "dedicated_accounts"}
_SOURCE_KEYS = {"kind", "name", "cluster", "location"}
_TOP_LEVEL = {"home", "timezone", "memory_limit", "cluster", "source", "parameters"}


class SettingsError(Exception):
    """The configuration is wrong. The message says where and how to mend it (exit code 2)."""


@dataclass(frozen=True)
class Cluster:
    name: str
    provider: str
    region: str | None
    dedicated_accounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Everything that a run needs to know beside its window."""

    path: Path
    home: Path
    timezone: str
    memory_limit: str
    clusters: tuple[Cluster, ...]
    sources: tuple[Source, ...]
    parameters: Parameters

    def cluster_frame(self) -> pl.DataFrame:
        """The configured clusters as rows of `staging.cluster`."""
        return TABLES["staging.cluster"].frame(
            [
                {
                    "cluster": cluster.name,
                    "provider": cluster.provider,
                    "region": cluster.region,
                    "accounts": json.dumps(list(cluster.dedicated_accounts)),
                }
                for cluster in self.clusters
            ]
        )


def config_path(given: str | None) -> Path:
    """The configuration file: as given, else from the environment, else `zoneledger.toml` here."""
    return Path(given or os.environ.get(CONFIG_VARIABLE) or "zoneledger.toml")


def load_settings(path: Path, home: Path | None = None) -> Settings:
    """Read and check a configuration; relative paths in it are relative to the file."""
    if not path.is_file():
        raise SettingsError(
            f"no configuration at {path}\n"
            "  fix:   pass --config FILE, or copy zoneledger.example.toml to zoneledger.toml and name your sources"
        )
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}\n  fix:   correct that line") from error
    unknown = set(raw) - _TOP_LEVEL
    if unknown:
        raise SettingsError(
            f"{path}: unknown setting {', '.join(sorted(unknown))}\n  fix:   known are {', '.join(sorted(_TOP_LEVEL))}"
        )
    base = path.resolve().parent
    clusters = tuple(_cluster(entry, path) for entry in _tables(raw, "cluster", path))
    names = [cluster.name for cluster in clusters]
    if len(set(names)) != len(names):
        raise SettingsError(f"{path}: two [[cluster]] entries have one name\n  fix:   give each cluster its own name")
    sources = tuple(
        _source(entry, number, base, names, path) for number, entry in enumerate(_tables(raw, "source", path), 1)
    )
    if not sources:
        raise SettingsError(
            f"{path}: no [[source]] is configured\n  fix:   add at least one, see zoneledger.example.toml"
        )
    if len({source.name for source in sources}) != len(sources):
        raise SettingsError(f"{path}: two [[source]] entries have one name\n  fix:   give each its own `name`")
    return Settings(
        path=path.resolve(),
        home=(home or base / str(raw.get("home", "data"))).resolve(),
        timezone=_timezone(raw.get("timezone", "UTC"), path),
        memory_limit=str(raw.get("memory_limit", "4GB")),
        clusters=clusters,
        sources=sources,
        parameters=_parameters(raw.get("parameters", {}), path),
    )


def _tables(raw: dict[str, Any], name: str, path: Path) -> list[dict[str, Any]]:
    entries = raw.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise SettingsError(f"{path}: write [[{name}]] with two brackets\n  fix:   each entry is one [[{name}]] table")
    return entries


def _cluster(entry: dict[str, Any], path: Path) -> Cluster:
    name, provider = entry.get("name"), entry.get("provider")
    if not isinstance(name, str) or not name:
        raise SettingsError(f'{path}: a [[cluster]] has no name\n  fix:   name = "train-1"')
    if provider not in PROVIDERS:
        raise SettingsError(
            f"{path}: cluster {name!r} has provider {provider!r}\n  fix:   one of {', '.join(PROVIDERS)}"
        )
    _known(entry, _CLUSTER_KEYS, f"{path}: cluster {name!r}")
    accounts = entry.get("dedicated_accounts", [])
    if not isinstance(accounts, list) or not all(isinstance(account, str) for account in accounts):
        raise SettingsError(f'{path}: cluster {name!r}: dedicated_accounts is a list of texts, like ["012345678901"]')
    return Cluster(name, provider, entry.get("region"), tuple(accounts))


def _source(entry: dict[str, Any], number: int, base: Path, clusters: list[str], path: Path) -> Source:
    kind = entry.get("kind")
    where = f"{path}: [[source]] number {number}"
    if kind not in SOURCE_KINDS:
        raise SettingsError(f"{where} has kind {kind!r}\n  fix:   one of {', '.join(sorted(SOURCE_KINDS))}")
    _known(entry, _SOURCE_KEYS | SOURCE_OPTIONS[kind], f"{where} ({kind})")
    location = entry.get("location")
    if not isinstance(location, str) or not location:
        raise SettingsError(f'{where} ({kind}) has no location\n  fix:   location = "inputs/{kind}/"')
    if "://" in location:
        raise SettingsError(
            f"{where}: {location.split('://')[0]}:// locations are not read yet\n"
            "  fix:   mirror the objects to a local folder and name that folder"
        )
    cluster = entry.get("cluster")
    if SOURCE_KINDS[kind][1]:
        if cluster is None and len(clusters) == 1:
            cluster = clusters[0]
        if cluster not in clusters:
            raise SettingsError(
                f"{where} ({kind}) names cluster {cluster!r}, which is not configured\n"
                f"  fix:   one of {', '.join(clusters) or '(no [[cluster]] is configured)'}"
            )
    name = entry.get("name") or f"{kind}-{number}"
    options = {key: value for key, value in entry.items() if key not in _SOURCE_KEYS}
    return Source(name=str(name), kind=kind, location=base / location, cluster=cluster, options=options)


def _known(entry: dict[str, Any], known: set[str], where: str) -> None:
    """A misspelt setting would be ignored in silence, so an unknown one is refused."""
    unknown = set(entry) - known
    if unknown:
        raise SettingsError(
            f"{where}: unknown setting {', '.join(sorted(unknown))}\n  fix:   known are {', '.join(sorted(known))}"
        )


def _timezone(name: object, path: Path) -> str:
    try:
        ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise SettingsError(f'{path}: unknown timezone {name!r}\n  fix:   an IANA name like "Europe/Berlin"') from error
    return str(name)


def _parameters(raw: object, path: Path) -> Parameters:
    if not isinstance(raw, dict):
        raise SettingsError(f"{path}: [parameters] is a table of name = value")
    known = {item.name: item for item in dataclasses.fields(Parameters)}
    default = Parameters()
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            raise SettingsError(f"{path}: unknown parameter {name!r}\n  fix:   known are {', '.join(sorted(known))}")
        expected = getattr(default, name)
        if isinstance(expected, tuple) and isinstance(value, list):
            value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
        if isinstance(expected, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(expected):
            raise SettingsError(
                f"{path}: parameter {name!r} is {value!r}\n  fix:   a {type(expected).__name__}, like {expected!r}"
            )
        values[name] = value
    return Parameters(**values)


def dagster_home() -> str | None:
    """Where Dagster keeps its instance, when the user has one."""
    return os.environ.get("DAGSTER_HOME")

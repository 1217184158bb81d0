"""Real files laid out as sources, with a configuration: what the end-to-end tests run on."""

from __future__ import annotations

import hashlib
import shutil
from datetime import date
from pathlib import Path

from models.engine.warehouse import Window

SEPTEMBER = Window(date(2024, 9, 1), date(2024, 10, 1))

# The lists carry no time of their own, so their names do; the two AKS lists are an hour apart.
LISTS = {
    "podlist_aks_api_snapshot1.json": "2024-09-10T00-00-00Z-aks.json",
    "podlist_aks_api_snapshot2.json": "2024-09-10T01-00-00Z-aks.json",
    "podlist_eks_kubectl_list_1.json": "2024-09-11T00-00-00Z-eks.json",
    "podlist_eks_kubectl_list_2.json": "2024-09-11T01-00-00Z-eks.json",
    "podlist_eks_kubectl_list_3.json": "2024-09-11T02-00-00Z-eks.json",
    "nodelist_eks_legacy_zone_labels.json": "2024-09-11T03-00-00Z-nodes.json",
}
CONFIGURATION = """
home = "home"

[[cluster]]
name = "train-1"
provider = "aws"

[[source]]
kind = "focus"
name = "bill"
location = "bill"

[[source]]
kind = "kubernetes"
name = "lists"
location = "lists"

[[source]]
kind = "hubble"
name = "flows"
location = "flows"

[[source]]
kind = "vpc-flow-logs"
name = "flow-logs"
location = "flow-logs"

[[source]]
kind = "gpu-activity-csv"
name = "gpu"
location = "gpu"
"""


def lay_out(shared_data: Path, folder: Path) -> Path:
    """Copy the real files to one folder a source below `folder`; returns the configuration file."""
    for name in ("bill", "lists", "flow-logs", "gpu"):
        (folder / name).mkdir(parents=True)
    shutil.copyfile(
        shared_data / "billing" / "focus" / "FOCUS-1.0_focus_sample_1000.csv", folder / "bill" / "focus-2024-09.csv"
    )
    for name, timed in LISTS.items():
        shutil.copyfile(shared_data / "kubernetes" / name, folder / "lists" / timed)
    for path in sorted((shared_data / "vpc-flow-logs").glob("*.txt")):
        shutil.copyfile(path, folder / "flow-logs" / path.name)
    for path in sorted((shared_data / "hubble").rglob("*.json*")):
        if path.parent.name == "accuknox":  # 32 small files of one shape; the connector's tests read them
            continue
        target = folder / "flows" / path.relative_to(shared_data / "hubble")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(
        shared_data / "gpu" / "gentd26_pod_gpu_duty_cycle_trim.csv", folder / "gpu" / "gentd26-duty-cycle.csv"
    )
    config = folder / "zoneledger.toml"
    config.write_text(CONFIGURATION, encoding="utf-8")
    return config


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by its relative name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

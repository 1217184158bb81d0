"""The shape of the project: direction of imports, who may know what, no I/O at import, contracts and SQL agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from models.contracts import TABLES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("connectors", "models", "reports", "pipelines")
ALLOWED = {
    "connectors": {"connectors", "models.contracts"},
    "models": {"models"},
    "reports": {"reports", "models"},
    "pipelines": {"connectors", "models", "reports", "pipelines"},
}
ONLY = {
    "boto3": "connectors",
    "azure": "connectors",
    "kubernetes": "connectors",
    "plotly": "reports",
    "dagster": "pipelines",
}
# what several connectors read with: objects, the lake, lines and documents; the layout of data exports
SHARED_CONNECTORS = {
    f"connectors.{name}" for name in ("objects", "sink", "errors", "lines", "documents", "data_exports")
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        top = name.split(".")[0]
        if top in PACKAGES:
            assert any(name == ok or name.startswith(ok + ".") for ok in ALLOWED[package]), f"{path} imports {name}"
        if top in ONLY:
            assert ONLY[top] == package, f"only {ONLY[top]} may import {top}: {path}"


@pytest.mark.parametrize("path", sorted((ROOT / "connectors").glob("*.py")), ids=lambda path: path.name)
def test_connectors_do_not_import_each_other(path: Path) -> None:
    for name in imports_of(path):
        if name.startswith("connectors."):
            assert ".".join(name.split(".")[:2]) in SHARED_CONNECTORS, f"{path.name} imports {name}"


def test_only_settings_reads_the_environment() -> None:
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in modules()
        if re.search(r"os\.environ|os\.getenv|\bgetenv\(", path.read_text(encoding="utf-8"))
    ]
    assert readers == ["pipelines/settings.py"]


def test_every_sql_file_is_a_table_and_starts_with_what_a_row_is() -> None:
    for path in sorted((ROOT / "models" / "sql").rglob("*.sql")):
        table = f"{path.parent.name}.{path.stem.split('__')[0]}"
        assert table in TABLES, f"{path.name} names no table of the contracts"
        assert path.read_text(encoding="utf-8").startswith("-- "), f"{path.name} does not say what a row is"


def test_every_rule_has_a_test_that_names_it() -> None:
    rules = re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "models" / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rules) > 50
    tests = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_architecture.py"
    )
    missing = [
        rule for rule in rules if not re.search(rf"(?<![A-Za-z0-9]){rule}(?![0-9])|_{rule.lower()}(?![0-9])", tests)
    ]
    assert not missing, f"no test names {', '.join(missing)}"


def test_nothing_of_this_machine_is_written_down() -> None:
    home = re.compile(r"/(work|root|tmp/bash)/")
    for path in [*modules(), *sorted((ROOT / "tests").rglob("*.py")), ROOT / "README.md", ROOT / "Makefile"]:
        if path.name != "test_architecture.py" and path.exists():
            assert not home.search(path.read_text(encoding="utf-8")), path

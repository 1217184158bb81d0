"""What README and the example configuration say can be typed as it stands."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from models.parameters import Parameters
from pipelines.cli import _parser
from pipelines.settings import _TOP_LEVEL, SOURCE_KINDS, load_settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "zoneledger.example.toml").read_text(encoding="utf-8")
# words that stand for what the reader fills in
PLACEHOLDERS = {"DATE": "2026-11-23", "JOB": "resnet-50", "DIR": "somewhere", "FILE": "zoneledger.toml"}


def commands_of_readme() -> list[str]:
    """Every `zoneledger COMMAND ...` in code, up to the end of the code or the line."""
    code = re.findall(r"`([^`\n]+)`", README) + re.findall(r"```[a-z]*\n(.*?)```", README, re.DOTALL)
    lines = [line.strip() for block in code for line in block.splitlines()]
    return sorted(
        {re.sub(r"^\.venv/bin/", "", line) for line in lines if re.match(r"(\.venv/bin/)?zoneledger [a-z]", line)}
    )


def subcommands() -> dict[str, argparse.ArgumentParser]:
    for action in _parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the parser has no commands")


def test_readme_shows_commands() -> None:
    assert len(commands_of_readme()) >= 8


@pytest.mark.parametrize("command", commands_of_readme())
def test_every_command_in_readme_is_understood(command: str) -> None:
    words = [PLACEHOLDERS.get(word, word) for word in command.split()[1:]]
    if words == [words[0]] and subcommands()[words[0]]._actions[-1].required:
        return  # the bare name of a command, named in a sentence
    options = _parser().parse_args(words)
    assert callable(options.command)


def test_every_command_is_in_readme() -> None:
    assert {command.split()[1] for command in commands_of_readme()} == set(subcommands())


def test_every_make_target_in_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z]+)", README))
    assert {"demo", "test"} <= named <= targets


def test_every_file_that_readme_links_or_names_exists() -> None:
    linked = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    named = re.findall(r"`((?:notebooks|docs|models|connectors|reports|pipelines|tests|benchmarks)/[\w./-]*)`", README)
    assert linked and named
    missing = [name for name in {*linked, *named, "zoneledger.example.toml"} if not (ROOT / name).exists()]
    assert not missing


def test_the_picture_is_a_png_of_the_report_and_small() -> None:
    picture = (ROOT / "docs" / "report.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n") and len(picture) < 400_000
    assert int.from_bytes(picture[16:20], "big") == 1280


def test_every_source_kind_is_in_readme() -> None:
    assert [kind for kind in SOURCE_KINDS if f"`{kind}`" not in README] == []


def test_every_failure_has_what_is_written_and_what_is_said() -> None:
    section = README.split("## When something is wrong")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 12
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3 and all(cells), row


def uncommented() -> str:
    """The example with its commented settings switched on."""
    return re.sub(r"^# (?=\[parameters\]|[a-z_]+ = )", "", EXAMPLE, flags=re.MULTILINE)


def test_every_key_of_the_example_is_known(tmp_path: Path) -> None:
    """Also those in comments: a reader will take the sign away and expect them to work."""
    path = tmp_path / "zoneledger.toml"
    path.write_text(uncommented(), encoding="utf-8")
    raw = tomllib.loads(uncommented())
    assert set(raw) <= _TOP_LEVEL
    assert set(raw["parameters"]) <= {field.name for field in dataclasses.fields(Parameters)}
    assert {key for cluster in raw["cluster"] for key in cluster} <= {
        "name",
        "provider",
        "region",
        "dedicated_accounts",
    }
    settings = load_settings(path)
    assert settings.clusters[0].dedicated_accounts == ("012345678901",)
    assert {source.kind for source in settings.sources} <= set(SOURCE_KINDS)


def test_the_example_states_the_defaults_of_its_parameters() -> None:
    for name, value in tomllib.loads(uncommented())["parameters"].items():
        assert value == getattr(Parameters(), name), name


def test_every_example_in_help_and_readme_is_toml_that_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        path = tmp_path / "zoneledger.toml"
        path.write_text(block, encoding="utf-8")
        assert load_settings(path).sources

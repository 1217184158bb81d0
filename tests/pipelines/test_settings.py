"""Configuration: what is accepted, and that each mistake is named with its place and its mend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.settings import SOURCE_KINDS, SOURCE_OPTIONS, SettingsError, load_settings

GOOD = """
home = "results"
[[cluster]]
name = "train-1"
provider = "aws"
region = "us-east-1"
dedicated_accounts = ["012345678901"]
[[source]]
kind = "hubble"
location = "flows"
[[source]]
kind = "aws-cur2"
name = "bill"
location = "bill"
[parameters]
idle_threshold = 0.1
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "zoneledger.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file_and_a_single_cluster_is_implied(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, GOOD))
    assert settings.home == tmp_path / "results"
    assert [(source.name, source.cluster) for source in settings.sources] == [("hubble-1", "train-1"), ("bill", None)]
    assert settings.sources[0].location == tmp_path / "flows"
    assert settings.parameters.idle_threshold == 0.1
    assert settings.cluster_frame()["accounts"].to_list() == ['["012345678901"]']


def test_the_example_configuration_is_valid() -> None:
    example = Path(__file__).resolve().parents[2] / "zoneledger.example.toml"
    assert len(load_settings(example).sources) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("home =", "hoem ="), "unknown setting hoem"),
        (('provider = "aws"', 'provider = "amazon"'), "provider 'amazon'"),
        (('kind = "hubble"', 'kind = "hubbel"'), "kind 'hubbel'"),
        (('location = "flows"', 'location = "s3://bucket/flows"'), "s3:// locations are not read yet"),
        (('location = "flows"', 'location = "flows"\ncluster = "train-2"'), "names cluster 'train-2'"),
        (('name = "bill"', 'name = "bill"\nallow_colapse = true'), "(aws-cur2): unknown setting allow_colapse"),
        (('region = "us-east-1"', 'regoin = "us-east-1"'), "cluster 'train-1': unknown setting regoin"),
        (('home = "results"', "owner = []"), "unknown setting owner"),
        (("idle_threshold = 0.1", 'idle_threshold = "low"'), "parameter 'idle_threshold'"),
        (("idle_threshold = 0.1", "idle_treshold = 0.1"), "unknown parameter 'idle_treshold'"),
        (('home = "results"', 'timezone = "Mars/Olympus"'), "unknown timezone"),
        (('home = "results"', "home = "), "not valid TOML"),
        (('name = "bill"', 'name = "hubble-1"'), "one name"),
    ],
)
def test_each_mistake_is_named_with_its_mend(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(write(tmp_path, GOOD.replace(*change, 1)))
    assert said in str(raised.value)
    assert "zoneledger.toml" in str(raised.value)


def test_a_missing_configuration_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"zoneledger\.example\.toml"):
        load_settings(tmp_path / "absent.toml")


@pytest.mark.parametrize(("kind", "module"), [(kind, module) for kind, (module, _) in SOURCE_KINDS.items()])
def test_the_options_of_a_source_are_those_that_its_connector_reads(kind: str, module: str) -> None:
    """An option that no connector reads would be accepted and do nothing."""
    text = (Path(__file__).resolve().parents[2] / "connectors" / f"{module}.py").read_text(encoding="utf-8")
    for option in SOURCE_OPTIONS[kind]:
        assert f'"{option}"' in text
    assert set(re.findall(r'options\.get\("(\w+)"\)', text)) <= SOURCE_OPTIONS[kind]

"""The command line: every command's help teaches, every mistake is named with its mend, exit codes are 0, 1 and 2."""

from __future__ import annotations

import subprocess
import sys
from datetime import date, datetime
from pathlib import Path

import pytest

from models.engine.warehouse import Warehouse, Window
from pipelines.cli import main
from reports.publish import publish
from tests.reports import mart_sample

COMMANDS = ("demo", "run", "report", "publish", "check", "explain", "doctor", "simulate", "verify")
CONFIGURATION = (
    '[[cluster]]\nname = "train-1"\nprovider = "aws"\n[[source]]\nkind = "focus"\nname = "bill"\nlocation = "bill"\n'
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with one source, whose folder is empty."""
    (tmp_path / "bill").mkdir()
    path = tmp_path / "zoneledger.toml"
    path.write_text(CONFIGURATION, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sample_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration's folder whose `data` holds the published sample mart."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "zoneledger.toml").write_text(CONFIGURATION, encoding="utf-8")
    with Warehouse() as warehouse:
        for name, frame in mart_sample.frames().items():
            warehouse.append(name, frame)
        window = Window(mart_sample.FIRST_DAY, mart_sample.LAST_DAY + date.resolution)
        publish(warehouse, folder / "data", datetime(2026, 11, 25, 6), window)
    return folder


def run(*arguments: object) -> int:
    """Exit code of a command, as the shell would see it."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        return int(stopped.code or 0)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_says_what_it_does_and_explains_each_option(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: zoneledger {command}")
    described = text.split("\n\n")[1]
    assert len(described.split()) >= 5, f"{command} has no sentence that says what it does"
    options = text.split("options:")[1].splitlines()
    for number, line in enumerate(options):
        if line.startswith("  -") and len(line.split("  ")) < 3:
            assert options[number + 1].startswith("   "), f"{command}: {line.strip()} is not explained"


def test_the_first_help_names_every_command_exit_codes_and_something_to_try(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in text
    assert "exit codes: 0 done; 1" in text
    assert "zoneledger demo" in text


def test_help_does_not_wait_for_dagster() -> None:
    code = "import sys, pipelines.cli as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\nprint('dagster' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "required: COMMAND"),
        (("rnu",), "invalid choice: 'rnu'"),
        (("run", "--from", "23.11.2026", "--to", "2026-11-24"), "'23.11.2026' is no day; write it like 2026-11-23"),
        (("run", "--from", "2026-02-29", "--to", "2026-03-01"), "'2026-02-29' is no day"),
        (("run", "--from", "2026-11-23"), "required: --to"),
        (("report", "--week", "2026-47"), "'2026-47' is no ISO week; write it like 2026-W47"),
        (("report", "--week", "2025-W53"), "'2025-W53' is no ISO week"),
        (("explain",), "required: job"),
        (("simulate",), "required: dir"),
    ],
)
def test_wrong_use_is_exit_code_2_and_says_how_to_write_it(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        ("2026-11-24", "2026-11-24", "--to is exclusive; for that one day write --to 2026-11-25"),
        ("2026-11-24", "2026-11-23", "--to 2026-11-23 is not after --from 2026-11-24"),
        ("2022-09-11", "2022-09-12", "no day before 2024-01-01 can be run"),
    ],
)
def test_an_impossible_window_is_refused_before_anything_is_read(
    config: Path, start: str, end: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--config", config, "--from", start, "--to", end) == 2
    assert said in capsys.readouterr().err
    assert not (config.parent / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--from", "2026-11-23", "--to", "2026-11-24"),
        ("report", "--week", "2026-W47"),
        ("publish",),
        ("check",),
        ("explain", "resnet-50"),
        ("doctor",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_missing_configuration_says_how_to_get_one(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--config", tmp_path / "absent.toml") == 2
    said = capsys.readouterr().err
    assert "no configuration at" in said and "copy zoneledger.example.toml" in said
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_may_come_from_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZONELEDGER_CONFIG", str(config))
    assert run("doctor") == 1
    assert f"configuration {config}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "--week", "2026-W47"), "nothing is published under"),
        (("explain", "resnet-50"), "nothing is published under"),
        (("check",), "no day has been run into"),
        (("publish",), "no day has been run into"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_before_the_first_run_readers_say_what_to_run(
    config: Path, arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--config", config) == 2
    text = capsys.readouterr().err
    assert said in text and "zoneledger run" in text


def test_b5_a_bill_without_files_is_exit_code_1_not_a_small_bill(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "--config", config, "--from", "2026-11-23", "--to", "2026-11-24") == 1
    said = capsys.readouterr().err
    assert "source 'bill' holds no FOCUS file" in said and "fix:" in said
    assert "nothing was published" in said
    assert not (config.parent / "data" / "published").exists()


def test_doctor_names_empty_sources_and_what_each_gap_costs(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--config", config) == 1
    text = capsys.readouterr().out
    assert "BAD   bill (focus): no files in" in text and "fix:" in text
    assert "gap   no source of kind kubernetes: no placement" in text
    assert "gap   no source of kind prometheus or gpu-activity-csv: no GPU activity" in text
    assert "gap   no source of kind vpc-flow-logs: no bytes" in text
    assert "gap   no source of kind hubble: no connections" in text
    assert "no source of kind aws-cur2 or focus" not in text


def test_doctor_counts_files_that_wait(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "bill" / "november.csv").write_text("x\n", encoding="utf-8")
    assert run("doctor", "--config", config) == 0
    assert "ok    bill (focus): 1 files, newest" in capsys.readouterr().out


def test_doctor_reports_a_location_that_is_gone(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (config.parent / "bill").rmdir()
    assert run("doctor", "--config", config) == 1
    assert "has no such location" in capsys.readouterr().out


def explain(home: Path, job: str) -> int:
    return run("explain", "--config", home / "zoneledger.toml", job)


def test_explain_tells_one_jobs_story_with_its_limits(sample_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """K1: what can't be known stands in the story itself."""
    assert explain(sample_home, "vision/resnet-nightly") == 0
    text = capsys.readouterr().out
    for part in (
        "PyTorchJob vision/resnet-nightly",
        "GPU time",
        "Billed between zones",
        "Findings",
        "What can't be known",
    ):
        assert part in text
    assert "leaves no flow records" in text


def test_explain_takes_a_part_of_a_name_and_refuses_to_choose(
    sample_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(sample_home, "DIFFUSION") == 0
    assert "research/diffusion-xl" in capsys.readouterr().out
    assert explain(sample_home, "rl/") == 2
    said = capsys.readouterr().err
    assert "matches several jobs" in said and "rl/eval-sweep" in said


@pytest.mark.parametrize("job", ["no-such-job", "'; DROP TABLE mart.dim_job; --x", "%", ""])
def test_explain_of_an_unknown_or_hostile_name(sample_home: Path, job: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name is a value, never SQL or a pattern; the empty name matches every job and is refused as ambiguous."""
    assert explain(sample_home, job) == 2
    said = capsys.readouterr().err
    assert ("matches several jobs" if job == "" else "no job matches") in said


def test_report_of_a_published_week(sample_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", "--config", sample_home / "zoneledger.toml", "--week", "2026-w47") == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == sample_home / "data" / "reports" / "2026-W47.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_simulate_never_writes_into_a_folder_that_holds_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    assert run("simulate", tmp_path) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_demo_never_empties_a_folder_that_it_did_not_make(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious", encoding="utf-8")
    assert run("demo", "--dir", tmp_path) == 2
    assert "holds something else" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "precious"

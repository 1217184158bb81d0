"""Every notebook runs from its first cell to its last over what is published, as a reader would run it."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import jupytext
import nbclient
import pytest

from models.engine.warehouse import Warehouse, Window
from reports.publish import publish
from tests.reports import mart_sample

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
pytestmark = [
    pytest.mark.slow,
    # the kernel's client opens sockets that it leaves to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sample mart published."""
    folder = tmp_path_factory.mktemp("home")
    with Warehouse() as warehouse:
        for name, frame in mart_sample.frames().items():
            warehouse.append(name, frame)
        window = Window(mart_sample.FIRST_DAY, mart_sample.LAST_DAY + date.resolution)
        publish(warehouse, folder, datetime(2026, 11, 25, 6), window)
    return folder


def executed(path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The code cells of a notebook with their outputs, run in a kernel of this interpreter."""
    monkeypatch.setenv("ZONELEDGER_HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = jupytext.read(path)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_without_errors_and_shows_something(
    path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = executed(path, home, monkeypatch)
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output.text for output in outputs if output.get("name") == "stderr"], "a notebook warns"
    assert any("text/html" in output.get("data", {}) for output in outputs), "no table was shown"


def test_a_notebook_that_fails_fails_the_test(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("# %%\nraise ValueError('seen')\n", encoding="utf-8")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="seen"):
        executed(broken, home, monkeypatch)


def test_notebooks_are_kept_as_text_without_outputs() -> None:
    assert not list((ROOT / "notebooks").glob("*.ipynb"))
    for path in NOTEBOOKS:
        assert "format_name: percent" in path.read_text(encoding="utf-8")

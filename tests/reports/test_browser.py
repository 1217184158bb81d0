"""The report in a browser: fits 1280 and 400 pixels, prints, runs no foreign text, and asks the network for nothing.

Needs Chromium; without one these tests are skipped, and CI installs it.
"""

from __future__ import annotations

import os
import re
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pypdf import PdfReader

from models.engine.warehouse import Warehouse
from reports.weekly import weekly_report

POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>\n")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=3000", "--disable-features=NetworkTimeServiceQuerying",
]  # fmt: skip
OWN_CLOCK = "GET /time/1/current"  # Chromium's look at a network clock, which no page asks for
# Runs in an instrumented copy only: the report itself holds no script
MEASURE = """<script>
window.alerts = 0; window.alert = () => { window.alerts += 1; };
addEventListener("load", () => {
  const right = Math.max(...[...document.querySelectorAll("main *")]
    .filter((e) => !e.closest(".scroll") && getComputedStyle(e).display !== "none")
    .map((e) => e.getBoundingClientRect().right));
  const small = [...document.querySelectorAll("svg text")].filter((e) => e.getBoundingClientRect().width > 0)
    .map((e) => parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width
      / e.ownerSVGElement.viewBox.baseVal.width);
  const out = [...document.querySelectorAll("svg text")].filter((e) => e.getBoundingClientRect().width > 0)
    .filter((e) => { const t = e.getBoundingClientRect(), s = e.ownerSVGElement.getBoundingClientRect();
      return t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 2 || t.bottom > s.bottom + 2; })
    .map((e) => e.textContent);
  parent.postMessage([innerWidth, document.scrollingElement.scrollWidth, Math.ceil(right),
    window.alerts, Math.min(...small).toFixed(1), out.length, out.slice(0, 3).join("|")].join(";"), "*");
});
</script>
"""


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium on this machine (apt-get install chromium); CI installs it")


@pytest.fixture
def report(mart: Warehouse, tmp_path: Path) -> Path:
    return weekly_report(mart.con, "2026-W47", tmp_path / "week.html")


def run(chromium: str, tmp_path: Path, *arguments: str) -> str:
    command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def measured(chromium: str, tmp_path: Path, page: Path, width: int) -> list[str]:
    copy = tmp_path / "measured.html"
    text = POLICY.sub("", page.read_text(encoding="utf-8"))
    copy.write_text(text.replace("<head>", "<head>" + MEASURE, 1), encoding="utf-8")
    frame = tmp_path / "frame.html"  # a window can't be narrower than 500 pixels, a frame can
    frame.write_text(
        "<script>addEventListener('message', (e) => { document.documentElement.dataset.measured = e.data; });</script>"
        f'<iframe src="{copy.name}" style="width:{width}px;height:900px;border:0"></iframe>',
        encoding="utf-8",
    )
    dom = run(chromium, tmp_path, "--window-size=1400,1000", "--dump-dom", frame.as_uri())
    found = re.search(r'data-measured="([^"]*)"', dom)
    assert found is not None, dom[:500]
    return found[1].split(";")


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_overflows_and_letters_stay_readable(chromium: str, report: Path, tmp_path: Path, width: int) -> None:
    inner, scroll, right, alerts, smallest, outside, which = measured(chromium, tmp_path, report, width)
    assert int(inner) == width
    assert int(scroll) <= width
    assert int(right) <= width
    assert int(alerts) == 0  # hostile names did not run, with the page's own policy taken away
    assert float(smallest) >= 11.5
    assert int(outside) == 0, which


def test_the_measure_sees_an_overflow_and_an_alert(chromium: str, report: Path, tmp_path: Path) -> None:
    wide = "<main><div style='width:900px'>wide</div><img src=x onerror=alert(1)>"
    report.write_text(report.read_text(encoding="utf-8").replace("<main>", wide, 1), encoding="utf-8")
    _, scroll, right, alerts, *_ = measured(chromium, tmp_path, report, 400)
    assert int(scroll) > 400 and int(right) > 400
    assert int(alerts) == 1


def test_the_report_prints_on_a_few_pages_with_its_text(chromium: str, report: Path, tmp_path: Path) -> None:
    target = tmp_path / "week.pdf"
    run(chromium, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={target}", report.as_uri())
    pages = PdfReader(target).pages
    text = re.sub(r"\s+", " ", " ".join(page.extract_text() for page in pages))
    assert 4 <= len(pages) <= 14
    width, height = (round(float(side)) for side in pages[0].mediabox[2:])
    assert abs(width - 595) <= 1 and abs(height - 842) <= 1  # A4 upright
    for expected in ("GPU and inter-AZ cost, week 2026-W47", "How complete these numbers are", "USD 35,996.31",
                     "Top jobs", "Findings", "The ledger equals the bill to the last digit", "What the words mean"):  # fmt: skip
        assert expected in text, expected
    assert all(len(page.extract_text().strip()) > 40 for page in pages)


# --- network ---------------------------------------------------------------------------------------------------
class Listener(socketserver.ThreadingTCPServer):
    """Counts plain HTTP requests, whatever host they meant."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.requests: list[str] = []


class _Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline(200).decode("latin-1").strip()
        assert isinstance(self.server, Listener)
        if line.startswith("GET "):
            self.server.requests.append(line)
        self.wfile.write(b"HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def loaded(chromium: str, tmp_path: Path, page: Path, listener: Listener) -> list[str]:
    """The HTTP requests that loading a page causes, with every host name led to the listener."""
    port = listener.server_address[1]
    run(chromium, tmp_path, f"--host-resolver-rules=MAP * 127.0.0.1:{port}", "--dump-dom", page.as_uri())
    return [line for line in listener.requests if not line.startswith(OWN_CLOCK)]


def planted(report: Path, *, policy: bool) -> None:
    text = report.read_text(encoding="utf-8")
    text = text if policy else POLICY.sub("", text)
    report.write_text(text.replace("<main>", '<main><img src="http://report.test/planted.png">', 1), encoding="utf-8")


def test_the_page_asks_the_network_for_nothing(chromium: str, report: Path, tmp_path: Path, listener: Listener) -> None:
    report.write_text(POLICY.sub("", report.read_text(encoding="utf-8")), encoding="utf-8")
    assert loaded(chromium, tmp_path, report, listener) == []


def test_a_planted_request_is_seen_without_the_policy(
    chromium: str, report: Path, tmp_path: Path, listener: Listener
) -> None:
    planted(report, policy=False)
    assert loaded(chromium, tmp_path, report, listener) == ["GET /planted.png HTTP/1.1"]


def test_the_pages_policy_stops_a_planted_request(
    chromium: str, report: Path, tmp_path: Path, listener: Listener
) -> None:
    planted(report, policy=True)
    assert loaded(chromium, tmp_path, report, listener) == []


def test_ci_has_a_browser() -> None:
    """Skipping is for machines without Chromium; on CI it would hide that nothing was checked."""
    if not os.environ.get("CI"):
        pytest.skip("not on CI")
    assert any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome", "chrome"))

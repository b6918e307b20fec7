"""The report in a browser: Debian's chromium, driven by playwright. `sh scripts/slow_tests.sh` installs both."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import protofed
from protofed.experiment.folder import Folder
from protofed.experiment.stored import load_runs
from protofed.report.content import gather
from protofed.report.page import html_page

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium")
CONFIG = {
    "run": {"rounds": 6, "trace_every": 1},
    "data": {"clients": 8},
    "partition": {"name": "nway", "ways": 3, "shots": 6, "test": 8},
    "net": {"name": "mlp", "hidden": [16], "dim": 12},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="NO BROWSER TESTS: playwright is missing. Run `sh scripts/slow_tests.sh`."
    )
    if not CHROMIUM:
        pytest.skip("NO BROWSER TESTS: chromium is missing. Run `sh scripts/slow_tests.sh` as root.")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two real runs."""
    root = tmp_path_factory.mktemp("report")
    for method in ("fedproto", "fedavg"):
        protofed.run({**CONFIG, "method": {"name": method}}, root / method)
    (root / "report.html").write_text(html_page(gather(load_runs([root / "fedproto", root / "fedavg"]))))
    return root / "report.html"


class Opened:
    """A page, with the errors and requests that it made."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda problem: self.errors.append(str(problem)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)


def test_tables_sort_and_filter_and_the_slider_moves_the_prototypes(browser: Any, report: Path) -> None:
    opened = Opened(browser, report.as_uri())
    page = opened.page
    page.get_by_role("button", name="by head in %").click()
    column = [float(row.locator("td").nth(4).inner_text()) for row in page.locator("#clients tbody tr").all()]
    assert column == sorted(column)
    page.get_by_role("button", name="by head in %").click()
    column = [float(row.locator("td").nth(4).inner_text()) for row in page.locator("#clients tbody tr").all()]
    assert column == sorted(column, reverse=True)
    classes = page.locator("#clients tbody tr").first.locator("td").nth(1).inner_text()
    page.get_by_label("Filter (a client, a class)").fill(classes)
    assert 1 <= page.locator("#clients tbody tr").count() < 8
    before = page.locator("#map path").first.get_attribute("d")
    page.locator("#map input[type=range]").focus()
    page.keyboard.press("Home")
    assert page.locator("#map path").first.get_attribute("d") != before
    page.locator("#map path").last.hover()
    assert re.search(r"prototype of class \d\nsupport: \d+ examples", page.locator("#map .tip").inner_text())
    with page.expect_download() as download:
        page.get_by_role("button", name="Data of clients (CSV)").click()
    assert download.value.path().read_text().startswith("client,")
    page.select_option("#choose select", index=1)
    assert "fedavg has no prototypes" in page.locator("#similarity").inner_text()
    assert opened.errors == []
    assert opened.requests == [report.as_uri()]


def test_the_keyboard_reaches_everything(browser: Any, report: Path) -> None:
    page = Opened(browser, report.as_uri()).page
    reachable = page.locator("button:not([disabled]):visible, select, input, [tabindex='0'], a[href]").count()
    page.locator(".skip").focus()
    reached = {0}
    position = "[...document.querySelectorAll('*')].indexOf(document.activeElement)"
    for _ in range(2 * reachable):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(position))
        if page.evaluate("document.activeElement === document.body"):
            break
    assert len(reached - {page.evaluate("[...document.querySelectorAll('*')].indexOf(document.body)")}) >= reachable
    page.locator("#curves figure svg").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#curves .tip").inner_text().startswith("round 5\nfedproto: ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(
    browser: Any, report: Path, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    opened = Opened(browser, report.as_uri(), color_scheme=scheme, viewport={"width": width, "height": 800})
    found = axe.run(opened.page).response["violations"]
    assert [(violation["id"], violation["nodes"][0]["html"]) for violation in found] == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.errors == []


def test_a_square_of_500_classes_is_more_than_a_function_takes_as_arguments(browser: Any, report: Path) -> None:
    page = Opened(browser, report.as_uri()).page
    most = page.evaluate(
        """() => {
          let found = null;
          matrix = ({ strength }) => { strength(1); return element("p"); };
          const labels = Array.from({ length: 500 }, (_, i) => String(i)), values = labels.map((_, i) => Array(500).fill(-i));
          squareSection("square", "Square", { labels, values, about: "" }, null, (_, largest) => { found = largest; });
          return found;
        }"""
    )
    assert most == 499


def test_a_cell_without_a_cosine_is_said(browser: Any, report: Path) -> None:
    opened = Opened(browser, report.as_uri())
    opened.page.evaluate("() => { data.runs[0].similarity.values[0][0] = null; build(); }")
    opened.page.focus("#similarity svg")
    assert "not both have a prototype" in opened.page.inner_text("#similarity .tip")
    assert opened.errors == []


def test_it_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    Opened(browser, report.as_uri()).page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def until(condition: Callable[[], bool], seconds: float = 90) -> None:
    """Wait for a condition. The policy of the page forbids playwright's own way, which evaluates text."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def rounds_shown(page: Any) -> int:
    """The round that the live page shows; 0 before it shows one."""
    found = re.findall(r"round (\d+) of 2000", page.locator("#live").inner_text())
    return int(found[-1]) if found else 0


def test_a_browser_follows_a_run_and_stops_it(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from protofed.cli import entry; entry()"]
    words = ["run", "--set", "run.rounds=2000", "--set", "run.trace_every=1", "--out", str(folder), "--quiet"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True) as run:
        while not folder.exists() or len(Folder(folder).rounds()) < 3:
            assert run.poll() is None
            time.sleep(0.1)
        with subprocess.Popen([*command, "watch", str(folder)], stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout
            address = re.findall(r"http://127\.0\.0\.1:\d+/\?token=\S+", watch.stdout.readline())[0]
            opened = Opened(browser, address)
            shown = rounds_shown(opened.page)
            assert shown >= 3
            until(lambda: rounds_shown(opened.page) > shown)
            opened.page.on("dialog", lambda dialog: dialog.accept())
            opened.page.get_by_role("button", name="Stop the run").click()
            until(lambda: "--resume" in opened.page.locator("#live").inner_text())
            assert run.wait(60) == 130
            assert watch.wait(60) == 0
            assert opened.errors == []
        assert run.stderr
        assert "Continue with: protofed run --resume" in run.stderr.read()

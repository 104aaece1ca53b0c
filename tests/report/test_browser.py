"""The page in a real browser: headless Chromium, spoken to over the pipe of its DevTools protocol.

Needs the program `chromium` (Debian's package of that name); without it these tests fail, they are not skipped.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crosspipe.report import build_report

pytestmark = pytest.mark.serial


class Page:
    """One page of a headless Chromium; `complaints` are all console errors and exceptions so far."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program, "no chromium here: apt-get install chromium"
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def pipes() -> None:  # the protocol wants to read from 3 and to write to 4
            read, write = os.dup(to_browser), os.dup(from_browser)
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        self._process = subprocess.Popen(
            [program, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to one command of the protocol."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, (method, said)
                return dict(said["result"])

    def wait(self, event: str) -> None:
        while self._next().get("method") != event:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], 60)[0], "the browser does not answer"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser is gone"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        said = dict(json.loads(line))
        shown = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(shown["exceptionDetails"]))
        elif said.get("method") == "Runtime.consoleAPICalled" and shown["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(shown["args"]))
        elif said.get("method") == "Log.entryAdded" and shown["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(shown["entry"]))
        return said

    def open(self, path: Path) -> float:
        """Loads a file and returns how long that took until its load event, in s, by the page's own clock."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")
        return float(self.run("performance.getEntriesByType('navigation')[0].loadEventStart")) / 1000

    def run(self, script: str) -> Any:
        """The value of a script's last expression."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def key(self, name: str, text: str = "") -> None:
        codes = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "ArrowDown": 40}
        key = {"key": name, "text": text, "windowsVirtualKeyCode": codes.get(name, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        os.close(self._out)
        os.close(self._in)
        self._process.wait(30)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    opened = Page(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def shown(page: Page, shared_campaign: Path, tmp_path: Path) -> Page:
    """The report of the hand-made campaign, its last pictures drawn."""
    page.open(build_report(shared_campaign, out=tmp_path / "report").path)
    until(page, "document.querySelectorAll('details[open] .gantt[data-drawn]').length === 2")
    return page


def until(page: Page, condition: str) -> None:
    end = time.monotonic() + 20
    while not page.run("document.querySelector('details[open] .gantt').scrollIntoView(); " + condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


READOUT = "document.querySelector('details[open] .gantt .readout').textContent"
HEADS = "[...document.querySelector('details[open] .gantt').querySelectorAll('.head')].map(t => t.textContent)"


def test_pictures_are_drawn_without_a_complaint(shown: Page) -> None:
    assert shown.run("document.querySelectorAll('details:not([open]) .gantt svg').length") == 0  # only what is seen
    # 1F1B with a delay of 10 ms, as worked out in conftest: predicted and measured take 110 ms
    assert shown.run(HEADS) == ["predicted (simulated), makespan 110 ms", "measured (emulated), makespan 110 ms"]
    assert shown.complaints == []


def test_blocks_are_found_by_mouse_with_start_duration_and_memory(shown: Page) -> None:
    said = "document.querySelector('details[open] .gantt .said').textContent"
    # stage 1 of the prediction: its B0 runs from 30 to 50 of 110 ms, and F1 of the next microbatch is not yet there
    where = shown.run(
        "(() => { const svg = document.querySelector('details[open] .gantt svg'), box = svg.getBoundingClientRect();"
        "const stage = [...svg.querySelectorAll('text[text-anchor=end]')].find(t => t.textContent === '1')"
        ".getBoundingClientRect(); const plot = box.width - 62;"
        "return [box.left + 52 + plot * 40 / 110, stage.top + stage.height / 2]; })()"
    )
    shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
    assert shown.run(READOUT) == (
        "predicted, stage 1: B0 (backward (D and W)), 30 ms to 50 ms, takes 20 ms; stage holds 1 MiB"
    )
    assert shown.run(said) == ""  # what a mouse passes over is not read out


def test_everything_is_reached_by_keyboard(shown: Page) -> None:
    shown.run("document.querySelector('details[open] .gantt button').focus()")
    labels = []
    for _ in range(7):
        labels.append(
            shown.run("(document.activeElement.ariaLabel ?? document.activeElement.textContent).slice(0, 13)")
        )
        shown.key("Tab")
    assert labels == ["both", "predicted", "measured", "memory", "zoom out", "zoom in", "show all"]
    assert shown.run("document.activeElement.tagName") == "svg"
    assert shown.run("document.activeElement.role") == "application"  # not an image: it has keys of its own
    assert shown.run(
        "document.getElementById(document.activeElement.getAttribute('aria-describedby')).textContent"
    ) == (shown.run(READOUT))
    shown.key("ArrowRight")  # selects the first block
    assert shown.run("document.querySelector('details[open] .gantt [role=status]').textContent") == shown.run(READOUT)
    assert shown.run(READOUT).startswith("predicted, stage 0: F0 (forward), 0 ns to 10 ms, takes 10 ms")
    shown.key("ArrowDown")  # what stage 1 last began by then: nothing before its first
    assert shown.run(READOUT).startswith("predicted, stage 1: F0 (forward), 20 ms to 30 ms")
    shown.key("ArrowRight")
    assert "B0" in shown.run(READOUT)
    ticks = "[...document.querySelectorAll('details[open] .gantt svg text')].map(t => t.textContent).join(' ')"
    before = shown.run(ticks)
    shown.key("+", "+")
    assert shown.run(ticks) != before
    shown.key("0", "0")
    assert shown.run(ticks) == before
    assert shown.complaints == []


def test_predicted_and_measured_can_be_shown_alone(shown: Page) -> None:
    for name, index in (("predicted", 1), ("measured", 2)):
        shown.run(f"document.querySelectorAll('details[open] .gantt button')[{index}].click()")
        assert [head.split()[0] for head in shown.run(HEADS)] == [name]
        pressed = "document.querySelector('details[open] .gantt [aria-pressed=true]').textContent"
        assert shown.run(pressed) == name


def test_dark_mode_and_print_keep_ink_and_paper_apart(shown: Page) -> None:
    colours = "(() => { const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]; })()"
    for features, media, expected in (
        ([{"name": "prefers-color-scheme", "value": "light"}], "screen", ["rgb(27, 30, 35)", "rgb(255, 255, 255)"]),
        ([{"name": "prefers-color-scheme", "value": "dark"}], "screen", ["rgb(230, 232, 235)", "rgb(20, 23, 27)"]),
        ([{"name": "prefers-color-scheme", "value": "dark"}], "print", ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]),
    ):
        shown.call("Emulation.setEmulatedMedia", media=media, features=features)
        assert shown.run(colours) == expected
    shown.call("Emulation.setEmulatedMedia", media="print", features=[])
    assert shown.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_kinds_are_told_apart_without_colour(shown: Page) -> None:
    """1F1B: F and B only. Letters stand on the blocks; B, which is D and W, has a dark edge above and below."""
    labels = shown.run(
        "[...document.querySelector('details[open] .gantt svg').querySelectorAll('g[text-anchor=middle] text')]"
        ".map(t => t.textContent)"
    )
    assert Counter(labels) == {f"{kind}{mb}": 4 for kind in "FB" for mb in (0, 1)}  # 2 stages, predicted and measured
    edges = shown.run(
        "[...document.querySelector('details[open] .gantt svg').querySelectorAll('.edge')]"
        ".map(e => (e.getAttribute('d').match(/M/g) ?? []).length)"
    )
    assert edges == [0, 2, 8, 8]  # legend: F none, B two; in each picture four B with two each


def test_everything_is_on_paper(shown: Page) -> None:
    """Printed as a browser prints: the groups that are closed on the screen are on paper too, and closed after that."""
    drawn = "document.querySelectorAll('details[open] .gantt[data-drawn] svg[role]').length"
    shown.run(f"addEventListener('beforeprint', () => {{ window.printed = {drawn}; }})")
    assert len(base64.b64decode(shown.call("Page.printToPDF")["data"])) > 20_000
    assert shown.run("window.printed") == 4
    assert shown.run("document.querySelectorAll('details:not([open]) .gantt').length") == 2
    assert shown.complaints == []


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(shown: Page, width: int) -> None:
    shown.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert shown.run("document.documentElement.scrollWidth") <= width


def test_two_hundred_points_load_in_two_seconds(page: Page, many_points: Path, tmp_path: Path) -> None:
    report = build_report(many_points, out=tmp_path / "report")
    assert min(page.open(report.path) for _ in range(3)) < 2.0  # the least: what else the machine does is not asked
    assert page.run("document.querySelectorAll('#results tbody tr').length") == 200
    assert page.run("document.querySelectorAll('.gantt script').length") == 200
    assert page.complaints == []

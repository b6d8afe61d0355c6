"""Pages in Chromium: they open from disk, draw everything, and work with keyboards, phones and screen readers."""

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fredholm.comparison import compare
from fredholm.report import write_page
from tests.comparison.build import request as comparison_of
from tests.comparison.build import stripes
from tests.report.build import digits

pytest.importorskip("selenium")
pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="chromium and chromedriver are not installed (Debian: apt install chromium chromium-driver)",
    ),
]
SHOTS = os.environ.get("FREDHOLM_SCREENSHOTS")
"""A folder for pictures of all parts of all pages."""
SCHEMES = ("light", "dark")


class Browser:
    """One Chromium for all tests."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.binary_location = str(shutil.which("chromium"))
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))

    def look(self, width: int, scheme: str = "light", *, scripts: bool = True) -> None:
        """Sets the width and the colour scheme of pages."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})

    def open(self, page: Path) -> None:
        """Loads a page from disk and clears the logs of the previous one."""
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(page.as_uri())

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def inspect(self, expression: str) -> Any:
        """Evaluates by the inspector, even if the page may not run scripts; None while there is no page."""
        found = self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        return found["result"].get("value")

    def tabs(self) -> list[Any]:
        return self.driver.find_elements("css selector", ".tabs a")

    def show(self, number: int) -> None:
        """Selects a tab and waits for its drawings."""
        self.tabs()[number].click()
        self.wait("return !document.querySelector('.part:not([hidden]) .canvas:not([data-drawn])')")

    def wait(self, script: str, seconds: float = 30.0, evaluate: Callable[[str], Any] | None = None) -> None:
        end = time.monotonic() + seconds
        while not (evaluate or self.run)(script):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def send(self, key: str) -> None:
        self.driver.switch_to.active_element.send_keys(key)

    def picture(self, name: str) -> None:
        """Saves a picture of the whole page if a folder for pictures is set."""
        if SHOTS is None:
            return
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        metrics = {"width": size[0], "height": min(size[1], 6000), "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.save_screenshot(str(Path(SHOTS) / f"{name}.png"))
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics | {"height": 900})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, few_rates: None) -> dict[str, Path]:
    """Pages of one run, of two side by side, and of a comparison of kernels."""
    folder = tmp_path_factory.mktemp("runs")
    first, second = digits(folder / "first"), digits(folder / "second", seed=1)
    compare(comparison_of(stripes(folder), "low-rank", "attention", "mamba"), folder / "kernels", processes=1)
    return {
        "one": write_page(first),
        "two": write_page(first, further=[second], to=folder / "two.html"),
        "kernels": write_page(folder / "kernels"),
    }


@pytest.fixture(params=("two", "kernels"))
def page(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


def test_a_page_opens_from_disk_without_errors_or_requests(browser: Browser, page: Path) -> None:
    browser.look(1440)
    browser.open(page)
    for number in range(len(browser.tabs())):
        browser.show(number)
    assert [entry for entry in browser.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.driver.get_log("performance")]
    requested = [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requested if not url.startswith("data:")] == [page.as_uri()]


def test_every_drawing_has_its_marks(browser: Browser, page: Path) -> None:
    browser.look(1440)
    browser.open(page)
    count = 0
    for number in range(len(browser.tabs())):
        browser.show(number)
        found = browser.run(
            """return [...document.querySelectorAll('.part:not([hidden]) .canvas')].map((canvas) => [
              canvas.getAttribute('aria-label'),
              canvas.querySelectorAll('svg .mark-line path, svg .mark-rect path, svg .mark-symbol path').length,
              [...canvas.querySelectorAll('svg path, svg text')].some((mark) => /NaN|undefined/.test(mark.outerHTML)),
              canvas.getBoundingClientRect().width / canvas.querySelector('svg').getBoundingClientRect().width,
            ])"""
        )
        for name, marks, is_broken, share in found:
            assert marks >= 1, name
            assert not is_broken, name
            assert 0.9 < share < 1.1, name
        count += len(found)
    assert count >= 7


def test_tabs_follow_clicks_and_keys(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.look(1440)
    browser.open(page)
    names = [tab.text for tab in browser.tabs()]
    assert names[0] in ("Overview", "Comparison")
    assert names[1] == "Training"

    def shown() -> list[str]:
        visible = browser.run(
            "return [...document.querySelectorAll('.part')].filter((part) => part.offsetParent).map((part) => part.id)"
        )
        chosen = [tab.text for tab in browser.tabs() if tab.get_attribute("aria-selected") == "true"]
        assert len(visible) == len(chosen) == 1
        assert int(visible[0].removeprefix("part-")) == names.index(chosen[0]) + 1
        return chosen

    assert shown() == names[:1]
    browser.tabs()[1].click()
    assert shown() == ["Training"]
    for key, name in (
        (Keys.ARROW_RIGHT, names[2]),
        (Keys.END, names[-1]),
        (Keys.ARROW_RIGHT, names[0]),
        (Keys.ARROW_LEFT, names[-1]),
        (Keys.HOME, names[0]),
    ):
        browser.send(key)
        assert shown() == [name]
        assert browser.driver.switch_to.active_element.text == name
    browser.send(Keys.TAB)
    assert browser.driver.switch_to.active_element.get_attribute("role") == "tabpanel"


def test_without_scripts_all_parts_are_shown(browser: Browser, page: Path) -> None:
    browser.look(1440, scripts=False)
    try:
        browser.open(page)
        whole = f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'"
        browser.wait(whole, evaluate=browser.inspect)  # without scripts, loading ends unseen by the driver
        heights = browser.inspect("[...document.querySelectorAll('.part:not([hidden]) h2')].map((h) => h.offsetHeight)")
        assert len(heights) >= 4
        assert all(height > 0 for height in heights)
    finally:
        browser.look(1440)


@pytest.mark.parametrize(("width", "schemes"), [(390, ("dark",)), (1440, ("light",))])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int, schemes: tuple[str, ...]) -> None:
    for scheme in SCHEMES if SHOTS else schemes:  # colours do not change the layout
        browser.look(width, scheme)
        browser.open(page)
        for number, tab in enumerate([each.text for each in browser.tabs()]):
            browser.show(number)
            wide = browser.run(
                """const room = document.documentElement.clientWidth;
                const boxes = [...document.querySelectorAll('.part:not([hidden]) *')];
                return [document.documentElement.scrollWidth - room, boxes
                  .filter((box) => box.getBoundingClientRect().right > room + 1 && !box.closest('.wide, svg'))
                  .map((box) => box.outerHTML.slice(0, 80))]"""
            )
            assert wide == [0, []], tab
            browser.picture(f"{page.parent.name}-{page.stem}-{width}-{scheme}-{number}")


@pytest.mark.parametrize(("name", "scheme"), [("two", "dark"), ("kernels", "light")])
def test_accessibility_checks_find_no_serious_fault(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str
) -> None:
    place = importlib.util.find_spec("axe_core_python")
    if place is None or not place.submodule_search_locations:
        pytest.skip("axe-core-python is not installed")
    axe = (Path(place.submodule_search_locations[0]) / "axe.min.js").read_text()
    browser.look(390, scheme)
    browser.open(pages[name])
    browser.run(axe)
    for number in range(len(browser.tabs())):
        browser.show(number)
        browser.run("document.querySelectorAll('.part:not([hidden]) details').forEach((each) => { each.open = true; })")
        found = browser.driver.execute_async_script(
            """const done = arguments[0];
            axe.run({resultTypes: ['violations']})
              .then((all) => done(all.violations), (error) => done([String(error)]))"""
        )
        grave = [each for each in found if each["impact"] in ("serious", "critical")]
        faults = [(each["id"], each["nodes"][0]["html"][:150]) for each in grave]
        assert faults == []


def test_colours_follow_the_scheme(browser: Browser, pages: dict[str, Path]) -> None:
    colours = {}
    for scheme in SCHEMES:
        browser.look(1440, scheme)
        browser.open(pages["one"])
        browser.show(1)
        colours[scheme] = browser.run(
            """const line = document.querySelector('.part:not([hidden]) svg .mark-line path');
            return [getComputedStyle(document.body).backgroundColor, getComputedStyle(line).stroke]"""
        )
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]

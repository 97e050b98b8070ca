"""The server's page in a real browser: every task answered by clicks and by keyboard, checked by axe-core.

`make test-browser` runs these tests. They need Debian's chromium and chromium-driver, selenium, and axe-core.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

selenium = pytest.importorskip("selenium", reason="make test-browser installs it")

from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

from serving.servers import running_server, save_models  # noqa: E402

pytestmark = pytest.mark.slow
AXE = Path(os.environ.get("AXE", "axe.min.js"))
OFFLINE = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --host-resolver-rules=MAP*~NOTFOUND,EXCLUDE127.0.0.1"""
WIDTHS = (1200, 360)
FORMS: dict[str, dict[str, dict[str, str]]] = {
    "classes": {"classify": {"texts": "the cat sat.\nthe the cat"}},
    "pairs": {"pair": {"first": "the cat", "second": "sat"}},
    "topics": {"classify": {"texts": "the cat sat."}},
    "ratings": {"classify": {"texts": "the cat sat."}},
    "choices": {"choose": {"prompt": "the cat", "endings": "sat\na b c"}},
    "names": {"tag": {"texts": "😀 the cat sat.\nthe the cat"}},
    "questions": {"answer": {"question": "the cat", "context": "😀 the cat sat. a b c d e f g h i j k l m n"}},
    "relevance": {"rank": {"query": "cat", "texts": "the cat\nsat\na b c"}},
    "pretrained": {
        "fill mask": {"texts": "the [MASK] sat ."},
        "next sentence": {"first": "the cat", "second": "sat"},
        "embed": {"inputs": "the cat\nsat\nthe the cat"},
        "attention": {"text": "the cat sat"},
    },
    "gpt": {"generate": {"prompts": "a b"}, "score": {"texts": "a b c"}},
}
CASES = [(model, route) for model, routes in FORMS.items() for route in routes]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Serve a model of every task, with an example for the first."""
    folder = tmp_path_factory.mktemp("models")
    examples = folder / "dev.tsv"
    examples.write_text("text\tlabel\nthe cat sat.\tgood\na b c\tbad\n", encoding="utf-8")
    with running_server(save_models(folder, tuple(FORMS)), examples=(str(examples),)) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """Start Chromium, whose only reachable host is this machine."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in OFFLINE.split():
        options.add_argument(argument.replace("~", " ").replace("MAP*", "MAP *").replace("EXCLUDE", " EXCLUDE "))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options, ChromeService("/usr/bin/chromedriver"))
    try:
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture
def page(browser: Chrome, server: Any) -> Chrome:
    """Open the page anew, wide and light."""
    emulate(browser, WIDTHS[0], "light")
    browser.get(str(server.base_url))
    wait(browser, "#form:not([hidden])")
    return browser


def emulate(page: Chrome, width: int, scheme: str) -> None:
    """Set the width of the screen, and whether it is light or dark."""
    screen = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    preferred = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})


def wait(page: Chrome, selector: str) -> Any:
    """Return the element when it is there."""
    return WebDriverWait(page, 30).until(lambda _: next(iter(page.find_elements(By.CSS_SELECTOR, selector)), None))


def fill(page: Chrome, model: str, route: str) -> None:
    """Choose a model and what it shall answer, and fill in its form by clicks."""
    Select(page.find_element(By.ID, "model")).select_by_visible_text(model)
    page.find_element(By.XPATH, f"//nav/button[text()='{route}']").click()
    for name, text in FORMS[model][route].items():
        field = page.find_element(By.ID, name)
        field.clear()
        page.execute_script("arguments[0].value = arguments[1]", field, text)  # chromedriver cannot type emoji


def answer(page: Chrome) -> str:
    """Return the text of the result."""
    return str(wait(page, "#result:not([hidden])").text)


def check_accessibility(page: Chrome) -> None:
    """Fail with what axe-core finds."""
    page.execute_script(AXE.read_text(encoding="utf-8"))
    found = page.execute_async_script("axe.run().then(arguments[0])")["violations"]
    assert not found, [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found]


@pytest.mark.parametrize(("model", "route"), CASES)
def test_each_task_is_answered_without_an_error(page: Chrome, model: str, route: str) -> None:
    fill(page, model, route)
    page.find_element(By.ID, "send").click()
    shown = answer(page)
    assert not page.find_elements(By.CLASS_NAME, "error"), shown
    assert re.search(r"[\d.]+ ms, of which the model took [\d.]+", shown)
    assert len(shown.splitlines()) > 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("model", "route"), CASES)
def test_each_result_is_accessible_and_fits_the_screen(
    page: Chrome, model: str, route: str, width: int, scheme: str
) -> None:
    emulate(page, width, scheme)
    fill(page, model, route)
    page.find_element(By.ID, "send").click()
    answer(page)
    check_accessibility(page)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    if folder := os.environ.get("SCREENSHOTS"):
        page.save_screenshot(str(Path(folder) / f"{model}-{route.replace(' ', '-')}-{width}-{scheme}.png"))


def test_marked_entities_and_answers_are_the_characters_that_the_server_names(page: Chrome, server: Any) -> None:
    """Python counts an emoji as one character, JavaScript as two."""
    text = FORMS["names"]["tag"]["texts"].splitlines()[0]
    reply = server.post("/tag", json={"texts": text, "model": "names"}).json()["predictions"][0]
    fill(page, "names", "tag")
    page.find_element(By.ID, "send").click()
    answer(page)
    first = page.find_element(By.CSS_SELECTOR, "#result .answer")
    marks = first.find_elements(By.TAG_NAME, "mark")
    shown = [page.execute_script("return arguments[0].firstChild.textContent", mark) for mark in marks]
    assert shown == [one["text"] for one in reply["entities"]]
    assert shown


def test_an_example_of_the_dev_file_fills_the_form(page: Chrome) -> None:
    Select(page.find_element(By.ID, "model")).select_by_visible_text("classes")
    page.find_element(By.CSS_SELECTOR, "#examples button").click()
    assert page.find_element(By.ID, "texts").get_attribute("value") == "the cat sat."


def test_the_keyboard_alone_is_enough(page: Chrome) -> None:
    """Tab reaches the form, Ctrl+Enter sends it, and the result gets the focus."""
    page.execute_script("document.body.focus()")
    reached = []
    for _ in range(20):
        page.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.switch_to.active_element.get_attribute("id"))
        if reached[-1] == "texts":
            break
    assert "model" in reached
    page.switch_to.active_element.send_keys("the cat sat", Keys.CONTROL, Keys.ENTER)
    assert "good" in answer(page)
    assert page.switch_to.active_element.get_attribute("id") == "result"


def test_a_request_that_fails_shows_the_servers_message(page: Chrome) -> None:
    Select(page.find_element(By.ID, "model")).select_by_visible_text("choices")
    page.find_element(By.ID, "send").click()
    assert "endings" in answer(page)
    assert page.find_element(By.CLASS_NAME, "error").get_attribute("role") == "alert"


@pytest.mark.parametrize(("button", "expected"), [("python", "urlopen"), ("curl", "curl ")])
def test_code_to_copy_asks_the_same(page: Chrome, button: str, expected: str) -> None:
    fill(page, "classes", "classify")
    page.execute_script("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.find_element(By.ID, button).click()
    WebDriverWait(page, 10).until(lambda _: page.find_element(By.ID, "copied").text == "Copied.")
    code = page.execute_script("return window.copied")
    assert expected in code
    assert "the cat sat." in code


def test_the_page_asks_no_other_host_and_logs_no_error(page: Chrome, server: Any) -> None:
    fill(page, "classes", "classify")
    page.find_element(By.ID, "send").click()
    answer(page)
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    urls = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert urls
    assert all(url.startswith((str(server.base_url), "data:", "chrome")) for url in urls), urls
    severe = [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"]
    assert not [line for line in severe if "422" not in line], severe

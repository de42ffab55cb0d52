"""Headless Chromium, driven through WebDriver, and the synthetic quickstart of the report's tests.

Where the browser or its driver is missing the tests are skipped with the reason; under CI=true they fail.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "report"))

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


def absent(what: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, so the report was not opened in a browser.", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """A WebDriver session that logs the console and the network."""
    if importlib.util.find_spec("selenium") is None:
        absent("selenium is not installed (pip install '.[browser]')")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        absent(f"{'Chromium' if binary is None else 'chromedriver'} is not installed (apt install chromium-driver)")

    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=ChromeService(driver))
    yield browser
    browser.quit()

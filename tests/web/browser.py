"""Chromium, as it is on the machine: nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
# --no-sandbox: Chromium refuses to run as root without it. The pages are our own.
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def chromium_path() -> str:
    """Of the first that is there; $CHROMIUM goes before. Raises FileNotFoundError, which says what to install."""
    for name in (os.environ.get("CHROMIUM", ""), *_NAMES, _MAC):
        if name and (path := shutil.which(name)):
            return path
    raise FileNotFoundError(
        "No Chromium on the PATH. Install one (`apt-get install chromium`, or Chrome on macOS), or name it: "
        "CHROMIUM=/path/to/chromium."
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()

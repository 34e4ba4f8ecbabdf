from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from web.browser import chromium
from web.scripted import ChatServer

PATIENCE_MS = 30_000  # for what takes a moment, on a machine that has much else to do
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def running_server() -> Iterator[ChatServer]:
    with ChatServer().running() as server:
        yield server


@pytest.fixture
def server(running_server: ChatServer) -> Iterator[ChatServer]:
    running_server.reset()
    yield running_server
    running_server.reset()
    running_server.until_idle()


@pytest.fixture
def context(browser: Browser, server: ChatServer) -> Iterator[BrowserContext]:
    """A browser that knows nothing yet. The test fails if the page said anything about an error."""
    with_faults: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=server.url, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
    context.on("weberror", lambda error: with_faults.append(str(error.error)))
    context.on("console", lambda message: _note(with_faults, message.type, message.text))
    yield context
    context.close()
    assert with_faults == []


def _note(faults: list[str], kind: str, text: str) -> None:
    # Chromium itself tells of each answer that is not 2xx; those are what the tests are about.
    if kind == "error" and not text.startswith("Failed to load resource"):
        faults.append(text)


@pytest.fixture
def page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/")
    return page

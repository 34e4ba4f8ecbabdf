"""The whole house once: `anllm serve` with the default model, and a user in front of the browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from e2e.reference import model_folder
from e2e.servers import RunningServer
from web.acting import ask, open_settings
from web.conftest import PATIENCE_MS


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Starting up: the page is to be there at once."""
    model_folder()
    with RunningServer(tmp_path_factory.mktemp("server")) as running:
        running.wait_for(200, "/v1/models")
        yield running


@pytest.mark.real_model
def test_a_chat_begun_while_the_model_loads(browser: Browser, real: RunningServer) -> None:
    page = browser.new_page(base_url=real.url)
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)
    try:
        page.goto("/")
        open_settings(page).get_by_role("textbox", name="Temperature").fill("0")
        answer = ask(page, "What is the capital of France?")
        expect(answer).to_contain_text("Paris")
        expect(answer).to_contain_text(re.compile(r"\d+ → \d+ tokens"))
        expect(ask(page, "And of Italy?")).to_contain_text(re.compile(r"\w+"))
        page.reload()
        expect(page.get_by_role("article", name="Answer").first).to_contain_text("Paris")
    finally:
        expect.set_options(timeout=PATIENCE_MS)
        page.close()

"""Draws the pictures of docs/web.md: `make web-pictures`. Answers and load are made up (answers.py, load.py)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from web.acting import ask, open_settings
from web.browser import chromium
from web.load import STATUS, MadeUpLoad
from web.scripted import ChatServer

MODEL = "scripted-demo"
STEP_S = 0.0035  # a character a step
CHATS = ["Plan a quiet weekend by the sea", "Explain attention to a twelve-year-old", "Regex for ISO dates"]
CODE = "Write a Python function that merges overlapping intervals, with a short test."
MORE = "And if new intervals keep coming, in a streaming setting?"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ChatServer(model_id=MODEL).running() as server, chromium() as browser:
        draw_chats(browser, server, folder)
        draw_phone(browser, server, folder)
        draw_load(browser, server, folder)


def new_page(browser: Browser, url: str, scheme: str, width: int = 1280, height: int = 820, scale: float = 1.5) -> Page:
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=scale,
        is_mobile=width < 600,
        has_touch=width < 600,
        reduced_motion="reduce",
        base_url=url,
    )
    return context.new_page()


def draw(page: Page, path: Path) -> None:
    page.evaluate("document.fonts.ready")
    page.mouse.move(0, 0)
    page.screenshot(path=path, animations="disabled", caret="hide")
    print(path, f"{path.stat().st_size / 1000:.0f} kB")  # noqa: T201


def draw_chats(browser: Browser, server: ChatServer, folder: Path) -> None:
    page = new_page(browser, server.url, "light")
    page.goto("/")
    for text in CHATS:
        ask(page, text)
        page.get_by_role("button", name="New chat Ctrl").click()
    server.step_s = STEP_S
    ask(page, CODE)
    draw(page, folder / "web-light.png")
    ask(page, MORE)
    page.emulate_media(color_scheme="dark")
    panel = open_settings(page)
    panel.get_by_role("textbox", name="System prompt").fill("You are a careful engineer. Answer in short sentences.")
    panel.get_by_role("textbox", name="Temperature").fill("0.6")
    page.get_by_role("region", name="Conversation").focus()
    draw(page, folder / "web-dark.png")
    page.context.close()


def draw_phone(browser: Browser, server: ChatServer, folder: Path) -> None:
    page = new_page(browser, server.url, "light", 390, 780, 2)
    page.goto("/")
    server.step_s = STEP_S
    ask(page, "think: what is 17 + 25?")
    ask(page, MORE)
    draw(page, folder / "web-phone.png")
    page.context.close()


def draw_load(browser: Browser, server: ChatServer, folder: Path) -> None:
    """Five minutes, in a clock that runs faster."""
    load = MadeUpLoad()
    for _ in range(60):
        load()
    server.metrics = load
    server.status = STATUS
    page = new_page(browser, server.url, "light", height=1190)
    page.clock.install()
    page.goto("/#/load")
    expect(page.get_by_role("heading", name="Since the start")).to_be_visible()
    for _ in range(305):
        num_asked = num_readings(server)
        page.clock.run_for(1000)
        while num_readings(server) == num_asked:
            time.sleep(0.001)
        page.evaluate("0")  # so that the answer is taken
    draw(page, folder / "web-load.png")
    page.context.close()


def num_readings(server: ChatServer) -> int:
    return server.asked.count(("GET", "/metrics"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

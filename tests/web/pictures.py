"""Draws the pictures of the documentation: `make pictures`. What they show is real: `anllm serve` with the model of
that folder, on this machine, answers what is asked here, and the terminals are recordings. Load and bench are of the
default model.

    python tests/web/pictures.py MODEL docs/images [--only chats,phone,terminal,bench,load] [--port 8000]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, expect

from web.acting import ask, open_settings, send, whole
from web.browser import chromium
from web.crowd import crowd
from web.terminal import PATIENCE_S, Terminal

COLUMNS = 96
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
# What this model answers well: read the answers before you show others.
OTHERS = ["What is HTTP status 429?", "Undo a Git commit", "First n Fibonacci numbers"]
SYSTEM = "You are a careful engineer. Answer in short sentences."
CODE = (
    "Write a Python function that says whether a text is a palindrome, ignoring case and punctuation. Add two asserts."
)
MORE = "Now with two pointers."
PHONE = "Explain the HTTP status codes 200, 404 and 429 in a small table: code, name, meaning."
SHELL = "Write a Python function that yields the first n Fibonacci numbers. Code only."
LOAD_S = 240
MOST = 24  # people at once
OPEN_AT_THE_SHOT = 4  # rows of the table below
COLOURS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="chats,phone,terminal,bench,load")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{options.port}"
    parts = options.only.split(",")
    expect.set_options(timeout=1000 * PATIENCE_S)
    with chromium() as browser:
        if {"chats", "phone", "terminal"} & {*parts}:
            with served(options.model, options.port) as server:
                server.draw(browser, options.folder / "cli-serve.png")
                if "chats" in parts:
                    draw_chats(browser, url, options.folder)
                if "phone" in parts:
                    draw_phone(browser, url, options.folder)
                if "terminal" in parts:
                    draw_chat_in_terminal(browser, options.port, options.folder)
        if "bench" in parts:
            draw_bench(browser, options.folder)
        if "load" in parts:
            # So little room that people have to wait.
            with served(Path(DEFAULT_MODEL), options.port, "--max-num-seqs 16 --kv-memory 256M --max-model-len 1024"):
                draw_load(browser, url, DEFAULT_MODEL, options.folder)
    for path in sorted(options.folder.glob("*.png")):
        shrink(path)
        print(path, f"{path.stat().st_size / 1000:.0f} kB")  # noqa: T201


@contextmanager
def served(model: Path, port: int, flags: str = "") -> Iterator[Terminal]:
    """`anllm serve` in a terminal, ready."""
    command = f"anllm serve {model.name} {flags}".rstrip() + flag_of(port)
    with Terminal(COLUMNS, model.absolute().parent, environment()) as terminal:
        terminal.type(command, until=b"Ctrl-C ends it.")
        time.sleep(0.5)  # for the end of the line
        yield terminal


def flag_of(port: int) -> str:
    return "" if port == 8000 else f" --port {port}"


def environment() -> dict[str, str]:
    """With the anllm of this Python."""
    return {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}


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


def shrink(path: Path) -> None:
    """Few colours are enough for a page."""
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def set_up(page: Page) -> None:
    """For all chats. At temperature 0, so that the next time gives the same answers."""
    panel = open_settings(page)
    panel.get_by_role("textbox", name="System prompt").fill(SYSTEM)
    panel.get_by_role("textbox", name="Temperature").fill("0")
    panel.get_by_role("button", name="Use for new chats").click()
    panel.get_by_role("button", name="Close the settings").click()


def draw_chats(browser: Browser, url: str, folder: Path) -> None:
    page = new_page(browser, url, "light")
    page.goto("/")
    set_up(page)
    for text in OTHERS:
        send(page, text)
        page.get_by_role("button", name="New chat Ctrl").click()
    for text in OTHERS:  # all at once; alone from here on, so that the figures are those of one stream
        page.get_by_role("navigation").get_by_text(text[:20]).click()
        whole(page)
    page.get_by_role("button", name="New chat Ctrl").click()
    ask(page, CODE)
    draw(page, folder / "web-light.png")
    page.emulate_media(color_scheme="dark")
    open_settings(page)
    ask(page, MORE)
    page.get_by_role("region", name="Conversation").focus()
    draw(page, folder / "web-dark.png")
    page.context.close()


def draw_phone(browser: Browser, url: str, folder: Path) -> None:
    page = new_page(browser, url, "light", 390, 780, 2)
    page.goto("/")
    set_up(page)
    ask(page, PHONE)
    draw(page, folder / "web-phone.png")
    page.context.close()


def draw_chat_in_terminal(browser: Browser, port: int, folder: Path) -> None:
    at = "" if port == 8000 else f" --url http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as cache,  # with a history of messages of its own
        Terminal(COLUMNS, folder, {**environment(), "XDG_CACHE_HOME": cache}) as terminal,
    ):
        terminal.type(f"anllm chat{at}", until=b">>> ")
        terminal.type("/set temperature 0", until=b">>> ")
        terminal.type(SHELL, until=b">>> ")
        terminal.type("/exit")
        terminal.draw(browser, folder / "cli-chat.png")


def draw_bench(browser: Browser, folder: Path) -> None:
    """Of the default model, whose figures stand in README.md too. The chart comes with it."""
    with Terminal(COLUMNS, folder.absolute(), environment()) as terminal:
        terminal.type(f"anllm bench {DEFAULT_MODEL} --chart bench.png")
        terminal.draw(browser, folder / "cli-bench.png")


def draw_load(browser: Browser, url: str, model: str, folder: Path) -> None:
    page = new_page(browser, url, "light", height=1190)
    page.goto("/#/load")
    expect(page.get_by_role("heading", name="Since the start")).to_be_visible()
    rows = page.get_by_role("table").locator("tbody tr")
    with crowd(url, model, MOST):
        page.wait_for_timeout(1000 * LOAD_S)
        expect(rows).to_have_count(OPEN_AT_THE_SHOT)
        draw(page, folder / "web-load.png")
    page.context.close()


if __name__ == "__main__":
    main()

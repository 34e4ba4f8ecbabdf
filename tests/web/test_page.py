"""The page itself: themes, keys, narrow screens, who may use it, what it loads."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from web.acting import ask, open_settings, send
from web.load import STATUS, MadeUpLoad
from web.scripted import ChatServer

WHITE, NEARLY_BLACK = "rgb(255, 255, 255)", "rgb(27, 27, 25)"


def test_the_theme_follows_the_system_until_one_is_chosen(page: Page) -> None:
    body = page.locator("body")
    page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", WHITE)
    page.emulate_media(color_scheme="dark")
    expect(body).to_have_css("background-color", NEARLY_BLACK)
    page.get_by_role("button", name="Light theme").click()
    expect(body).to_have_css("background-color", WHITE)
    page.reload()
    expect(body).to_have_css("background-color", WHITE)
    page.get_by_role("button", name="Dark theme").click()
    page.emulate_media(color_scheme="light")
    expect(body).to_have_css("background-color", NEARLY_BLACK)


def test_keys(page: Page) -> None:
    page.keyboard.press("Control+/")
    help_dialog = page.get_by_role("dialog", name="Help and keys")
    expect(help_dialog).to_contain_text("Stop the answer")
    page.keyboard.press("Escape")
    expect(help_dialog).to_have_count(0)
    page.keyboard.press("Control+,")
    panel = page.get_by_role("complementary", name="Chat settings")
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    sidebar = page.get_by_role("navigation", name="Chats")
    page.keyboard.press("Control+Shift+S")
    expect(sidebar).to_have_count(0)
    page.keyboard.press("Control+Shift+S")
    ask(page, "hello")
    page.keyboard.press("Control+Shift+O")
    expect(page.get_by_role("heading", name="What is on your mind?")).to_be_visible()
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_a_menu_by_keys(page: Page) -> None:
    ask(page, "hello")
    page.get_by_role("button", name="More for “hello”").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Rename")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("menuitem", name="Delete")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="More for “hello”")).to_be_focused()


def with_long_name(route: Route) -> None:
    listed = route.fetch().json()
    listed["data"][0]["id"] = "org/A-Model-Whose-Name-Is-Longer-Than-A-Phone-Is-Wide-70B-Instruct-4bit"
    route.fulfill(json=listed)


def test_a_phone(browser: Browser, server: ChatServer) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, base_url=server.url, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.route("**/v1/models", with_long_name)
    page.goto("/")
    sidebar = page.get_by_role("navigation", name="Chats")
    expect(sidebar).to_have_count(0)
    for text in ("everything", "merges overlapping intervals"):
        ask(page, text)
    assert page.evaluate("innerWidth") == 360  # grows with what is too wide
    assert page.evaluate("document.querySelector('.messages').scrollWidth") <= 360
    page.get_by_role("button", name="Show the sidebar").click()
    page.get_by_role("link", name="everything").click()
    expect(sidebar).to_have_count(0)
    page.get_by_role("main").get_by_role("button", name="Chat settings").click()
    expect(page.get_by_role("complementary", name="Chat settings")).to_be_in_viewport()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_hinders_anybody(browser: Browser, server: ChatServer, scheme: str, width: int) -> None:
    """axe-core's rules for WCAG 2.2 A and AA: names, roles, contrast, order."""
    server.metrics = MadeUpLoad()
    server.status = STATUS
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
        base_url=server.url,
        bypass_csp=True,  # so that axe can be put into the page
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto("/")
    expect(page.get_by_role("button", name="Model: ")).to_be_visible()
    check(page, "empty")
    for text in ("everything", "think of 17 and 25", "merges overlapping intervals"):
        ask(page, text)
    check(page, "chat")
    open_settings(page, "More sampling", "Reasoning", "Answer format", "Tools").get_by_text("JSON schema").click()
    check(page, "settings")
    page.keyboard.press("Control+k")
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page, "search")
    page.keyboard.press("Escape")
    page.goto("/#/load")
    expect(page.get_by_role("heading", name="Inter-token latency")).to_be_visible()
    check(page, "load")
    context.close()


def check(page: Page, where: str) -> None:
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    result = Axe().run(page, options={"runOnly": {"type": "tag", "values": tags}})
    found = [
        (violation["id"], [(node["html"][:120], node["failureSummary"][:300]) for node in violation["nodes"][:3]])
        for violation in result.response["violations"]
    ]
    assert found == [], where
    assert len(result.response["passes"]) > 15, "axe saw no page"


def test_on_paper_stands_the_whole_chat_alone(page: Page) -> None:
    for text in ("everything", "merges overlapping intervals", "everything"):
        ask(page, text)
    page.emulate_media(media="print", color_scheme="dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    expect(page.get_by_role("navigation", name="Chats")).to_be_hidden()
    expect(page.get_by_role("article", name="Answer").first).to_be_visible()
    assert page.evaluate(
        "document.querySelector('.messages').scrollHeight <= document.querySelector('.messages').clientHeight"
    )
    assert page.evaluate("document.documentElement.scrollHeight > 1000")


def test_everything_comes_from_this_server(context: BrowserContext, server: ChatServer) -> None:
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/")
    ask(page, "everything")
    page.goto("/#/load")
    assert asked and [url for url in asked if not url.startswith((server.url, "blob:"))] == []


def test_the_policy_keeps_foreign_scripts_out(browser: Browser, server: ChatServer) -> None:
    """Even one that got into the page."""
    page = browser.new_page(base_url=server.url)
    page.goto("/")
    said = page.evaluate(
        """() => {
            try { document.body.innerHTML = "<img src=x onerror='window.hacked = 1'>"; }
            catch (error) { return error.name; }
        }"""
    )
    assert said == "TypeError"  # trusted types: no HTML but what was cleaned
    page.close()


def test_the_load_page_draws_the_metrics(page: Page, server: ChatServer) -> None:
    load = MadeUpLoad()
    for _ in range(40):
        text = load()
    server.metrics = lambda: text
    page.get_by_role("button", name="Server load").click()
    expect(page.get_by_role("heading", name="Server load")).to_be_visible()
    chart = page.get_by_role("img", name="Inter-token latency: ")
    expect(
        page.get_by_role("img", name="Time to first token: p50 \u2013, p95 \u2013")
    ).to_be_visible()  # nothing came since
    load()
    server.metrics = load
    expect(chart.locator("path.line")).to_have_count(2)
    expect(page.get_by_role("img", name="Requests: Running ")).to_be_visible()
    running = page.locator(".tile", has_text="Running").locator("strong")
    expect(running).to_have_text(str(number_of(text, "vllm:num_requests_running")))


def test_the_load_page_of_the_server_itself(page: Page, server: ChatServer) -> None:
    """Without anything made up: what the server counts under the names that the page looks for."""
    ask(page, "hello there")
    send(page, "slow please")
    expect(page.get_by_role("article", name="Answer").last.locator(".markdown")).to_contain_text(re.compile(r"\w"))
    page.get_by_role("button", name="Server load").click()
    expect(page.locator(".tile", has_text="Running").locator("strong")).to_have_text("1")
    expect(page.locator(".tile", has_text="KV memory").locator("strong")).to_have_text(re.compile(r"[\d.]+ %"))
    expect(page.locator(".tile", has_text="Generating").locator("strong")).to_have_text(re.compile(r"[1-9]"))
    expect(page.get_by_role("img", name=re.compile(r"Inter-token latency: p50 [\d.]+ m?s, p95"))).to_be_visible()
    expect(page.locator(".totals").first).to_contain_text(re.compile(r"Requests finished[1-9]"))
    expect(page.get_by_role("row", name=re.compile("decode"))).to_be_visible()
    page.get_by_role("link", name="hello there").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()  # the chat is there, and hears the key
    page.keyboard.press("Escape")
    server.until_idle()


def test_the_load_page_lists_open_requests(page: Page, server: ChatServer) -> None:
    server.metrics = MadeUpLoad()
    page.route("**/v1/status", lambda route: route.fulfill(status=404, body="{}"))
    page.goto("/#/load")
    expect(page.get_by_role("heading", name="Since the start")).to_be_visible()
    expect(page.get_by_role("heading", name="Open requests")).to_have_count(0)
    page.unroute("**/v1/status")
    server.status = STATUS
    expect(page.get_by_role("row", name="prefill 310 ms 8,120 2,048 0")).to_be_visible()
    expect(page.get_by_text("7.0 GiB of 12.0 GiB")).to_be_visible()
    rows = [
        {"request_id": s, "stage": s, "age_s": 1.0, "prompt_tokens": 1, "cached_tokens": 0, "output_tokens": 0}
        for s in ("waiting", "prefill", "decode")
    ]
    server.status = {**STATUS, "rows": rows}
    badges = page.locator("td span", has_text=re.compile("^(waiting|prefill|decode)$"))
    expect(badges).to_have_count(3)
    assert len({badge.bounding_box()["height"] for badge in badges.all()}) == 1, "each is as high as its text"
    server.status = {**STATUS, "rows": []}
    expect(page.get_by_text("None at the moment.")).to_be_visible()


def number_of(text: str, name: str) -> int:
    (line,) = [line for line in text.splitlines() if line.startswith(name + "{")]
    return int(line.split()[-1])


def test_the_load_page_without_metrics(page: Page, server: ChatServer) -> None:
    page.route("**/metrics", lambda route: route.fulfill(status=404, body="{}"))
    page.goto("/#/load")
    expect(page.get_by_text("This server has no /metrics")).to_be_visible()


def test_the_load_page_asks_for_the_key(page: Page, server: ChatServer) -> None:
    server.metrics = MadeUpLoad()
    server.key = "right"
    page.goto("/#/load")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="API key").fill("right")
    dialog.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("heading", name="Inter-token latency")).to_be_visible()

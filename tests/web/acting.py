"""What a user does on the page, in a word each."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect


def send(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def ask(page: Page, text: str) -> Locator:
    """Sends it, and gives the answer when it is whole."""
    num_before = page.get_by_role("article", name="Answer").count()
    send(page, text)
    expect(page.get_by_role("article", name="Answer")).to_have_count(num_before + 1)
    return whole(page)


def whole(page: Page) -> Locator:
    answer = page.get_by_role("article", name="Answer").last
    expect(answer).to_have_attribute("aria-busy", "false")
    return answer


def open_settings(page: Page, *sections: str) -> Locator:
    page.get_by_role("main").get_by_role("button", name="Chat settings").click()
    panel = page.get_by_role("complementary", name="Chat settings")
    for section in sections:
        panel.locator("summary", has_text=section).click()
    return panel


def stored_chats(page: Page) -> list[dict[str, object]]:
    """What the browser keeps."""
    return page.evaluate(
        """() => new Promise((resolve) => {
            const open = indexedDB.open("anllm", 1);
            open.onsuccess = () => {
                const all = open.result.transaction("conversations").objectStore("conversations").getAll();
                all.onsuccess = () => { open.result.close(); resolve(all.result); };
            };
        })"""
    )

"""Sending, streaming, stopping, branching, keeping: as a user sees it, in Chromium."""

from __future__ import annotations

import json
import re

from playwright.sync_api import BrowserContext, Page, expect

from web.acting import ask, open_settings, send, stored_chats, whole
from web.scripted import ChatServer


def test_an_answer_comes_with_its_figures(page: Page, server: ChatServer) -> None:
    server.step_s = 0.01
    answer = ask(page, "hello there")
    expect(answer).to_contain_text("You said: hello there")
    figures = answer.get_by_role("list", name="Figures of this answer")
    expect(figures).to_contain_text(re.compile(r"\d+ → 22 tokens"))
    expect(figures).to_contain_text(re.compile(r"[\d.,]+ tok/s"))
    expect(figures).to_contain_text(re.compile(r"\d+ ms TTFT"))
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_an_answer_that_came_at_once_tells_no_rate(page: Page) -> None:
    """Where a token took no time that can be measured: 22 of them in a tenth of a millisecond were 210,000 tok/s."""
    figures = ask(page, "x").get_by_role("list", name="Figures of this answer")
    expect(figures).to_contain_text(re.compile(r"\d+ ms TTFT"))
    expect(figures).not_to_contain_text("tok/s")


def test_an_answer_grows_while_it_comes_and_stops_when_told(page: Page, server: ChatServer) -> None:
    send(page, "slow please")
    answer = page.get_by_role("article", name="Answer")
    expect(answer.locator(".markdown")).to_contain_text(re.compile(r"\w{3}"))
    first = answer.inner_text()
    expect(answer).not_to_have_text(first)
    page.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("stopped")
    server.until_idle()  # the server gave it up too
    kept = answer.locator(".markdown").inner_text()
    assert kept
    page.reload()
    expect(answer.locator(".markdown")).to_have_text(kept)


def test_escape_stops(page: Page, server: ChatServer) -> None:
    send(page, "slow please")
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w"))
    page.keyboard.press("Escape")
    expect(whole(page)).to_contain_text("stopped")
    server.until_idle()


def test_enter_sends_and_shift_enter_breaks_the_line(page: Page) -> None:
    page.get_by_role("textbox", name="Message").fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Your message")).to_have_text("one\ntwo")


def test_chats_are_there_after_a_reload(page: Page) -> None:
    ask(page, "the first chat")
    page.get_by_role("button", name="New chat Ctrl").click()
    ask(page, "the second chat")
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: the second chat")
    page.get_by_role("link", name="the first chat").click()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: the first chat")


def test_a_closed_page_keeps_what_had_come(page: Page, server: ChatServer) -> None:
    send(page, "slow please")
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w{3}"))
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("stopped")
    server.until_idle()


def test_two_chats_are_answered_at_once(page: Page) -> None:
    send(page, "slow please")
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w"))
    page.get_by_role("button", name="New chat Ctrl").click()
    expect(ask(page, "quick one")).to_contain_text("You said: quick one")
    page.get_by_role("link", name="slow please").click()
    before = page.locator(".markdown").inner_text()
    expect(page.locator(".markdown")).not_to_have_text(before)
    page.keyboard.press("Escape")
    expect(whole(page)).to_contain_text("stopped")


def test_another_tab_learns_of_a_chat(context: BrowserContext, page: Page) -> None:
    other = context.new_page()
    other.goto("/")
    ask(page, "seen everywhere")
    expect(other.get_by_role("link", name="seen everywhere")).to_be_visible()


def test_an_edited_message_is_a_branch(page: Page, server: ChatServer) -> None:
    ask(page, "first words")
    ask(page, "then this")
    message = page.get_by_role("article", name="Your message").first
    message.hover()
    message.get_by_role("button", name="Edit message").click()
    editor = page.get_by_role("form", name="Edit message")
    editor.get_by_role("textbox").fill("other words")
    editor.get_by_role("button", name="Send").click()
    expect(whole(page)).to_contain_text("You said: other words")
    expect(page.get_by_role("article", name="Answer")).to_have_count(1)
    message.hover()
    expect(message.get_by_role("group", name="Versions")).to_contain_text("2 / 2")
    message.get_by_role("button", name="Earlier version").click()
    expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    expect(page.get_by_role("article", name="Answer").last).to_contain_text("You said: then this")
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_have_count(2)


def test_an_answer_asked_for_again_is_a_branch(page: Page) -> None:
    answer = ask(page, "hello")
    answer.get_by_role("button", name="Answer again").click()
    expect(answer.get_by_role("group", name="Versions")).to_contain_text("2 / 2")
    expect(whole(page)).to_contain_text("You said: hello")
    expect(page.get_by_role("article", name="Answer")).to_have_count(1)


def test_markdown_is_drawn_and_nothing_else_runs(page: Page, server: ChatServer) -> None:
    answer = ask(page, "everything")
    expect(answer.get_by_role("heading", name="A heading")).to_be_visible()
    expect(answer.get_by_role("link", name="link")).to_have_attribute("href", "https://example.org/?a=1&b=2")
    expect(answer.get_by_role("link", name="link")).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(answer.locator("em", has_text="emphasis")).to_be_visible()
    expect(answer.locator("li li", has_text="three")).to_be_visible()
    expect(answer.locator("blockquote")).to_have_text("A quote.")
    expect(answer.locator("td[align=right]")).to_have_text("1")
    expect(answer.locator(".hljs-keyword", has_text="const")).to_be_visible()  # colours came
    expect(answer.locator(".math")).to_have_text([r"\(a_1 * b_1 + a_2 * b_2\)", r"$$\sum_i x_i$$"])
    # as it is written, since it is text
    expect(answer).to_contain_text("<script>window.hacked = 1</script>")
    expect(answer).to_contain_text('<div class="composer"')
    assert answer.locator("img, script, iframe, .composer, [style], [onerror]").count() == 0
    assert answer.locator("a[href^=javascript]").count() == 0
    expect(answer.get_by_role("link", name="picture")).to_be_visible()
    assert page.evaluate("window.hacked") is None


def test_lists_of_tasks_and_what_is_folded_away(page: Page) -> None:
    answer = ask(page, "things to do")
    expect(answer.get_by_role("listitem").filter(has_text="boil water").get_by_role("img", name="done")).to_be_visible()
    expect(answer.get_by_role("listitem").filter(has_text="tea").get_by_role("img", name="to do")).to_be_visible()
    folded = answer.locator("details")
    expect(folded.get_by_text("Four minutes.")).to_be_hidden()
    folded.locator("summary em", has_text="long").click()
    expect(folded.get_by_text("Four minutes.")).to_be_visible()
    expect(folded.get_by_role("listitem", name="")).to_have_text("or five")
    expect(answer.get_by_text("That is all.")).to_be_visible()
    expect(answer).not_to_contain_text("<")


def test_lines_from_right_to_left_stay_in_their_column(page: Page) -> None:
    answer = ask(page, "from right to left")
    expect(answer.locator(".markdown ul")).to_have_css("direction", "rtl")
    expect(answer.locator(".markdown ul")).to_have_css("padding-left", "0px")  # the bullets stand at the right
    expect(answer.locator("blockquote")).to_have_css("border-left-width", "0px")
    expect(answer.locator("pre")).to_have_css("direction", "ltr")


def test_code_and_answers_are_copied(page: Page) -> None:
    answer = ask(page, "everything")
    answer.get_by_role("button", name="Copy").first.click()
    expect(answer.get_by_role("button", name="Copied").first).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == 'const answer = "<b>42</b>";'
    answer.locator(".actions").get_by_role("button", name="Copy").click()
    page.wait_for_function("navigator.clipboard.readText().then((text) => text.startsWith('# A heading'))")


def test_thoughts_are_folded(page: Page) -> None:
    answer = ask(page, "think of 17 and 25")
    expect(answer).to_contain_text("17 + 25 = 42.")
    thoughts = answer.locator("details", has_text="Thoughts")
    expect(thoughts.locator("strong")).to_be_hidden()
    thoughts.locator("summary").click()
    expect(thoughts.locator("strong")).to_have_text("17 and 25")
    expect(thoughts).to_contain_text("tokens")


def test_a_tool_is_called_and_its_result_typed_in(page: Page) -> None:
    panel = open_settings(page, "Tools")
    panel.get_by_role("button", name="Fill in an example").click()
    expect(panel).to_contain_text("you type in what they give")
    answer = ask(page, "call it")
    expect(answer).to_contain_text("Let me look.")
    call = answer.locator("details", has_text="get_weather")
    expect(call.locator("code").last).to_have_text('{\n  "city": "Oslo"\n}')
    call.get_by_role("textbox", name="Result of get_weather").fill("4 degrees, rain")
    answer.get_by_role("button", name="Send result").click()
    expect(page.get_by_role("article", name="Answer")).to_have_count(2)
    expect(whole(page)).to_contain_text("It says 4 degrees, rain.")
    expect(page.get_by_role("article", name="Answer").first.locator("details")).to_contain_text("4 degrees, rain")


def test_json_by_a_schema(page: Page) -> None:
    panel = open_settings(page, "Answer format")
    panel.get_by_text("JSON schema").click()
    schema = panel.get_by_role("textbox", name="Schema")
    schema.fill('{"type": "object", "properties": {"age": {"type": "int"}}}')
    expect(panel).to_contain_text('/properties/age/type is "int"; allowed: string')
    expect(page.get_by_role("button", name=re.compile("JSON schema: "))).to_be_visible()
    schema.fill('{"type": "object",\n}')
    expect(panel).to_contain_text("Not JSON at line 2, column 1")
    page.get_by_role("textbox", name="Message").fill("person")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_disabled()
    panel.get_by_role("button", name="Clear").click()
    panel.get_by_role("button", name="Fill in an example").click()
    expect(panel).to_contain_text("The schema is well-formed")
    answer = ask(page, "person")
    expect(answer.locator("code")).to_have_text('{\n  "name": "Ada",\n  "age": 36\n}')
    expect(answer).to_contain_text("valid JSON")


def test_settings_are_sent_and_kept_with_the_chat(page: Page) -> None:
    panel = open_settings(page, "More sampling", "Reasoning")
    panel.get_by_role("textbox", name="System prompt").fill("Be brief.")
    for name, value in {
        "Temperature": "0.5",
        "Max tokens": "4",
        "Top p": "0.9",
        "Top k": "40",
        "Min p": "0.05",
        "Seed": "7",
        "Presence penalty": "0.5",
        "Frequency penalty": "-0.5",
        "Repetition penalty": "1.1",
    }.items():
        panel.get_by_role("textbox", name=name).fill(value)
    panel.get_by_role("textbox", name="Stop at").fill("END\nSTOP")
    panel.get_by_role("combobox", name="Effort").select_option("low")
    with page.expect_request("**/v1/chat/completions") as asked:
        answer = ask(page, "hello")
    body = json.loads(asked.value.post_data or "")
    expected = {
        "temperature": 0.5,
        "max_tokens": 4,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "stop": ["END", "STOP"],
        "reasoning_effort": "low",
    }
    assert {name: body[name] for name in expected} == expected
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    expect(answer).to_contain_text("cut at the token limit")
    page.reload()
    open_settings(page)
    expect(panel.get_by_role("textbox", name="Temperature")).to_have_value("0.5")
    page.get_by_role("button", name="New chat Ctrl").click()
    expect(panel.get_by_role("textbox", name="Temperature")).to_have_value("")


def test_a_plain_chat_sends_no_settings(page: Page) -> None:
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "hello")
    body = json.loads(asked.value.post_data or "")
    assert body.keys() == {"model", "messages", "stream", "stream_options"}


def test_a_number_out_of_bounds_is_told_and_not_taken(page: Page) -> None:
    panel = open_settings(page)
    field = panel.get_by_role("textbox", name="Temperature")
    field.fill("1.5")
    field.fill("15")
    expect(panel).to_contain_text("0 to 2")
    field.blur()
    expect(field).to_have_value("1.5")


def test_rename_delete_and_undo(page: Page) -> None:
    ask(page, "hello")
    item = page.get_by_role("link", name="hello")
    item.hover()
    page.get_by_role("button", name="More for “hello”").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("Greetings")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="Greetings")).to_be_visible()
    page.reload()
    page.get_by_role("link", name="Greetings").hover()
    page.get_by_role("button", name="More for “Greetings”").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(page.get_by_role("link", name="Greetings")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: hello")
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: hello")


def test_a_chat_deleted_while_it_is_answered_comes_back_ended(page: Page, server: ChatServer) -> None:
    send(page, "slow please")
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w"))
    page.get_by_role("button", name="More for “slow please”").click()
    page.get_by_role("menuitem", name="Delete").click()
    server.until_idle()
    page.get_by_role("button", name="Undo").click()
    expect(whole(page)).to_contain_text("stopped")


def test_search_finds_words_in_messages(page: Page) -> None:
    ask(page, "about whales")
    page.get_by_role("button", name="New chat Ctrl").click()
    ask(page, "about birds\nand their zygodactyl feet")
    page.get_by_role("button", name="New chat Ctrl").click()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search chats and commands").fill("zygodactyl")
    expect(page.get_by_role("option")).to_have_count(1)
    expect(page.get_by_role("option").locator("mark")).to_have_text("zygodactyl")
    page.keyboard.press("Enter")
    expect(page.get_by_role("article", name="Your message")).to_contain_text("about birds")


def test_export_and_import(page: Page, context: BrowserContext) -> None:
    ask(page, "keep me")
    page.get_by_role("button", name="Preferences").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = json.loads(download.value.path().read_text())
    assert file["format"] == "anllm-conversations" and len(file["conversations"]) == 1
    page.get_by_role("button", name="Delete all").click()
    expect(page.get_by_role("link", name="keep me")).to_have_count(0)
    page.get_by_role("button", name="Preferences").click()
    page.get_by_label("File to import").set_input_files(download.value.path())
    expect(page.get_by_text("One chat imported")).to_be_visible()
    page.get_by_role("link", name="keep me").click()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: keep me")
    page.reload()
    expect(page.get_by_role("article", name="Answer")).to_contain_text("You said: keep me")
    assert [chat["title"] for chat in stored_chats(page)] == ["keep me"]


def test_a_file_that_is_none_is_refused_in_words(page: Page) -> None:
    page.get_by_role("button", name="Preferences").click()
    page.get_by_label("File to import").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": b"[1]"}
    )
    expect(page.get_by_text("This file was not exported from here.")).to_be_attached()

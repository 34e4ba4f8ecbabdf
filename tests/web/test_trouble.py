"""What goes wrong is told, with what to do, and can be tried again."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from web.acting import ask, send, whole
from web.scripted import ChatServer


def refusal(status: int, message: str, code: str | None = None, *headers: tuple[bytes, bytes]) -> tuple[object, ...]:
    error = {"message": message, "type": "x", "param": None, "code": code}
    return status, {"error": error}, *headers


def test_a_refusal_is_told_and_tried_again(page: Page, server: ChatServer) -> None:
    server.refusals = [refusal(400, "This model's maximum context length is 8 tokens.", "context_length_exceeded")]
    send(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The conversation is too long")
    expect(alert).to_contain_text("maximum context length is 8 tokens")
    expect(alert).to_contain_text("Start a new chat")
    alert.get_by_role("button", name="Try again").click()
    expect(whole(page)).to_contain_text("You said: hello")


def test_a_busy_server_says_when_to_try_again(page: Page, server: ChatServer) -> None:
    server.refusals = [refusal(429, "The queue is full.", None, (b"retry-after", b"5"))]
    send(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The server is busy")
    expect(alert.get_by_role("button", name=re.compile(r"Try again in \d s"))).to_be_disabled()
    alert.get_by_role("button", name="Try again", exact=True).click()
    expect(whole(page)).to_contain_text("You said: hello")


def test_a_step_that_fails_ends_the_answer_with_its_error(page: Page, server: ChatServer) -> None:
    send(page, "slow please")
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w"))
    server.gate.fails = lambda plan: True
    expect(page.get_by_role("alert")).to_contain_text("Try again")
    server.gate.fails = lambda plan: False
    expect(page.locator(".markdown")).to_contain_text(re.compile(r"\w"))  # what had come stays


def test_a_stream_that_breaks_off(page: Page, server: ChatServer) -> None:
    server.cuts = 1
    server.step_s = 0.05  # its pieces go out one by one, and a part of the answer comes before the end
    send(page, "hello")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The answer broke off")
    alert.get_by_role("button", name="Try again").click()
    expect(whole(page)).to_contain_text("You said: hello")


def test_no_server(page: Page, server: ChatServer) -> None:
    expect(page.get_by_role("button", name=re.compile("Model: "))).to_be_visible()
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    send(page, "hello")
    expect(page.get_by_role("alert")).to_contain_text("The server can't be reached.")
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Try again").click()
    expect(whole(page)).to_contain_text("You said: hello")


def test_a_message_waits_until_the_model_has_loaded(page: Page, server: ChatServer) -> None:
    tokenizer, server.service.tokenizer = server.service.tokenizer, None
    try:
        page.reload()
        expect(page.get_by_text("The model is loading.")).to_be_visible()
        send(page, "hello")
        expect(page.get_by_text("Your message is sent as soon as it is ready.")).to_be_visible()
    finally:
        server.service.tokenizer = tokenizer
    expect(whole(page)).to_contain_text("You said: hello")


def test_a_model_that_cannot_be_loaded_is_told_of(page: Page, server: ChatServer) -> None:
    server.service.start_error = "There is no such file."
    try:
        page.reload()
        expect(page.get_by_text("The model could not be loaded")).to_be_visible()
        send(page, "hello")
        expect(page.get_by_role("alert")).to_contain_text("There is no such file.")
    finally:
        server.service.start_error = None


def test_waiting_for_the_model_can_be_stopped(page: Page, server: ChatServer) -> None:
    tokenizer, server.service.tokenizer = server.service.tokenizer, None
    try:
        page.reload()
        send(page, "hello")
        page.get_by_role("button", name="Stop").click()
        expect(whole(page)).to_contain_text("Stopped before the first word.")
    finally:
        server.service.tokenizer = tokenizer


def test_the_key_is_asked_for_kept_and_sent(page: Page, server: ChatServer) -> None:
    server.key = "right"
    page.reload()
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    field = dialog.get_by_role("textbox", name="API key")
    expect(field).to_be_focused()
    field.fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog.get_by_role("alert")).to_contain_text("refuses this key")
    field.fill("right")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    expect(ask(page, "hello")).to_contain_text("You said: hello")
    page.reload()
    expect(ask(page, "again")).to_contain_text("You said: again")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_key_that_ends_is_asked_for_anew(page: Page, server: ChatServer) -> None:
    ask(page, "hello")
    server.key = "new"
    send(page, "more")
    dialog = page.get_by_role("dialog", name="This server needs an API key")
    dialog.get_by_role("textbox", name="API key").fill("new")
    dialog.get_by_role("button", name="Use this key").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("button", name="Try again").click()
    expect(whole(page)).to_contain_text("You said: more")

"""anthropic for Python, major versions 0 and 2: the Messages API, its beta face and its helpers."""

from __future__ import annotations

import json
import threading
import time

import anthropic
from pydantic import BaseModel

from checks import (
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    CITY,
    GREET,
    GREETING,
    LOOK,
    MODEL,
    NUM_PROMPT,
    OSLO,
    SLOW,
    THOUGHT,
    UNICODE,
    URL,
    WRITE_ANN,
    at_once,
    cancels,
    full,
    main,
    num_open,
    raises,
    repeated,
    told,
    until_idle,
    user,
)

FIELDS = {"base_url": URL, "api_key": "none", "max_retries": 0, "timeout": 60}
client = anthropic.Anthropic(**FIELDS)
GREEDY = {"temperature": 0}  # major version 2 has no name for it any more
THINKING = {"type": "enabled", "budget_tokens": 1024}


class Person(BaseModel):
    name: str
    age: int


def tool(schema=CITY, name="get_weather", **fields):
    return {"name": name, "description": "The weather in a city.", "input_schema": schema, **fields}


TOOLS = [tool()]
NAMED = {"type": "tool", "name": "get_weather"}


def ask(asked="greet", **fields):
    messages = user(asked) if isinstance(asked, str) else asked
    return client.messages.create(**{"model": MODEL, "max_tokens": 1000, "messages": messages, **fields})


def streamed(asked="greet", *, messages=None, **fields):
    """The events and the message that the client's helper puts together of them."""
    fields = {"model": MODEL, "max_tokens": 1000, "messages": messages or user(asked), **fields}
    with client.messages.stream(**fields) as stream:
        events = list(stream)
        return events, stream.get_final_message()


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def kinds_of(message):
    return [block.type for block in message.content]


def calls_of(message):
    """Name and input of each call, which all have ids of their own."""
    calls = [block for block in message.content if block.type == "tool_use"]
    assert all(call.id.startswith("toolu_") for call in calls) and len({call.id for call in calls}) == len(calls)
    return [(call.name, call.input) for call in calls]


def results_of(message, content="12 degrees"):
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": content}
        for block in message.content
        if block.type == "tool_use"
    ]


def answered(asked, called, *more):
    """The conversation up to what the tools gave back."""
    content = [*results_of(called), *more]
    return [*user(asked), {"role": "assistant", "content": called.content}, {"role": "user", "content": content}]


def num_prompt(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def scripted_an_answer_has_text_reason_and_usage():
    message = ask()
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert message.id.startswith("msg_") and message._request_id
    assert (kinds_of(message), text_of(message)) == (["text"], GREETING)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (num_prompt(message.usage), message.usage.output_tokens) == (NUM_PROMPT, len(GREETING) + 1)
    type(message).model_validate(message.to_dict())  # which the client itself does not do


def scripted_a_stream_gives_the_same():
    events, message = streamed()
    assert (text_of(message), message.stop_reason, message.stop_sequence) == (GREETING, "end_turn", None)
    assert (num_prompt(message.usage), message.usage.output_tokens) == (NUM_PROMPT, len(GREETING) + 1)
    assert "".join(event.text for event in events if event.type == "text") == GREETING
    raw = list(ask(stream=True))
    assert [event.type for event in raw if event.type != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    for event in raw:
        type(event).model_validate(event.to_dict())
    with client.messages.stream(model=MODEL, max_tokens=1000, messages=GREET) as stream:
        assert "".join(stream.text_stream) == GREETING == stream.get_final_text()


def scripted_the_whole_conversation_arrives():
    turns = [("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat")]
    messages = [{"role": role, "content": text} for role, text in turns]
    expected = repeated(("system", "Be brief."), *turns)
    assert text_of(ask(messages, system="Be brief.")) == expected
    cached = {"cache_control": {"type": "ephemeral"}}
    blocks = [{"role": role, "content": [{"type": "text", "text": text, **cached}]} for role, text in turns]
    system = [{"type": "text", "text": "Be brief.", **cached}]
    assert text_of(ask(blocks, system=system, tools=[tool(**cached)], **cached)) == expected
    assert text_of(streamed(messages=blocks, system=system)[1]) == expected
    first = ask()
    messages = [*GREET, {"role": first.role, "content": first.content}, *user("repeat")]
    assert text_of(ask(messages)) == repeated(("user", "greet"), ("assistant", GREETING), ("user", "repeat"))


def scripted_stop_sequences_and_limits_end_an_answer():
    stop, limit = {"stop_sequences": ["nobody says this", " Ann"]}, {"max_tokens": 5}
    for message in (ask(**stop), streamed(**stop)[1]):
        expected = ("Hello there,", "stop_sequence", " Ann")
        assert (text_of(message), message.stop_reason, message.stop_sequence) == expected
    for message in (ask(**limit), streamed(**limit)[1]):
        assert (text_of(message), message.stop_reason, message.stop_sequence) == ("Hello", "max_tokens", None)
        assert message.usage.output_tokens == 5
    assert text_of(ask(stop_sequences=[" "])) == "Hello"


def scripted_unicode_comes_through_whole_and_streamed():
    assert text_of(ask("unicode")) == UNICODE
    events, message = streamed("unicode")
    assert text_of(message) == UNICODE
    assert len([event for event in events if event.type == "text"]) > 1


def scripted_a_tool_is_called_and_its_result_answered():
    for choice in ({"type": "auto"}, {"type": "any"}, NAMED):
        called = ask(CALL_OSLO, tools=TOOLS, tool_choice=choice)
        assert called.stop_reason == "tool_use" and calls_of(called) == [("get_weather", {"city": "Oslo"})]
        type(called).model_validate(called.to_dict())
        events, message = streamed(CALL_OSLO, tools=TOOLS, tool_choice=choice)
        assert calls_of(message) == calls_of(called) and message.stop_reason == "tool_use"
        assert "".join(event.partial_json for event in events if event.type == "input_json")
    for messages in (answered(CALL_OSLO, called), answered(CALL_OSLO, message)):
        assert text_of(ask(messages, tools=TOOLS)) == told("12 degrees")
        assert text_of(streamed(messages=messages, tools=TOOLS)[1]) == told("12 degrees")
    wrong = answered(CALL_OSLO, called)
    wrong[-1]["content"][0]["tool_use_id"] = "toolu_other"
    assert "toolu_other" in str(raises(anthropic.BadRequestError, ask, wrong, tools=TOOLS))


def scripted_several_calls_and_words_before_them():
    expected = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
    called = ask(CALL_TWICE, tools=TOOLS)
    assert calls_of(called) == expected == calls_of(streamed(CALL_TWICE, tools=TOOLS)[1])
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert calls_of(ask(CALL_TWICE, tools=TOOLS, tool_choice=one)) == expected[:1]
    final = ask(answered(CALL_TWICE, called), tools=TOOLS)
    assert text_of(final) == told("12 degrees", "12 degrees")
    look = CALL_OSLO.replace("call", "look")
    for message in (ask(look, tools=TOOLS), streamed(look, tools=TOOLS)[1]):
        assert kinds_of(message) == ["text", "tool_use"]
        assert text_of(message).strip() == LOOK and calls_of(message) == expected[:1]


def scripted_tool_choice_binds_a_model_that_wants_something_else():
    fields = {"tools": [tool(OSLO, "get_time"), tool(OSLO)], "tool_choice": NAMED}
    assert calls_of(ask(**fields)) == calls_of(streamed(**fields)[1]) == [("get_weather", {"city": "Oslo"})]
    assert not calls_of(ask(CALL_OSLO, tools=TOOLS, tool_choice={"type": "none"}))
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert text_of(ask(tools=[*TOOLS, search])) == GREETING
    long = tool(OSLO, "mcp__" + "x" * 123)
    assert calls_of(ask(tools=[long], tool_choice={"type": "any"})) == [(long["name"], {"city": "Oslo"})]


def scripted_answers_are_parsed():
    fields = {"model": MODEL, "max_tokens": 1000, "messages": user(WRITE_ANN)}
    parsed = client.messages.parse(**fields, output_format=Person)
    assert parsed.parsed_output == Person(name="Ann", age=31)
    with client.messages.stream(**fields, output_format=Person) as stream:
        assert stream.get_final_message().parsed_output == Person(name="Ann", age=31)
    form = {"format": {"type": "json_schema", "schema": OSLO}}
    assert json.loads(text_of(ask(output_config=form))) == {"city": "Oslo"}


def scripted_the_beta_face():
    fields = {"model": MODEL, "max_tokens": 1000, "betas": ["context-management-2025-06-27", "of-tomorrow"]}
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    message = client.beta.messages.create(**fields, messages=GREET, context_management=edits)
    assert text_of(message) == GREETING
    with client.beta.messages.stream(**fields, messages=user(CALL_OSLO), tools=TOOLS) as stream:
        assert calls_of(stream.get_final_message()) == [("get_weather", {"city": "Oslo"})]
    parsed = client.beta.messages.parse(**fields, messages=user(WRITE_ANN), output_format=Person)
    assert parsed.parsed_output == Person(name="Ann", age=31)
    counted = client.beta.messages.count_tokens(model=MODEL, messages=GREET, betas=fields["betas"])
    assert counted.input_tokens == NUM_PROMPT


def scripted_the_clients_own_loop_of_tools():
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"12 degrees in {city}"

    fields = {"model": MODEL, "max_tokens": 1000, "tools": [get_weather]}
    text = f"{CALL_TWICE} then {CALL_OSLO}"
    cities = ["Oslo", "Bergen", "Oslo"]
    expected = told(*(f"12 degrees in {city}" for city in cities))
    runner = client.beta.messages.tool_runner(**fields, messages=user(text))
    assert text_of(runner.until_done()) == expected and asked == cities
    asked.clear()
    *_, last = client.beta.messages.tool_runner(**fields, messages=user(text), stream=True)
    assert text_of(last.get_final_message()) == expected and asked == cities


def scripted_tokens_are_counted():
    count = client.messages.count_tokens
    assert count(model=MODEL, messages=GREET).input_tokens == NUM_PROMPT
    more = {"system": "Be brief.", "thinking": THINKING, "tool_choice": {"type": "auto"}}
    counted = count(model=MODEL, messages=GREET, tools=TOOLS, **more)
    assert counted.input_tokens == num_prompt(ask(tools=TOOLS, **more).usage)


def scripted_models():
    (model,) = client.models.list(limit=20)
    assert (model.id, model.type, model.to_dict()["lifecycle"]) == (MODEL, "model", "active")
    type(model).model_validate(model.to_dict())
    assert model.max_input_tokens == 8192 and model.created_at.year > 2020 and model.display_name == MODEL
    assert client.models.retrieve(MODEL) == model
    assert "'other'" in str(raises(anthropic.NotFoundError, client.models.retrieve, "other"))
    assert [model.id for model in client.beta.models.list()] == [MODEL]


def scripted_mistakes_become_the_clients_exceptions():
    for fields, words in (
        ({"extra_body": {"temperature": 5}}, "'temperature'"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [tool({"type": "town"}, strict=True)]}, "tools[0].input_schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"enum": []}}}}, "output_config.format"),
        ({"asked": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "text only"),
        ({"asked": "x" * 9000}, "prompt is too long"),
        ({"max_tokens": 0}, "max_tokens"),
    ):
        for is_stream in (False, True):
            error = raises(anthropic.BadRequestError, ask, stream=is_stream, **fields)
            assert words in str(error) and error.body["error"]["type"] == "invalid_request_error"
            assert error.request_id == error.body["request_id"]
    error = raises(anthropic.NotFoundError, ask, model="other")
    assert error.body["error"]["type"] == "not_found_error" and MODEL in str(error)


def scripted_a_full_server_is_asked_again():
    with full():
        error = raises(anthropic.RateLimitError, ask)
        assert error.body["error"]["type"] == "rate_limit_error" and int(error.response.headers["retry-after"]) == 1
    with full() as release:
        threading.Timer(0.3, release).start()
        begun = time.monotonic()
        message = client.with_options(max_retries=5).messages.create(model=MODEL, max_tokens=99, messages=GREET)
        assert text_of(message) == GREETING and time.monotonic() - begun > 0.9


def scripted_a_stream_that_is_closed_gives_its_place_back():
    with client.messages.stream(model=MODEL, max_tokens=8000, messages=SLOW) as stream:
        for _ in zip(range(40), stream, strict=False):
            pass
        assert num_open() == 1
    until_idle()
    assert text_of(ask()) == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    async with anthropic.AsyncAnthropic(**FIELDS) as aclient:
        fields = {"model": MODEL, "max_tokens": 7000}

        async def read():
            async with aclient.messages.stream(**fields, messages=SLOW) as stream:
                await stream.until_done()

        await cancels(read(), after_s=0.1)
        await cancels(aclient.messages.create(**fields, messages=SLOW), after_s=0.1)
        assert text_of(await aclient.messages.create(**fields, messages=GREET)) == GREETING


def scripted_sixteen_at_once():
    def one(index):
        fields = {"max_tokens": 4 + index}
        return text_of(streamed(**fields)[1] if index % 2 else ask(**fields))

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


def thinking_a_thought_is_a_block_before_the_answer():
    for thinking in (THINKING, {"type": "adaptive"}):
        for message in (ask(thinking=thinking), streamed(thinking=thinking)[1]):
            thought, text = message.content
            assert (thought.type, thought.thinking, thought.signature) == ("thinking", THOUGHT, "")
            assert (text.type, text.text) == ("text", GREETING)
            type(message).model_validate(message.to_dict())
    events, _ = streamed(thinking=THINKING)
    assert "".join(event.thinking for event in events if event.type == "thinking") == THOUGHT
    cut = ask(thinking=THINKING, max_tokens=12)
    assert (text_of(cut), cut.stop_reason) == ("", "max_tokens")


def thinking_thoughts_that_nobody_asked_for_are_not_told():
    for fields in ({}, {"thinking": {"type": "disabled"}}):
        for message in (ask(**fields), streamed(**fields)[1]):
            assert (kinds_of(message), text_of(message)) == (["text"], GREETING)


def thinking_thoughts_are_given_back_with_their_calls():
    fields = {"tools": TOOLS, "thinking": THINKING}
    for called in (ask(CALL_OSLO, **fields), streamed(CALL_OSLO, **fields)[1]):
        assert kinds_of(called) == ["thinking", "tool_use"]
        final = ask(answered(CALL_OSLO, called, {"type": "text", "text": "Well?"}), **fields)
        assert text_of(final) == told("12 degrees")
    parsed = client.messages.parse(
        model=MODEL, max_tokens=1000, messages=user(WRITE_ANN), output_format=Person, thinking=THINKING
    )
    assert parsed.parsed_output == Person(name="Ann", age=31)


def model_the_capital_of_france_whole_and_streamed():
    fields = {"system": "You are a helpful assistant.", "extra_body": GREEDY, "max_tokens": 100}
    whole, (_, message) = ask(CAPITAL, **fields), streamed(CAPITAL, **fields)
    assert "Paris" in text_of(whole) and whole.stop_reason == "end_turn"
    assert text_of(message) == text_of(whole) and message.usage.output_tokens == whole.usage.output_tokens
    begun = "The capital of"
    messages = [*user(CAPITAL), {"role": "assistant", "content": begun}]
    assert begun + text_of(ask(messages, **fields)) == text_of(whole)


def model_forced_calls_and_objects_fit_their_schemas():
    fields = {"tools": TOOLS, "tool_choice": NAMED, "extra_body": GREEDY, "max_tokens": 500}
    called = ask("How is the weather in Oslo?", **fields)
    ((name, given),) = calls_of(called)
    assert name == "get_weather" and isinstance(given["city"], str)
    assert calls_of(streamed("How is the weather in Oslo?", **fields)[1]) == [(name, given)]
    question = user("Ann is 31 years old. Who is it?")
    fields = {"model": MODEL, "max_tokens": 500, "extra_body": GREEDY}
    parsed = client.messages.parse(messages=question, output_format=Person, **fields)
    assert isinstance(parsed.parsed_output, Person)


if __name__ == "__main__":
    main(globals())

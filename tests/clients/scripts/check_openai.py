"""openai for Python: major versions 1, 2 and 3."""

from __future__ import annotations

import asyncio
import json

import openai
from pydantic import BaseModel

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    CITY,
    GREET,
    GREETING,
    LOOK,
    MODEL,
    NAMED,
    NUM_PROMPT,
    OSLO,
    SLOW,
    THOUGHT,
    UNICODE,
    WRITE_ANN,
    at_once,
    cancels,
    main,
    num_open,
    raises,
    repeated,
    told,
    until_idle,
    user,
)

FIELDS = {"base_url": API, "api_key": "none", "max_retries": 0, "timeout": 60}
client = openai.OpenAI(**FIELDS)


class Person(BaseModel):
    name: str
    age: int


def tool(name="get_weather", parameters=CITY, **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


TOOLS = [tool()]


def ask(messages=GREET, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def complete(prompt="Once", **fields):
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reasons_of(chunks):
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


def calls_of(message):
    """Name and arguments of each call, which all have ids of their own."""
    assert all(call.type == "function" and call.id.startswith("call_") for call in message.tool_calls)
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]


def calls_in(chunks):
    """The same of a stream, put together by hand; what must come once comes once."""
    found = []
    for delta in (choice.delta for chunk in chunks for choice in chunk.choices):
        for call in delta.tool_calls or ():
            if call.index == len(found):
                assert call.type == "function" and call.id.startswith("call_") and call.id not in {c[0] for c in found}
                found.append([call.id, call.function.name, ""])
            else:
                assert call.index == len(found) - 1, "a call goes on after the next one began"
                assert (call.id, call.type, call.function.name) == (None, None, None)
            found[-1][2] += call.function.arguments
    return [(name, json.loads(arguments)) for _, name, arguments in found]


def counts(usage):
    """Without what the prefix cache saved: the same request again finds more."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.completion_tokens_details


def scripted_an_answer_has_text_reason_and_usage():
    answer = ask()
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    assert [choice.index for choice in answer.choices] == [0]
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", GREETING, "stop")
    assert choice.message.tool_calls is None and choice.message.refusal is None and choice.logprobs is None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (NUM_PROMPT, len(GREETING) + 1)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def scripted_a_stream_gives_the_same():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == GREETING
    assert reasons_of(chunks) == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.model for chunk in chunks} == {MODEL}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices][:2] == ["assistant", None]
    assert chunks[-1].choices == [] and counts(chunks[-1].usage) == counts(ask().usage)
    assert {chunk.usage for chunk in chunks[:-1]} == {None}
    assert all(chunk.choices and chunk.usage is None for chunk in ask(stream=True))


def scripted_the_stream_helper_puts_an_answer_together():
    with client.chat.completions.stream(model=MODEL, messages=GREET) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == GREETING
    assert final.choices[0].message.content == GREETING and final.choices[0].message.role == "assistant"


def scripted_the_whole_conversation_arrives():
    turns = [("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert ask(messages).choices[0].message.content == repeated(*turns)
    assert text_of(ask(messages, stream=True)) == repeated(*turns)
    parts = [{"role": "user", "content": [{"type": "text", "text": "rep"}, {"type": "text", "text": "eat"}]}]
    assert ask(parts).choices[0].message.content == repeated(("user", "repeat"))


def scripted_stop_strings_and_limits_end_an_answer():
    for stop, expected in ((" Ann", "Hello there,"), (["xyz", "How"], "Hello there, Ann. ")):
        choice = ask(stop=stop).choices[0]
        chunks = list(ask(stop=stop, stream=True))
        assert (choice.message.content, choice.finish_reason) == (expected, "stop")
        assert (text_of(chunks), reasons_of(chunks)) == (expected, ["stop"])
    for limit in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        answer, chunks = ask(**limit), list(ask(stream=True, **limit))
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello", "length")
        assert (text_of(chunks), reasons_of(chunks)) == ("Hello", ["length"])
        assert answer.usage.completion_tokens == 5


def scripted_several_answers_to_one_prompt():
    answer, chunks = ask(n=3), list(ask(n=3, stream=True))
    assert [(c.index, c.message.content) for c in answer.choices] == [(i, GREETING) for i in range(3)]
    assert [text_of(chunks, index) for index in range(3)] == [GREETING] * 3
    assert reasons_of(chunks) == ["stop"] * 3


def scripted_log_probabilities():
    whole = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(entry.token for entry in whole) == GREETING
    assert bytes(byte for entry in whole for byte in entry.bytes).decode() == GREETING
    assert {len(entry.top_logprobs) for entry in whole} == {2}
    assert all(entry.top_logprobs[0].token == entry.token for entry in whole)
    assert all(entry.logprob == entry.top_logprobs[0].logprob == -0.5 for entry in whole)
    chunks = list(ask(logprobs=True, top_logprobs=2, stream=True))
    told = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [entry for entries in told for entry in entries] == whole


def scripted_unicode_comes_through_whole_and_streamed():
    messages = [{"role": "user", "content": "unicode"}]
    assert ask(messages).choices[0].message.content == UNICODE
    chunks = list(ask(messages, stream=True))
    assert text_of(chunks) == UNICODE
    assert len([chunk for chunk in chunks if chunk.choices[0].delta.content]) > 1


def scripted_completions():
    answer = complete(["Once", "Twice"], max_tokens=20, n=2, stream=False)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    once, again, twice, _ = texts = [choice.text for choice in answer.choices]
    assert once == again != twice and {len(text) for text in texts} == {20}
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    streamed = [""] * 4
    for chunk in complete(["Once", "Twice"], max_tokens=20, n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts
    assert complete(max_tokens=20, stop=once[4:7]).choices[0].text == once[:4]
    assert complete(echo=True, max_tokens=3).choices[0].text == "Once" + once[:3]
    assert complete(prompt=list(b"Once"), max_tokens=20).choices[0].text == once
    assert len(complete().choices[0].text) == 16
    usage = list(complete(max_tokens=3, stream=True, stream_options={"include_usage": True}))[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 3)


def scripted_log_probabilities_of_completions():
    choice = complete(max_tokens=6, logprobs=2).choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs == [-0.5] * 6
    assert choice.logprobs.text_offset == [4, 5, 6, 7, 8, 9]
    assert [len(top) for top in choice.logprobs.top_logprobs] == [2] * 6


def scripted_models():
    (listed,) = client.models.list()
    assert (listed.id, listed.object) == (MODEL, "model") and listed.created > 0 and listed.owned_by
    assert client.models.retrieve(MODEL) == listed


def scripted_mistakes_become_the_clients_exceptions():
    error = raises(openai.BadRequestError, ask, temperature=5)
    assert (error.status_code, error.param, error.code) == (400, "temperature", "decimal_above_max_value")
    assert error.type == "invalid_request_error" and "temperature" in error.message
    assert error.request_id == error.response.headers["x-request-id"]
    error = raises(openai.BadRequestError, ask, max_tokens=0, stream=True)
    assert (error.param, error.code) == ("max_tokens", "integer_below_min_value")
    error = raises(openai.BadRequestError, ask, [{"role": "user", "content": "x" * 9000}])
    assert (error.param, error.code) == ("messages", "context_length_exceeded")
    for call in (
        lambda: client.chat.completions.create(model="other", messages=GREET),
        lambda: client.completions.create(model="other", prompt="Once"),
        lambda: client.models.retrieve("other"),
    ):
        assert raises(openai.NotFoundError, call).code == "model_not_found"
    error = raises(openai.NotFoundError, lambda: client.moderations.create(input="x"))
    assert error.code == "unknown_url"


def scripted_a_tool_is_called_and_its_result_answered():
    for fields in ({}, {"tool_choice": "auto"}, {"tool_choice": "required"}, {"tool_choice": NAMED}):
        called = ask(user(CALL_OSLO), tools=TOOLS, **fields).choices[0]
        assert (called.finish_reason, called.message.content) == ("tool_calls", None)
        assert calls_of(called.message) == [("get_weather", {"city": "Oslo"})]
    result = {"role": "tool", "tool_call_id": called.message.tool_calls[0].id, "content": "12 degrees"}
    messages = [*user(CALL_OSLO), called.message, result]
    for history in (messages, [messages[0], called.message.model_dump(), result]):
        final = ask(history, tools=TOOLS).choices[0]
        assert (final.message.content, final.finish_reason) == (told("12 degrees"), "stop")
        assert final.message.tool_calls is None
        assert text_of(ask(history, tools=TOOLS, stream=True)) == told("12 degrees")


def scripted_a_call_in_a_stream_is_the_same():
    for text, num_calls in ((CALL_OSLO, 1), (CALL_TWICE, 2)):
        whole = ask(user(text), tools=TOOLS)
        for fields in ({}, {"tool_choice": "required"}, {"tool_choice": NAMED}):
            chunks = list(ask(user(text), tools=TOOLS, stream=True, stream_options={"include_usage": True}, **fields))
            expected = calls_of(whole.choices[0].message)
            assert calls_in(chunks) == expected[: 1 if fields.get("tool_choice") == NAMED else num_calls]
            assert reasons_of(chunks) == ["tool_calls"] and text_of(chunks) == ""
            assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices][:2] == ["assistant", None]
        chunks = list(ask(user(text), tools=TOOLS, stream=True, stream_options={"include_usage": True}))
        assert counts(chunks[-1].usage) == counts(whole.usage)


def scripted_several_calls_and_words_before_them():
    message = ask(user(CALL_TWICE), tools=TOOLS).choices[0].message
    assert calls_of(message) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
    results = [{"role": "tool", "tool_call_id": c.id, "content": f"{len(c.id)}"} for c in message.tool_calls]
    assert len(message.tool_calls[0].id) == len(message.tool_calls[1].id)
    final = ask([*user(CALL_TWICE), message, *results], tools=TOOLS)
    assert final.choices[0].message.content == told(*(result["content"] for result in results))
    for fields in ({}, {"tool_choice": "required"}):
        one = ask(user(CALL_TWICE), tools=TOOLS, parallel_tool_calls=False, **fields).choices[0]
        assert (calls_of(one.message), one.finish_reason) == ([("get_weather", {"city": "Oslo"})], "tool_calls")
    text = CALL_OSLO.replace("call", "look")
    message, chunks = ask(user(text), tools=TOOLS).choices[0].message, list(ask(user(text), tools=TOOLS, stream=True))
    assert message.content.strip() == text_of(chunks).strip() == LOOK
    assert calls_of(message) == calls_in(chunks) == [("get_weather", {"city": "Oslo"})]
    answer, chunks = ask(user(CALL_OSLO), tools=TOOLS, n=2), list(ask(user(CALL_OSLO), tools=TOOLS, n=2, stream=True))
    assert [calls_of(choice.message) for choice in answer.choices] == [[("get_weather", {"city": "Oslo"})]] * 2
    assert reasons_of(chunks) == ["tool_calls"] * 2


def scripted_tool_choice_binds_a_model_that_wants_something_else():
    tools = [tool("get_time", OSLO), tool("get_weather", OSLO)]
    for text in ("greet", 'call get_time {"city": "Oslo"}'):
        answer = ask(user(text), tools=tools, tool_choice=NAMED).choices[0]
        assert calls_of(answer.message) == [("get_weather", {"city": "Oslo"})]
        assert calls_in(ask(user(text), tools=tools, tool_choice=NAMED, stream=True)) == calls_of(answer.message)
    ((name, arguments),) = calls_of(
        ask(tools=tools, tool_choice="required", parallel_tool_calls=False).choices[0].message
    )
    assert name in ("get_time", "get_weather") and arguments == {"city": "Oslo"}
    assert ask(user(CALL_OSLO), tools=TOOLS, tool_choice="none").choices[0].message.tool_calls is None
    assert ask(tools=TOOLS).choices[0].message.content == GREETING
    assert text_of(ask(tools=TOOLS, stream=True)) == GREETING


def scripted_the_stream_helper_puts_calls_together():
    with client.chat.completions.stream(model=MODEL, messages=user(CALL_TWICE), tools=[tool(strict=True)]) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.index, event.name, event.parsed_arguments) for event in done] == [
        (0, "get_weather", {"city": "Oslo"}),
        (1, "get_weather", {"city": "Bergen"}),
    ]
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in deltas if event.index == 0) == done[0].arguments
    assert calls_of(final.message) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
    assert final.finish_reason == "tool_calls" and final.message.role == "assistant"
    assert final.message.tool_calls[0].function.parsed_arguments == {"city": "Oslo"}


def scripted_calls_and_answers_are_parsed():
    parse = client.chat.completions.parse
    answer = parse(model=MODEL, messages=user(WRITE_ANN), response_format=Person).choices[0]
    assert answer.message.parsed == Person(name="Ann", age=31) and answer.finish_reason == "stop"
    with client.chat.completions.stream(model=MODEL, messages=user(WRITE_ANN), response_format=Person) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ann", age=31)
    tools = [openai.pydantic_function_tool(Person)]
    text = WRITE_ANN.replace("write", "call Person")
    answer = parse(model=MODEL, messages=user(text), tools=tools, tool_choice="required").choices[0]
    assert [call.function.parsed_arguments for call in answer.message.tool_calls] == [Person(name="Ann", age=31)]
    raises(
        openai.LengthFinishReasonError,
        parse,
        model=MODEL,
        messages=user(WRITE_ANN),
        response_format=Person,
        max_tokens=5,
    )


def scripted_a_response_format_binds_a_model_that_wants_something_else():
    schema = {"type": "json_schema", "json_schema": {"name": "oslo", "strict": True, "schema": OSLO}}
    answer = ask(response_format=schema).choices[0]
    assert json.loads(answer.message.content) == {"city": "Oslo"} and answer.finish_reason == "stop"
    assert text_of(ask(response_format=schema, stream=True)) == answer.message.content
    answer = ask(user(WRITE_ANN), response_format={"type": "json_object"}).choices[0]
    assert json.loads(answer.message.content) == {"name": "Ann", "age": 31}
    called = ask(user(CALL_OSLO), tools=TOOLS, response_format=schema).choices[0]  # a call may stand in its place
    assert calls_of(called.message) == [("get_weather", {"city": "Oslo"})]


def scripted_functions_of_old():
    functions = [{"name": "get_weather", "parameters": CITY}]
    for fields in ({}, {"function_call": "auto"}, {"function_call": {"name": "get_weather"}}):
        called = ask(user(CALL_OSLO), functions=functions, **fields).choices[0]
        assert (called.finish_reason, called.message.tool_calls) == ("function_call", None)
        function = called.message.function_call
        assert (function.name, json.loads(function.arguments)) == ("get_weather", {"city": "Oslo"})
        chunks = list(ask(user(CALL_OSLO), functions=functions, stream=True, **fields))
        deltas = [c.choices[0].delta.function_call for c in chunks if c.choices[0].delta.function_call]
        assert [delta.name for delta in deltas if delta.name] == ["get_weather"]
        assert json.loads("".join(delta.arguments for delta in deltas)) == {"city": "Oslo"}
        assert reasons_of(chunks) == ["function_call"]
    result = {"role": "function", "name": "get_weather", "content": "12 degrees"}
    final = ask([*user(CALL_OSLO), called.message, result], functions=functions).choices[0]
    assert (final.message.content, final.finish_reason) == (told("12 degrees"), "stop")


def scripted_mistakes_in_tools_and_schemas_are_named():
    wrong = {"type": "object", "properties": {"city": {"type": "town"}}}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": wrong}}
    for fields, param in (
        ({"tools": [tool(parameters=wrong)], "tool_choice": "required"}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters=wrong, strict=True)]}, "tools[0].function.parameters"),
        ({"response_format": format_}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool("no name")]}, "tools[0].function.name"),
    ):
        for is_stream in (False, True):
            error = raises(openai.BadRequestError, ask, stream=is_stream, **fields)
            assert error.param == param, (error.param, param)


def scripted_the_request_id_and_headers_can_be_seen():
    answer = ask()
    assert answer._request_id and answer._request_id != ask()._request_id
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=GREET)
    assert raw.headers["content-type"] == "application/json" and int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.parse()._request_id == raw.headers["x-request-id"] == raw.request_id
    assert ask(extra_headers={"X-Request-Id": "mine-1"})._request_id == "mine-1"
    with client.chat.completions.with_streaming_response.create(model=MODEL, messages=GREET, stream=True) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        assert list(raw.iter_lines())[-2:] == ["data: [DONE]", ""]


def scripted_a_stream_that_is_closed_gives_its_place_back():
    with ask(SLOW, stream=True, n=16) as stream:
        for _ in zip(range(40), stream, strict=False):
            pass
        assert num_open() == 16
    until_idle()
    assert ask().choices[0].message.content == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    async with openai.AsyncOpenAI(**FIELDS) as aclient:
        for is_stream in (False, True):

            async def read(is_stream=is_stream):
                answer = await aclient.chat.completions.create(model=MODEL, messages=SLOW, stream=is_stream)
                async for _ in answer:
                    pass

            await cancels(read(), after_s=0.1)
        answer = await aclient.chat.completions.create(model=MODEL, messages=GREET)
    assert answer.choices[0].message.content == GREETING


def scripted_a_timeout_is_the_clients_and_gives_its_place_back():
    raises(openai.APITimeoutError, ask, SLOW, timeout=0.3)
    until_idle()


def scripted_sixteen_at_once():
    def one(index):
        fields = {"stream": index % 2 == 1, "max_tokens": 4 + index}
        answer = ask(**fields)
        return text_of(answer) if index % 2 else answer.choices[0].message.content

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


def scripted_sixteen_calls_at_once():
    def one(index):
        messages = user(CALL_OSLO.replace("Oslo", f"City {index}"))
        fields = {"tools": TOOLS, "tool_choice": ("auto", "required", NAMED)[index % 3], "stream": index % 2 == 1}
        answer = ask(messages, **fields)
        return calls_in(answer) if index % 2 else calls_of(answer.choices[0].message)

    assert at_once(one) == [[("get_weather", {"city": f"City {index}"})] for index in range(16)]


def scripted_a_call_that_is_left_gives_its_place_back():
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for fields in ({"tools": TOOLS, "tool_choice": "required"}, {"response_format": schema}):
        with ask(SLOW, stream=True, n=4, **fields) as stream:  # a name of a city without an end
            chunks = [chunk for chunk, _ in zip(stream, range(60), strict=False)]
            assert num_open() == 4
        assert not reasons_of(chunks)
        until_idle()
    assert ask(user(CALL_OSLO), tools=TOOLS).choices[0].finish_reason == "tool_calls"


async def scripted_sixteen_at_once_in_one_loop():
    async with openai.AsyncOpenAI(**FIELDS) as aclient:

        async def one(index):
            answer = await aclient.chat.completions.create(
                model=MODEL, messages=GREET, stream=True, max_tokens=4 + index
            )
            return text_of([chunk async for chunk in answer])

        assert await asyncio.gather(*map(one, range(16))) == [GREETING[: 4 + index] for index in range(16)]


def thinking_a_thought_comes_before_the_answer():
    whole = ask()
    message = whole.choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, GREETING)
    assert 0 < whole.usage.completion_tokens_details.reasoning_tokens < whole.usage.completion_tokens
    deltas = [chunk.choices[0].delta for chunk in ask(stream=True)]
    thoughts = [getattr(delta, "reasoning_content", None) for delta in deltas]
    assert "".join(filter(None, thoughts)) == THOUGHT
    assert "".join(delta.content or "" for delta in deltas) == GREETING
    assert not any(thought and delta.content for thought, delta in zip(thoughts, deltas, strict=True))
    last_thought = max(index for index, thought in enumerate(thoughts) if thought)
    assert not any(delta.content for delta in deltas[:last_thought])
    hidden = ask(extra_body={"include_reasoning": False}).choices[0].message
    assert hidden.content == GREETING and not hasattr(hidden, "reasoning_content")
    cut = ask(max_tokens=12).choices[0]
    assert (cut.message.content, cut.finish_reason) == ("", "length")


def thinking_a_thought_comes_before_calls_and_objects():
    for fields in ({}, {"tool_choice": "required"}, {"tool_choice": NAMED}):
        called = ask(user(CALL_OSLO), tools=TOOLS, **fields).choices[0]
        assert (called.message.reasoning_content, called.message.content) == (THOUGHT, None)
        assert calls_of(called.message) == [("get_weather", {"city": "Oslo"})]
        assert called.finish_reason == "tool_calls"
        chunks = list(ask(user(CALL_OSLO), tools=TOOLS, stream=True, **fields))
        assert calls_in(chunks) == calls_of(called.message) and text_of(chunks) == ""
    result = {"role": "tool", "tool_call_id": called.message.tool_calls[0].id, "content": "12 degrees"}
    final = ask([*user(CALL_OSLO), called.message, result], tools=TOOLS).choices[0].message
    assert (final.reasoning_content, final.content) == (THOUGHT, told("12 degrees"))
    answer = client.chat.completions.parse(model=MODEL, messages=user(WRITE_ANN), response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", age=31)


def model_the_capital_of_france_whole_and_streamed():
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": CAPITAL}]
    whole = ask(messages, temperature=0)
    chunks = list(ask(messages, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "Paris" in whole.choices[0].message.content
    assert text_of(chunks) == whole.choices[0].message.content
    assert reasons_of(chunks) == [whole.choices[0].finish_reason] == ["stop"]
    assert counts(chunks[-1].usage) == counts(whole.usage)


def model_a_seed_repeats_an_answer():
    messages = [{"role": "user", "content": "Write a poem."}]
    first, again, other = (
        ask(messages, seed=seed, temperature=1.2, max_tokens=16).choices[0].message.content for seed in (1, 1, 2)
    )
    assert text_of(ask(messages, seed=1, temperature=1.2, max_tokens=16, stream=True)) == first == again != other


def model_completions_whole_and_streamed():
    fields = {"prompt": "The sky is", "temperature": 0, "max_tokens": 12}
    whole = complete(**fields).choices[0].text
    assert whole and "".join(chunk.choices[0].text for chunk in complete(stream=True, **fields)) == whole


def model_a_forced_call_fits_its_schema():
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        },
        "required": ["city", "unit", "days"],
        "additionalProperties": False,
    }
    tools, messages = [tool(parameters=parameters, strict=True)], user("How is the weather in Oslo?")
    for choice in (NAMED, "required"):
        fields = {"tools": tools, "tool_choice": choice, "temperature": 0, "parallel_tool_calls": False}
        answer = ask(messages, **fields).choices[0]
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        ((name, arguments),) = calls_of(answer.message)
        assert name == "get_weather" and arguments.keys() == {"city", "unit", "days"}
        assert isinstance(arguments["city"], str) and len(arguments["city"]) <= 20
        assert arguments["unit"] in ("celsius", "fahrenheit") and 1 <= arguments["days"] <= 7
        chunks = list(ask(messages, stream=True, **fields))
        assert calls_in(chunks) == [(name, arguments)] and reasons_of(chunks) == ["tool_calls"]


def model_an_answer_fits_its_schema():
    messages = user("Ann is 31 years old. Who is it?")
    answer = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Person, temperature=0)
    assert isinstance(answer.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model=MODEL, messages=messages, response_format=Person, temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed


def model_log_probabilities_are_those_of_a_greedy_choice():
    choice = ask([{"role": "user", "content": CAPITAL}], temperature=0, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.top_logprobs[0].token == entry.token and entry.logprob <= 0 for entry in entries)


if __name__ == "__main__":
    main(globals())

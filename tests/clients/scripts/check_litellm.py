"""litellm: chat as `openai/…` and as `hosted_vllm/…`, completions as `text-completion-openai/…`."""

from __future__ import annotations

import asyncio
import json

import litellm
from pydantic import BaseModel, ConfigDict

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    CITY,
    GREET,
    GREETING,
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

litellm.suppress_debug_info = True
FIELDS = {"api_base": API, "api_key": "none", "max_retries": 0, "num_retries": 0, "timeout": 60}
PROVIDERS = ("openai", "hosted_vllm")


def tool(parameters=CITY):
    return {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    age: int


def calls_of(message):
    calls = message.tool_calls or []
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def ask(messages=GREET, provider="openai", **fields):
    return litellm.completion(model=f"{provider}/{MODEL}", messages=messages, **{**FIELDS, **fields})


def complete(prompt="Once", **fields):
    return litellm.text_completion(model=f"text-completion-openai/{MODEL}", prompt=prompt, **FIELDS, **fields)


def text_of(chunks):
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def reasons_of(chunks):
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


def scripted_an_answer_has_text_reason_and_usage():
    for provider in PROVIDERS:
        answer = ask(provider=provider)
        choice = answer.choices[0]
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", GREETING, "stop")
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (NUM_PROMPT, len(GREETING) + 1)


def scripted_a_stream_gives_the_same():
    for provider in PROVIDERS:
        chunks = list(ask(provider=provider, stream=True, stream_options={"include_usage": True}))
        assert text_of(chunks) == GREETING
        assert reasons_of(chunks) == ["stop"]
        (usage,) = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
        assert (usage.prompt_tokens, usage.completion_tokens) == (NUM_PROMPT, len(GREETING) + 1)
        assert litellm.stream_chunk_builder(chunks).choices[0].message.content == GREETING


def scripted_the_whole_conversation_arrives():
    turns = [("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert ask(messages).choices[0].message.content == repeated(*turns)
    assert text_of(ask(messages, stream=True)) == repeated(*turns)


def scripted_stop_strings_and_limits_end_an_answer():
    for fields, expected in (({"stop": [" Ann"]}, ("Hello there,", "stop")), ({"max_tokens": 5}, ("Hello", "length"))):
        choice, chunks = ask(**fields).choices[0], list(ask(stream=True, **fields))
        assert (choice.message.content, choice.finish_reason) == expected
        assert (text_of(chunks), reasons_of(chunks)) == (expected[0], [expected[1]])


def scripted_several_answers_to_one_prompt():
    assert [choice.message.content for choice in ask(n=3).choices] == [GREETING] * 3


def scripted_log_probabilities():
    entries = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == GREETING
    assert {len(entry.top_logprobs) for entry in entries} == {2}


def scripted_unicode_comes_through_whole_and_streamed():
    messages = [{"role": "user", "content": "unicode"}]
    assert ask(messages).choices[0].message.content == text_of(ask(messages, stream=True)) == UNICODE


def scripted_completions():
    whole = complete(max_tokens=20).choices[0]
    assert len(whole.text) == 20 and whole.finish_reason == "length"
    chunks = list(complete(max_tokens=20, stream=True))
    assert "".join(choice.text or "" for chunk in chunks for choice in chunk.choices) == whole.text
    assert complete(max_tokens=20, stop=[whole.text[4:7]]).choices[0].text == whole.text[:4]


def scripted_mistakes_become_the_clients_exceptions():
    for is_stream in (False, True):
        error = raises(litellm.BadRequestError, ask, temperature=5, stream=is_stream)
        assert error.status_code == 400 and "temperature" in str(error)
        error = raises(
            litellm.ContextWindowExceededError, ask, [{"role": "user", "content": "x" * 9000}], stream=is_stream
        )
        assert "8192" in str(error)
    error = raises(litellm.NotFoundError, litellm.completion, model="openai/other", messages=GREET, **FIELDS)
    assert error.status_code == 404 and "other" in str(error)


def scripted_a_tool_is_called_and_its_result_answered():
    for provider in PROVIDERS:
        for text, cities in ((CALL_OSLO, ["Oslo"]), (CALL_TWICE, ["Oslo", "Bergen"])):
            expected = [("get_weather", {"city": city}) for city in cities]
            fields = {"tools": [tool()], "provider": provider}
            called = ask(user(text), **fields).choices[0]
            assert calls_of(called.message) == expected
            assert (called.finish_reason, called.message.content) == ("tool_calls", None)
            chunks = list(ask(user(text), stream=True, **fields))
            assert reasons_of(chunks) == ["tool_calls"] and text_of(chunks) == ""
            assert calls_of(litellm.stream_chunk_builder(chunks).choices[0].message) == expected
            results = [
                {"role": "tool", "tool_call_id": c.id, "content": "12 degrees"} for c in called.message.tool_calls
            ]
            final = ask([*user(text), called.message, *results], **fields).choices[0]
            assert (final.message.content, final.finish_reason) == (told(*["12 degrees"] * len(cities)), "stop")


def scripted_tool_choice():
    for choice in ("required", NAMED):
        fields = {"tools": [tool(OSLO)], "tool_choice": choice, "parallel_tool_calls": False}
        assert calls_of(ask(**fields).choices[0].message) == [("get_weather", {"city": "Oslo"})]
    assert calls_of(ask(user(CALL_OSLO), tools=[tool()], tool_choice="none").choices[0].message) == []
    assert ask(tools=[tool()]).choices[0].message.content == GREETING


def scripted_objects():
    schema = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": OSLO}}
    for provider in PROVIDERS:
        assert json.loads(ask(response_format=schema, provider=provider).choices[0].message.content) == {"city": "Oslo"}
        answer = ask(user(WRITE_ANN), response_format=Person, provider=provider).choices[0].message.content
        assert Person.model_validate_json(answer) == Person(name="Ann", age=31)
        answer = ask(user(WRITE_ANN), response_format={"type": "json_object"}, provider=provider)
        assert json.loads(answer.choices[0].message.content) == {"name": "Ann", "age": 31}


def scripted_the_request_id_can_be_seen():
    headers = ask()._response_headers
    assert headers["x-request-id"] and int(headers["openai-processing-ms"]) >= 0


async def scripted_a_stream_that_is_left_gives_its_place_back():
    stream = await litellm.acompletion(model=f"openai/{MODEL}", messages=SLOW, stream=True, **FIELDS)
    for _ in range(3):
        await anext(stream)
    assert await asyncio.to_thread(num_open) == 1
    await stream.aclose()
    await asyncio.to_thread(until_idle)
    assert ask().choices[0].message.content == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    await cancels(litellm.acompletion(model=f"openai/{MODEL}", messages=SLOW, **FIELDS))


def scripted_a_timeout_is_the_clients_and_gives_its_place_back():
    raises(litellm.Timeout, ask, SLOW, timeout=0.3)
    until_idle()


def scripted_sixteen_at_once():
    def one(index):
        fields = {"stream": index % 2 == 1, "max_tokens": 4 + index}
        answer = ask(**fields)
        return text_of(answer) if index % 2 else answer.choices[0].message.content

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


def thinking_a_thought_comes_before_answers_and_calls():
    for provider in PROVIDERS:
        message = ask(provider=provider).choices[0].message
        assert (message.reasoning_content, message.content) == (THOUGHT, GREETING)
        chunks = list(ask(provider=provider, stream=True))
        message = litellm.stream_chunk_builder(chunks).choices[0].message
        assert (message.reasoning_content, message.content) == (THOUGHT, GREETING)
        message = ask(user(CALL_OSLO), provider=provider, tools=[tool()]).choices[0].message
        assert message.reasoning_content == THOUGHT and calls_of(message) == [("get_weather", {"city": "Oslo"})]


def model_calls_and_objects_that_fit_their_schemas():
    fields = {"tools": [tool()], "tool_choice": NAMED, "temperature": 0}
    called = ask(user("How is the weather in Oslo?"), **fields).choices[0]
    ((name, arguments),) = calls_of(called.message)
    assert name == "get_weather" and arguments.keys() == {"city"} and isinstance(arguments["city"], str)
    chunks = list(ask(user("How is the weather in Oslo?"), stream=True, **fields))
    assert calls_of(litellm.stream_chunk_builder(chunks).choices[0].message) == [(name, arguments)]
    answer = ask(user("Ann is 31 years old."), response_format=Person, temperature=0).choices[0].message.content
    assert Person.model_validate_json(answer)


def model_the_capital_of_france_whole_and_streamed():
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": CAPITAL}]
    whole = ask(messages, temperature=0).choices[0].message.content
    assert "Paris" in whole
    assert text_of(ask(messages, temperature=0, stream=True)) == whole


def model_a_seed_repeats_an_answer():
    messages = [{"role": "user", "content": "Write a poem."}]
    first, again, other = (
        ask(messages, seed=seed, temperature=1.2, max_tokens=16).choices[0].message.content for seed in (1, 1, 2)
    )
    assert first == again != other


if __name__ == "__main__":
    main(globals())

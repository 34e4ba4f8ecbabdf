"""litellm: chat as `openai/…` and as `hosted_vllm/…`, completions as `text-completion-openai/…`."""

from __future__ import annotations

import asyncio

import litellm

from checks import (
    API,
    CAPITAL,
    GREETING,
    MODEL,
    NUM_PROMPT,
    UNICODE,
    araises,
    at_once,
    main,
    num_open,
    raises,
    repeated,
    until_idle,
)

litellm.suppress_debug_info = True
FIELDS = {"api_base": API, "api_key": "none", "max_retries": 0, "num_retries": 0, "timeout": 60}
GREET = [{"role": "user", "content": "greet"}]
SLOW = [{"role": "user", "content": "slow"}]
PROVIDERS = ("openai", "hosted_vllm")


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


def scripted_what_is_not_there_yet_is_refused_by_name():
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    for fields in ({"tools": [tool]}, {"response_format": {"type": "json_object"}}):
        error = raises(litellm.BadRequestError, ask, **fields)
        assert error.status_code == 400 and next(iter(fields)) in str(error)


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
    task = asyncio.create_task(litellm.acompletion(model=f"openai/{MODEL}", messages=SLOW, **FIELDS))
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)


def scripted_a_timeout_is_the_clients_and_gives_its_place_back():
    raises(litellm.Timeout, ask, SLOW, timeout=0.3)
    until_idle()


def scripted_sixteen_at_once():
    def one(index):
        fields = {"stream": index % 2 == 1, "max_tokens": 4 + index}
        answer = ask(**fields)
        return text_of(answer) if index % 2 else answer.choices[0].message.content

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


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

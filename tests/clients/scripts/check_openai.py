"""openai for Python: major versions 1, 2 and 3."""

from __future__ import annotations

import asyncio

import openai

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

FIELDS = {"base_url": API, "api_key": "none", "max_retries": 0, "timeout": 60}
client = openai.OpenAI(**FIELDS)
GREET = [{"role": "user", "content": "greet"}]
SLOW = [{"role": "user", "content": "slow"}]


def ask(messages=GREET, **fields):
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def complete(prompt="Once", **fields):
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def text_of(chunks, index=0):
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def reasons_of(chunks):
    return [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]


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
    assert usage.prompt_tokens_details.cached_tokens == 0


def scripted_a_stream_gives_the_same():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == GREETING
    assert reasons_of(chunks) == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1 and {chunk.model for chunk in chunks} == {MODEL}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices][:2] == ["assistant", None]
    assert chunks[-1].choices == [] and chunks[-1].usage == ask().usage
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


def scripted_what_is_not_there_yet_is_refused_by_name():
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
    for fields in ({"tools": [tool]}, {"response_format": {"type": "json_object"}}):
        for is_stream in (False, True):
            error = raises(openai.BadRequestError, ask, stream=is_stream, **fields)
            assert error.code == "unsupported_parameter" and error.param.startswith(next(iter(fields)))


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

            task = asyncio.create_task(read())
            while not await asyncio.to_thread(num_open):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert not task.done()
            task.cancel()
            await araises(asyncio.CancelledError, task)
            await asyncio.to_thread(until_idle)
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


async def scripted_sixteen_at_once_in_one_loop():
    async with openai.AsyncOpenAI(**FIELDS) as aclient:

        async def one(index):
            answer = await aclient.chat.completions.create(
                model=MODEL, messages=GREET, stream=True, max_tokens=4 + index
            )
            return text_of([chunk async for chunk in answer])

        assert await asyncio.gather(*map(one, range(16))) == [GREETING[: 4 + index] for index in range(16)]


def model_the_capital_of_france_whole_and_streamed():
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": CAPITAL}]
    whole = ask(messages, temperature=0)
    chunks = list(ask(messages, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "Paris" in whole.choices[0].message.content
    assert text_of(chunks) == whole.choices[0].message.content
    assert reasons_of(chunks) == [whole.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage == whole.usage


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


def model_log_probabilities_are_those_of_a_greedy_choice():
    choice = ask([{"role": "user", "content": CAPITAL}], temperature=0, logprobs=True, top_logprobs=3).choices[0]
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert all(entry.top_logprobs[0].token == entry.token and entry.logprob <= 0 for entry in entries)


if __name__ == "__main__":
    main(globals())

"""llama-index-llms-openai-like: OpenAILike, for chat and for completions."""

from __future__ import annotations

import asyncio
import gc

import openai
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

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


def llm(*, is_chat_model=True, model=MODEL, **fields):
    return OpenAILike(
        model=model, api_base=API, api_key="none", is_chat_model=is_chat_model, max_retries=0, timeout=60, **fields
    )


def user(text):
    return [ChatMessage(role="user", content=text)]


def streamed(pieces):
    """Text and last chunk; each chunk has the text so far, and what it adds."""
    found = list(pieces)
    assert "".join(piece.delta or "" for piece in found) == found[-1].message.content
    return found[-1].message.content, found[-1]


def scripted_an_answer_has_text_reason_and_usage():
    answer = llm().chat(user("greet"))
    assert (answer.message.role, answer.message.content) == ("assistant", GREETING)
    assert answer.raw.choices[0].finish_reason == "stop"
    assert answer.additional_kwargs["prompt_tokens"] == NUM_PROMPT
    assert answer.additional_kwargs["completion_tokens"] == len(GREETING) + 1
    assert llm().complete("greet").text == GREETING


def scripted_a_stream_gives_the_same():
    fields = {"stream_options": {"include_usage": True}}
    text, last = streamed(llm(additional_kwargs=fields).stream_chat(user("greet")))
    assert text == GREETING
    assert last.raw.usage.completion_tokens == len(GREETING) + 1
    assert [piece.text for piece in llm().stream_complete("greet")][-1] == GREETING


def scripted_the_whole_conversation_arrives():
    turns = [("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat")]
    messages = [ChatMessage(role=role, content=text) for role, text in turns]
    assert llm().chat(messages).message.content == repeated(*turns)
    assert streamed(llm().stream_chat(messages))[0] == repeated(*turns)


def scripted_stop_strings_and_limits_end_an_answer():
    assert llm(additional_kwargs={"stop": [" Ann"]}).chat(user("greet")).message.content == "Hello there,"
    assert streamed(llm(additional_kwargs={"stop": [" Ann"]}).stream_chat(user("greet")))[0] == "Hello there,"
    answer = llm(max_tokens=5).chat(user("greet"))
    assert (answer.message.content, answer.raw.choices[0].finish_reason) == ("Hello", "length")


def scripted_several_answers_to_one_prompt():
    answer = llm(additional_kwargs={"n": 3}).chat(user("greet"))
    assert [choice.message.content for choice in answer.raw.choices] == [GREETING] * 3


def scripted_log_probabilities():
    answer = llm(logprobs=True, top_logprobs=2).chat(user("greet"))
    assert "".join(tops[0].token for tops in answer.logprobs) == GREETING
    assert {len(tops) for tops in answer.logprobs} == {2}
    assert {tops[0].logprob for tops in answer.logprobs} == {-0.5}


def scripted_unicode_comes_through_whole_and_streamed():
    assert llm().chat(user("unicode")).message.content == UNICODE
    assert streamed(llm().stream_chat(user("unicode")))[0] == UNICODE


def scripted_completions():
    plain = llm(is_chat_model=False, max_tokens=20)
    whole = plain.complete("Once").text
    assert len(whole) == 20
    assert [piece.text for piece in plain.stream_complete("Once")][-1] == whole
    assert plain.complete("Once", stop=[whole[4:7]]).text == whole[:4]


def scripted_mistakes_become_the_clients_exceptions():
    wrong = llm(additional_kwargs={"top_p": 5})
    for call in (wrong.chat, lambda messages: list(wrong.stream_chat(messages))):
        error = raises(openai.BadRequestError, call, user("greet"))
        assert (error.param, error.code) == ("top_p", "decimal_above_max_value") and error.request_id
    error = raises(openai.NotFoundError, llm(model="other").chat, user("greet"))
    assert error.code == "model_not_found"


def scripted_what_is_not_there_yet_is_refused_by_name():
    fields = {"response_format": {"type": "json_object"}}
    error = raises(openai.BadRequestError, llm().chat, user("greet"), **fields)
    assert error.code == "unsupported_parameter" and error.param.startswith("response_format")


def scripted_a_stream_that_is_closed_gives_its_place_back():
    stream = llm().stream_chat(user("slow"))
    for _ in range(3):
        next(stream)
    assert num_open() == 1
    stream.close()
    gc.collect()  # LlamaIndex closes its own generator only: the connection below it lies in a cycle of references
    until_idle()
    assert llm().chat(user("greet")).message.content == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    task = asyncio.create_task(llm().achat(user("slow")))
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)


def scripted_sixteen_at_once():
    def one(index):
        limited = llm(max_tokens=4 + index)
        if index % 2:
            return streamed(limited.stream_chat(user("greet")))[0]
        return limited.chat(user("greet")).message.content

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


async def scripted_sixteen_at_once_in_one_loop():
    answers = await asyncio.gather(*(llm(max_tokens=4 + index).achat(user("greet")) for index in range(16)))
    assert [answer.message.content for answer in answers] == [GREETING[: 4 + index] for index in range(16)]


def model_the_capital_of_france_whole_and_streamed():
    messages = [ChatMessage(role="system", content="You are a helpful assistant."), *user(CAPITAL)]
    whole = llm(temperature=0).chat(messages).message.content
    assert "Paris" in whole
    assert streamed(llm(temperature=0).stream_chat(messages))[0] == whole


def model_a_seed_repeats_an_answer():
    drawing = [llm(temperature=1.2, max_tokens=16, additional_kwargs={"seed": seed}) for seed in (1, 1, 2)]
    first, again, other = (one.chat(user("Write a poem.")).message.content for one in drawing)
    assert first == again != other


if __name__ == "__main__":
    main(globals())

"""langchain-openai: ChatOpenAI, and OpenAI for completions."""

from __future__ import annotations

import asyncio

import openai
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from checks import (
    API,
    CAPITAL,
    GREETING,
    MODEL,
    NUM_PROMPT,
    UNICODE,
    araises,
    main,
    num_open,
    raises,
    repeated,
    until_idle,
)

FIELDS = {"model": MODEL, "base_url": API, "api_key": "none", "max_retries": 0, "timeout": 60}


def chat(**fields):
    return ChatOpenAI(**FIELDS, stream_usage=True, **fields)


def joined(chunks):
    """The chunks added up, as LangChain does it."""
    first, *others = chunks
    for chunk in others:
        first = first + chunk
    return first


def scripted_an_answer_has_text_reason_and_usage():
    answer = chat().invoke("greet")
    assert isinstance(answer, AIMessage) and answer.content == GREETING
    assert answer.response_metadata["finish_reason"] == "stop" and answer.response_metadata["model_name"] == MODEL
    usage = answer.usage_metadata
    assert (usage["input_tokens"], usage["output_tokens"]) == (NUM_PROMPT, len(GREETING) + 1)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def scripted_a_stream_gives_the_same():
    whole, streamed = chat().invoke("greet"), joined(chat().stream("greet"))
    assert streamed.content == GREETING
    assert streamed.response_metadata["finish_reason"] == "stop"
    assert streamed.usage_metadata == whole.usage_metadata


def scripted_the_whole_conversation_arrives():
    messages = [SystemMessage("Be brief."), HumanMessage("Hé 😀"), AIMessage("Yes?"), HumanMessage("repeat")]
    expected = repeated(("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat"))
    assert chat().invoke(messages).content == expected
    assert joined(chat().stream(messages)).content == expected


def scripted_stop_strings_and_limits_end_an_answer():
    for model in (chat(stop=[" Ann"]), chat(stop_sequences=["nobody says this", " Ann"])):
        for answer in (model.invoke("greet"), joined(model.stream("greet"))):
            assert (answer.content, answer.response_metadata["finish_reason"]) == ("Hello there,", "stop")
    for answer in (chat(max_tokens=5).invoke("greet"), joined(chat(max_tokens=5).stream("greet"))):
        assert (answer.content, answer.response_metadata["finish_reason"]) == ("Hello", "length")


def scripted_several_answers_to_one_prompt():
    (answers,) = chat(n=3).generate([[HumanMessage("greet")]]).generations
    assert [answer.text for answer in answers] == [GREETING] * 3


def scripted_log_probabilities():
    model = chat(logprobs=True, top_logprobs=2)
    for answer in (model.invoke("greet"), joined(model.stream("greet"))):
        entries = answer.response_metadata["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == GREETING
        assert {len(entry["top_logprobs"]) for entry in entries} == {2}


def scripted_unicode_comes_through_whole_and_streamed():
    chunks = list(chat().stream("unicode"))
    assert chat().invoke("unicode").content == joined(chunks).content == UNICODE
    assert len([chunk for chunk in chunks if chunk.content]) > 1


def scripted_completions():
    model = OpenAI(**FIELDS, max_tokens=20)
    whole = model.invoke("Once")
    assert len(whole) == 20
    assert "".join(model.stream("Once")) == whole
    assert model.invoke("Once", stop=[whole[4:7]]) == whole[:4]
    assert model.batch(["Once", "Twice"])[0] == whole


def scripted_mistakes_become_the_clients_exceptions():
    too_hot = chat(temperature=5)
    for call in (too_hot.invoke, lambda text: list(too_hot.stream(text))):
        error = raises(openai.BadRequestError, call, "greet")
        assert (error.param, error.code) == ("temperature", "decimal_above_max_value") and error.request_id
    other = ChatOpenAI(**{**FIELDS, "model": "other"})
    error = raises(openai.NotFoundError, other.invoke, "greet")
    assert error.code == "model_not_found"


def scripted_what_is_not_there_yet_is_refused_by_name():
    class Person(BaseModel):
        name: str

    for method, field in (("function_calling", "tool"), ("json_schema", "response_format")):
        error = raises(openai.BadRequestError, chat().with_structured_output(Person, method=method).invoke, "person")
        assert error.code == "unsupported_parameter" and error.param.startswith(field)


def scripted_headers_can_be_seen():
    answer = chat(include_response_headers=True).invoke("greet")
    assert answer.response_metadata["headers"]["x-request-id"]


def scripted_a_stream_that_is_closed_gives_its_place_back():
    stream = chat().stream("slow")
    for _ in zip(range(3), stream, strict=False):
        pass
    assert num_open() == 1
    stream.close()
    until_idle()
    assert chat().invoke("greet").content == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    task = asyncio.create_task(chat().ainvoke("slow"))
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)


def scripted_sixteen_at_once():
    answers = chat().batch(["greet"] * 16, config={"max_concurrency": 16})
    assert [answer.content for answer in answers] == [GREETING] * 16


async def scripted_sixteen_at_once_in_one_loop():
    async def one(index):
        return joined([chunk async for chunk in chat(max_tokens=4 + index).astream("greet")]).content

    assert await asyncio.gather(*map(one, range(16))) == [GREETING[: 4 + index] for index in range(16)]


def model_the_capital_of_france_whole_and_streamed():
    messages = [SystemMessage("You are a helpful assistant."), HumanMessage(CAPITAL)]
    whole, streamed = chat(temperature=0).invoke(messages), joined(chat(temperature=0).stream(messages))
    assert "Paris" in whole.content
    assert streamed.content == whole.content and streamed.usage_metadata == whole.usage_metadata


def model_a_seed_repeats_an_answer():
    first, again, other = (
        chat(seed=seed, temperature=1.2, max_tokens=16).invoke("Write a poem.").content for seed in (1, 1, 2)
    )
    assert first == again != other


if __name__ == "__main__":
    main(globals())

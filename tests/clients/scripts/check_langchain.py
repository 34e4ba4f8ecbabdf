"""langchain-openai: ChatOpenAI, and OpenAI for completions; langchain-anthropic: ChatAnthropic."""

from __future__ import annotations

import asyncio

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    GREETING,
    LOOK,
    MODEL,
    NUM_PROMPT,
    OSLO,
    THOUGHT,
    UNICODE,
    URL,
    WRITE_ANN,
    cancels,
    main,
    num_open,
    raises,
    repeated,
    told,
    until_idle,
)

FIELDS = {"model": MODEL, "base_url": API, "api_key": "none", "max_retries": 0, "timeout": 60}


class Person(BaseModel):
    """A person."""

    name: str
    age: int


METHODS = {
    "function_calling": WRITE_ANN.replace("write", "call Person"),
    "json_schema": WRITE_ANN,
    "json_mode": WRITE_ANN,
}


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"12 degrees in {city}"


def run_agent(model, text, *, is_stream=False, max_turns=5):
    """The messages of a conversation in which the model calls tools until it answers."""
    messages = [HumanMessage(text)]
    for _ in range(max_turns):
        answer = joined(model.stream(messages)) if is_stream else model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        messages += [get_weather.invoke(call) for call in answer.tool_calls]
    raise AssertionError("the model goes on calling tools")


def calls_of(answer):
    assert not answer.invalid_tool_calls
    assert len({call["id"] for call in answer.tool_calls}) == len(answer.tool_calls)
    return [(call["name"], call["args"]) for call in answer.tool_calls]


def chat(**fields):
    return ChatOpenAI(**FIELDS, stream_usage=True, **fields)


def claude(**fields):
    """The same server behind Anthropic's API."""
    return ChatAnthropic(**{**FIELDS, "base_url": URL, **fields})


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


def scripted_an_agent_calls_tools_and_answers():
    model = chat().bind_tools([get_weather])
    for text, cities in ((CALL_OSLO, ["Oslo"]), (CALL_TWICE, ["Oslo", "Bergen"])):
        for is_stream in (False, True):
            _, called, *results, final = run_agent(model, text, is_stream=is_stream)
            assert calls_of(called) == [("get_weather", {"city": city}) for city in cities]
            assert called.content == "" and called.response_metadata["finish_reason"] == "tool_calls"
            assert all(isinstance(result, ToolMessage) for result in results) and len(results) == len(cities)
            assert final.content == told(*(f"12 degrees in {city}" for city in cities))
            assert final.response_metadata["finish_reason"] == "stop"
    text = f"{CALL_OSLO.replace('call', 'look')} then {CALL_OSLO.replace('Oslo', 'Bergen')}"
    _, first, _, second, _, final = run_agent(model, text)
    assert first.content.strip() == LOOK and calls_of(second) == [("get_weather", {"city": "Bergen"})]
    assert final.content == told("12 degrees in Oslo", "12 degrees in Bergen")


def scripted_tool_choice():
    for choice in ("any", "required", "get_weather", True):
        model = chat().bind_tools([get_weather], tool_choice=choice, strict=True)
        for answer in (model.invoke(CALL_OSLO), joined(model.stream(CALL_OSLO))):
            assert calls_of(answer) == [("get_weather", {"city": "Oslo"})]
    schema = {"title": "get_weather", "description": "The weather.", **OSLO}
    for choice in ("required", "get_weather"):
        model = chat().bind_tools([schema], tool_choice=choice, parallel_tool_calls=False)
        assert calls_of(model.invoke("greet")) == [("get_weather", {"city": "Oslo"})]
    assert chat().bind_tools([get_weather]).invoke("greet").content == GREETING
    assert calls_of(chat().bind_tools([get_weather], tool_choice="none").invoke(CALL_OSLO)) == []


def scripted_objects():
    for method, text in METHODS.items():
        model = chat().with_structured_output(Person, method=method)
        assert model.invoke(text) == Person(name="Ann", age=31)
        *_, last = model.stream(text)
        assert last == Person(name="Ann", age=31)
        raw = chat().with_structured_output(Person, method=method, include_raw=True).invoke(text)
        assert raw["parsed"] == Person(name="Ann", age=31) and raw["parsing_error"] is None
    strict = chat().with_structured_output(Person, method="function_calling", strict=True)
    assert strict.invoke(METHODS["function_calling"]) == Person(name="Ann", age=31)


def scripted_the_responses_api():
    for more in ({}, {"use_previous_response_id": True}, {"store": False}):
        model = chat(use_responses_api=True, **more)
        whole, in_pieces = model.invoke("greet"), joined(list(model.stream("greet")))
        assert whole.text == in_pieces.text == GREETING
        assert whole.usage_metadata["output_tokens"] == in_pieces.usage_metadata["output_tokens"] == len(GREETING) + 1
        for is_stream in (False, True):
            messages = run_agent(model.bind_tools([get_weather]), CALL_TWICE, is_stream=is_stream)
            assert calls_of(messages[1]) == [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
            assert messages[-1].text == told("12 degrees in Oslo", "12 degrees in Bergen")
        assert model.with_structured_output(Person).invoke(WRITE_ANN) == Person(name="Ann", age=31)


def scripted_anthropics_api():
    for answer in (claude().invoke("greet"), joined(claude().stream("greet"))):
        assert answer.text == GREETING
        assert (answer.response_metadata["stop_reason"], answer.response_metadata["model_name"]) == ("end_turn", MODEL)
        assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (
            NUM_PROMPT,
            len(GREETING) + 1,
        )
    messages = [SystemMessage("Be brief."), HumanMessage("Hé 😀"), AIMessage("Yes?"), HumanMessage("repeat")]
    expected = repeated(("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat"))
    assert claude().invoke(messages).text == joined(claude().stream(messages)).text == expected
    stopped = claude(stop=[" Ann"]).invoke("greet")
    assert (stopped.text, stopped.response_metadata["stop_sequence"]) == ("Hello there,", " Ann")
    assert joined(claude().stream("unicode")).text == UNICODE
    assert claude().get_num_tokens_from_messages([HumanMessage("greet")]) == NUM_PROMPT
    error = raises(anthropic.BadRequestError, claude(temperature=5).invoke, "greet")
    assert "'temperature'" in str(error)


def scripted_anthropics_api_with_tools_and_objects():
    model = claude().bind_tools([get_weather])
    for is_stream in (False, True):
        for text, cities in ((CALL_OSLO, ["Oslo"]), (CALL_TWICE, ["Oslo", "Bergen"])):
            _, called, *_, final = run_agent(model, text, is_stream=is_stream)
            assert calls_of(called) == [("get_weather", {"city": city}) for city in cities]
            assert final.text == told(*(f"12 degrees in {city}" for city in cities))
    _, first, *_ = run_agent(model, CALL_OSLO.replace("call", "look"))
    assert first.text.strip() == LOOK and first.response_metadata["stop_reason"] == "tool_use"
    schema = {"title": "get_weather", "description": "The weather.", **OSLO}
    for choice in ("any", "get_weather"):
        bound = claude().bind_tools([schema], tool_choice=choice, parallel_tool_calls=False)
        assert calls_of(bound.invoke("greet")) == [("get_weather", {"city": "Oslo"})]
    for method in ("function_calling", "json_schema"):
        found = claude().with_structured_output(Person, method=method)
        assert found.invoke(METHODS[method]) == Person(name="Ann", age=31)
        *_, last = found.stream(METHODS[method])
        assert last == Person(name="Ann", age=31)


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
    await cancels(chat().ainvoke("slow"))


def scripted_sixteen_at_once():
    answers = chat().batch(["greet"] * 16, config={"max_concurrency": 16})
    assert [answer.content for answer in answers] == [GREETING] * 16


async def scripted_sixteen_at_once_in_one_loop():
    async def one(index):
        return joined([chunk async for chunk in chat(max_tokens=4 + index).astream("greet")]).content

    assert await asyncio.gather(*map(one, range(16))) == [GREETING[: 4 + index] for index in range(16)]


def thinking_thoughts_are_not_in_the_way():
    """LangChain drops them."""
    assert chat().invoke("greet").content == joined(chat().stream("greet")).content == GREETING
    *_, final = run_agent(chat().bind_tools([get_weather]), CALL_OSLO, is_stream=True)
    assert final.content == told("12 degrees in Oslo")
    for method, text in METHODS.items():
        assert chat().with_structured_output(Person, method=method).invoke(text) == Person(name="Ann", age=31)


def thinking_the_responses_api_tells_thoughts_as_summaries():
    model = chat(use_responses_api=True, reasoning={"summary": "auto"})
    for answer in (model.invoke("greet"), joined(list(model.stream("greet")))):
        thought = next(block for block in answer.content_blocks if block["type"] == "reasoning")
        assert (thought["reasoning"], answer.text) == (THOUGHT, GREETING)
    assert run_agent(model.bind_tools([get_weather]), CALL_OSLO)[-1].text == told("12 degrees in Oslo")


def thinking_anthropics_api_tells_thoughts():
    model = claude(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2048)
    for answer in (model.invoke("greet"), joined(model.stream("greet"))):
        thought = next(block for block in answer.content_blocks if block["type"] == "reasoning")
        assert (thought["reasoning"], answer.text) == (THOUGHT, GREETING)
    for is_stream in (False, True):
        messages = run_agent(model.bind_tools([get_weather]), CALL_OSLO, is_stream=is_stream)
        assert messages[-1].text == told("12 degrees in Oslo")
    assert claude().invoke("greet").content == GREETING


def model_anthropics_api():
    fields = {"temperature": 0, "max_tokens": 100}
    whole, streamed = claude(**fields).invoke(CAPITAL), joined(claude(**fields).stream(CAPITAL))
    assert "Paris" in whole.text and streamed.text == whole.text
    assert isinstance(claude(**fields).with_structured_output(Person).invoke("Ann is 31 years old."), Person)


def model_calls_and_objects_that_fit_their_schemas():
    for method in ("function_calling", "json_schema"):
        model = chat(temperature=0).with_structured_output(Person, method=method)
        assert isinstance(model.invoke("Ann is 31 years old."), Person)
    model = chat(temperature=0).bind_tools([get_weather], tool_choice="get_weather")
    answer = model.invoke("How is the weather in Oslo?")
    ((name, arguments),) = calls_of(answer)
    assert name == "get_weather" and arguments.keys() == {"city"} and isinstance(arguments["city"], str)
    assert answer.content == "" and answer.response_metadata["finish_reason"] == "tool_calls"
    assert calls_of(joined(model.stream("How is the weather in Oslo?"))) == [(name, arguments)]


def model_the_capital_of_france_whole_and_streamed():
    messages = [SystemMessage("You are a helpful assistant."), HumanMessage(CAPITAL)]
    whole, streamed = chat(temperature=0).invoke(messages), joined(chat(temperature=0).stream(messages))
    assert "Paris" in whole.content
    assert streamed.content == whole.content
    for key in ("input_tokens", "output_tokens"):  # of the first, fewer may have been in the prefix cache
        assert streamed.usage_metadata[key] == whole.usage_metadata[key]


def model_a_seed_repeats_an_answer():
    first, again, other = (
        chat(seed=seed, temperature=1.2, max_tokens=16).invoke("Write a poem.").content for seed in (1, 1, 2)
    )
    assert first == again != other


if __name__ == "__main__":
    main(globals())

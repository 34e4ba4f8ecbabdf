"""llama-index-llms-openai-like: OpenAILike, for chat and for completions."""

from __future__ import annotations

import asyncio
import gc

import openai
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    GREETING,
    MODEL,
    NUM_PROMPT,
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
)


class Person(BaseModel):
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"12 degrees in {city}"


WEATHER = FunctionTool.from_defaults(get_weather)


def calling(**fields):
    return llm(is_function_calling_model=True, **fields)


def calls_of(model, answer):
    """Name and arguments of each call."""
    calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    assert len({call.tool_id for call in calls}) == len(calls)
    return [(call.tool_name, call.tool_kwargs) for call in calls]


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


def scripted_a_tool_is_called_and_its_result_answered():
    model = calling()
    for text, cities in ((CALL_OSLO, ["Oslo"]), (CALL_TWICE, ["Oslo", "Bergen"])):
        expected = [("get_weather", {"city": city}) for city in cities]
        fields = {"allow_parallel_tool_calls": len(cities) > 1}
        called = model.chat_with_tools([WEATHER], user_msg=text, **fields)
        assert calls_of(model, called) == expected
        assert called.raw.choices[0].finish_reason == "tool_calls" and not called.message.content
        *_, last = model.stream_chat_with_tools([WEATHER], user_msg=text, **fields)
        assert calls_of(model, last) == expected
        results = [
            ChatMessage(
                role="tool", content=get_weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
            )
            for call in model.get_tool_calls_from_response(called)
        ]
        final = model.chat_with_tools([WEATHER], chat_history=[*user(text), called.message, *results])
        assert final.message.content == told(*(f"12 degrees in {city}" for city in cities))
    assert calls_of(model, model.chat_with_tools([WEATHER], user_msg="greet")) == []
    forced = model.chat_with_tools([WEATHER], user_msg=CALL_OSLO, tool_required=True)
    assert calls_of(model, forced) == [("get_weather", {"city": "Oslo"})]


async def scripted_an_agent_calls_tools_and_answers():
    for is_stream in (False, True):
        agent = FunctionAgent(tools=[get_weather], llm=calling(), streaming=is_stream)
        text = f"{CALL_OSLO} then {CALL_OSLO.replace('Oslo', 'Bergen')}"
        assert str(await agent.run(text)) == told("12 degrees in Oslo", "12 degrees in Bergen")


def scripted_objects():
    text = WRITE_ANN.replace("write", "call Person")
    assert calling().as_structured_llm(Person).chat(user(text)).raw == Person(name="Ann", age=31)
    *_, last = calling().as_structured_llm(Person).stream_chat(user(text))
    assert last.raw.model_dump() == {"name": "Ann", "age": 31}
    for format_ in (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": Person.model_json_schema()}},
    ):
        answer = llm().chat(user(WRITE_ANN), response_format=format_).message.content
        assert Person.model_validate_json(answer) == Person(name="Ann", age=31)


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
    await cancels(llm().achat(user("slow")))


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


def thinking_thoughts_are_not_in_the_way():
    assert llm().chat(user("greet")).message.content == GREETING
    assert streamed(llm().stream_chat(user("greet")))[0] == GREETING
    model = calling()
    assert calls_of(model, model.chat_with_tools([WEATHER], user_msg=CALL_OSLO)) == [("get_weather", {"city": "Oslo"})]


def model_calls_and_objects_that_fit_their_schemas():
    model = calling(temperature=0)
    called = model.chat_with_tools([WEATHER], user_msg="How is the weather in Oslo?", tool_required=True)
    ((name, arguments),) = calls_of(model, called)
    assert name == "get_weather" and arguments.keys() == {"city"} and isinstance(arguments["city"], str)
    assert isinstance(model.as_structured_llm(Person).chat(user("Ann is 31 years old.")).raw, Person)


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

"""openai for Python, the Responses API: major versions 1, 2 and 3."""

from __future__ import annotations

import json

import openai
from pydantic import BaseModel

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    CITY,
    GREETING,
    LOOK,
    MODEL,
    NUM_PROMPT,
    OSLO,
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
)

FIELDS = {"base_url": API, "api_key": "none", "max_retries": 0, "timeout": 60}
client = openai.OpenAI(**FIELDS)


class Person(BaseModel):
    name: str
    age: int


def tool(parameters=CITY, name="get_weather", **fields):
    return {"type": "function", "name": name, "parameters": parameters, "strict": True, **fields}


TOOLS = [tool()]
NAMED = {"type": "function", "name": "get_weather"}


def ask(asked="greet", **fields):
    return client.responses.create(model=MODEL, input=asked, **fields)


def streamed(asked="greet", **fields):
    """The events and the response that the client's helper puts together of them."""
    with client.responses.stream(model=MODEL, input=asked, **fields) as stream:
        events = list(stream)
        return events, stream.get_final_response()


def calls_of(response):
    """Name and arguments of each call, which all have ids of their own."""
    calls = [item for item in response.output if item.type == "function_call"]
    assert all(call.call_id.startswith("call_") and call.id.startswith("fc_") for call in calls)
    assert len({call.call_id for call in calls}) == len(calls)
    return [(call.name, json.loads(call.arguments)) for call in calls]


def results_of(response, result="12 degrees"):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": result}
        for item in response.output
        if item.type == "function_call"
    ]


def scripted_an_answer_has_text_status_and_usage():
    answer = ask()
    assert answer.object == "response" and answer.model == MODEL and answer.id.startswith("resp_")
    assert (answer.status, answer.output_text, answer.incomplete_details) == ("completed", GREETING, None)
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens) == (NUM_PROMPT, len(GREETING) + 1)
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert 0 <= usage.input_tokens_details.cached_tokens < usage.input_tokens


def scripted_a_stream_gives_the_same():
    events = list(ask(stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == GREETING
    assert events[-1].response.output_text == GREETING
    assert events[-1].response.usage.output_tokens == len(GREETING) + 1
    assert {event.response.id for event in events if hasattr(event, "response")} == {events[0].response.id}


def scripted_the_stream_helper_puts_an_answer_together():
    events, final = streamed()
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert deltas[-1].snapshot == final.output_text == GREETING and final.status == "completed"


def scripted_the_whole_conversation_arrives():
    turns = [("system", "Be brief."), ("user", "Hé 😀"), ("assistant", "Yes?"), ("user", "repeat")]
    items = [{"role": role, "content": text} for role, text in turns]
    assert ask(items).output_text == repeated(*turns)
    assert ask(items[1:], instructions="Be brief.").output_text == repeated(*turns)
    parts = [{"role": "user", "content": [{"type": "input_text", "text": text} for text in ("rep", "eat")]}]
    assert ask(parts).output_text == repeated(("user", "repeat"))


def scripted_a_response_goes_on_from_another():
    first = ask("greet", instructions="Be brief.")
    second = ask("repeat", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.output_text == repeated(("user", "greet"), ("assistant", GREETING), ("user", "repeat"))
    _, third = streamed("greet", previous_response_id=second.id)
    assert third.output_text == GREETING and third.usage.input_tokens > second.usage.input_tokens
    by_hand = [{"role": "user", "content": "greet"}, *first.output, {"role": "user", "content": "repeat"}]
    assert ask(by_hand).output_text == second.output_text


def scripted_responses_are_kept_until_they_are_deleted():
    first = ask()
    second = ask("greet", previous_response_id=first.id)
    kept = client.responses.retrieve(second.id)
    assert (kept.id, kept.output_text, kept.usage) == (second.id, GREETING, second.usage)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    raises(openai.NotFoundError, client.responses.retrieve, first.id)
    error = raises(openai.BadRequestError, ask, previous_response_id=second.id)
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")
    raises(openai.NotFoundError, client.responses.retrieve, ask(store=False).id)


def scripted_a_limit_makes_it_incomplete():
    answer = ask(max_output_tokens=5)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == "Hello" and answer.usage.output_tokens == 5
    events = list(ask(max_output_tokens=5, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == "Hello"


def scripted_log_probabilities():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    entries = ask(**fields).output[0].content[0].logprobs
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == GREETING
    assert {len(entry.top_logprobs) for entry in entries} == {2}
    deltas = [event for event in ask(stream=True, **fields) if event.type == "response.output_text.delta"]
    assert [entry.token for event in deltas for entry in event.logprobs] == [entry.token for entry in entries]


def scripted_unicode_comes_through_whole_and_streamed():
    assert ask("unicode").output_text == UNICODE
    events, final = streamed("unicode")
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == UNICODE and len(deltas) > 1


def scripted_a_tool_is_called_and_its_result_answered():
    for choice in ("auto", "required", NAMED):
        called = ask(CALL_OSLO, tools=TOOLS, tool_choice=choice)
        assert called.status == "completed" and calls_of(called) == [("get_weather", {"city": "Oslo"})]
        events, final = streamed(CALL_OSLO, tools=TOOLS, tool_choice=choice)
        assert calls_of(final) == calls_of(called) and final.output[-1].parsed_arguments == {"city": "Oslo"}
        (done,) = (event for event in events if event.type == "response.function_call_arguments.done")
        assert json.loads(done.arguments) == {"city": "Oslo"}
    kept = ask(results_of(called), tools=TOOLS, previous_response_id=called.id)
    items = [{"role": "user", "content": CALL_OSLO}, *called.output, *results_of(called)]
    assert kept.output_text == ask(items, tools=TOOLS, store=False).output_text == told("12 degrees")
    error = raises(openai.BadRequestError, ask, results_of(called), tools=TOOLS)
    assert error.param == "input" and called.output[-1].call_id in str(error)


def scripted_several_calls_and_words_before_them():
    expected = [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"})]
    called = ask(CALL_TWICE, tools=TOOLS)
    assert calls_of(called) == expected == calls_of(streamed(CALL_TWICE, tools=TOOLS)[1])
    assert calls_of(ask(CALL_TWICE, tools=TOOLS, parallel_tool_calls=False)) == expected[:1]
    final = ask(results_of(called), tools=TOOLS, previous_response_id=called.id)
    assert final.output_text == told("12 degrees", "12 degrees")
    look = CALL_OSLO.replace("call", "look")
    for answer in (ask(look, tools=TOOLS), streamed(look, tools=TOOLS)[1]):
        assert answer.output_text.strip() == LOOK and calls_of(answer) == expected[:1]


def scripted_tool_choice_binds_a_model_that_wants_something_else():
    fields = {"tools": [tool(OSLO, "get_time"), tool(OSLO)], "tool_choice": NAMED}
    assert calls_of(ask(**fields)) == calls_of(streamed(**fields)[1]) == [("get_weather", {"city": "Oslo"})]
    assert not calls_of(ask(CALL_OSLO, tools=TOOLS, tool_choice="none"))
    assert ask(tools=[*TOOLS, {"type": "web_search"}]).output_text == GREETING


def scripted_answers_are_parsed():
    parsed = client.responses.parse(model=MODEL, input=WRITE_ANN, text_format=Person)
    assert parsed.output_parsed == Person(name="Ann", age=31)
    _, final = streamed(WRITE_ANN, text_format=Person)
    assert final.output_parsed == parsed.output_parsed
    tools = [openai.pydantic_function_tool(Person)["function"]]
    tools = [{"type": "function", **function} for function in tools]
    called = ask(WRITE_ANN.replace("write", "call Person"), tools=tools)
    assert calls_of(called) == [("Person", {"name": "Ann", "age": 31})]
    form = {"type": "json_schema", "name": "city", "schema": OSLO, "strict": True}
    assert json.loads(ask(text={"format": form}).output_text) == {"city": "Oslo"}
    assert json.loads(ask(WRITE_ANN, text={"format": {"type": "json_object"}}).output_text)["name"] == "Ann"


def scripted_mistakes_become_the_clients_exceptions():
    for fields, param, code in (
        ({"temperature": 5}, "temperature", "decimal_above_max_value"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "other"}}, "tool_choice", "invalid_value"),
        ({"tools": [tool({"type": "town"})]}, "tools[0].parameters", "invalid_grammar"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"enum": []}}}},
            "text.format",
            "invalid_grammar",
        ),
    ):
        for is_stream in (False, True):
            error = raises(openai.BadRequestError, ask, stream=is_stream, **fields)
            assert (error.param, error.code) == (param, code), error
    raises(openai.NotFoundError, client.responses.create, model="other", input="greet")


def scripted_a_stream_that_is_closed_gives_its_place_back():
    with ask("slow", stream=True) as stream:
        for _ in zip(range(40), stream, strict=False):
            pass
        assert num_open() == 1
    until_idle()
    assert ask().output_text == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    async with openai.AsyncOpenAI(**FIELDS) as aclient:

        async def read():
            async for _ in await aclient.responses.create(model=MODEL, input="slow", stream=True):
                pass

        await cancels(read(), after_s=0.1)
        await cancels(aclient.responses.create(model=MODEL, input="slow"), after_s=0.1)
        assert (await aclient.responses.create(model=MODEL, input="greet")).output_text == GREETING


def scripted_sixteen_at_once():
    def one(index):
        fields = {"max_output_tokens": 4 + index}
        return list(ask(stream=True, **fields))[-1].response.output_text if index % 2 else ask(**fields).output_text

    assert at_once(one) == [GREETING[: 4 + index] for index in range(16)]


def thinking_a_thought_is_an_item_before_the_answer():
    for answer in (ask(), streamed()[1]):
        thought, message = answer.output
        assert (thought.type, message.type, answer.output_text) == ("reasoning", "message", GREETING)
        assert [part.text for part in thought.content] == [THOUGHT] and thought.summary == []
        assert 0 < answer.usage.output_tokens_details.reasoning_tokens < answer.usage.output_tokens
    events = list(ask(stream=True, reasoning={"summary": "auto"}))
    deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    thought = events[-1].response.output[0]
    assert "".join(deltas) == THOUGHT == thought.summary[0].text
    cut = ask(max_output_tokens=12)
    assert (cut.output_text, cut.status) == ("", "incomplete")


def thinking_thoughts_are_given_back_with_their_calls():
    include = {"include": ["reasoning.encrypted_content"], "store": False, "tools": TOOLS}
    called = ask(CALL_OSLO, **include)
    assert [item.type for item in called.output] == ["reasoning", "function_call"]
    items = [{"role": "user", "content": CALL_OSLO}, *called.output, *results_of(called)]
    final = ask(items, **include)
    assert final.output_text == told("12 degrees")
    called = streamed(CALL_OSLO, tools=TOOLS)[1]
    assert ask(results_of(called), previous_response_id=called.id).output_text == told("12 degrees")
    parsed = client.responses.parse(model=MODEL, input=WRITE_ANN, text_format=Person)
    assert parsed.output_parsed == Person(name="Ann", age=31)


def model_the_capital_of_france_whole_and_streamed():
    fields = {"instructions": "You are a helpful assistant.", "temperature": 0}
    whole = ask(CAPITAL, **fields)
    assert "Paris" in whole.output_text and whole.status == "completed"
    _, final = streamed(CAPITAL, **fields)
    assert final.output_text == whole.output_text and final.usage.output_tokens == whole.usage.output_tokens
    again = ask("Which country is that in?", previous_response_id=whole.id, **fields)
    assert again.usage.input_tokens > whole.usage.input_tokens and again.output_text
    assert again.usage.input_tokens_details.cached_tokens > 0


def model_forced_calls_and_objects_fit_their_schemas():
    fields = {"tools": TOOLS, "tool_choice": "required", "temperature": 0, "parallel_tool_calls": False}
    called = ask("How is the weather in Oslo?", **fields)
    ((name, arguments),) = calls_of(called)
    assert name == "get_weather" and isinstance(arguments["city"], str)
    assert calls_of(streamed("How is the weather in Oslo?", **fields)[1]) == [(name, arguments)]
    question = "Ann is 31 years old. Who is it?"
    parsed = client.responses.parse(model=MODEL, input=question, text_format=Person, temperature=0)
    assert isinstance(parsed.output_parsed, Person)


if __name__ == "__main__":
    main(globals())

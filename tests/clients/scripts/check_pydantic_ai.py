"""pydantic-ai: agents with tools, and with text or objects as their output."""

from __future__ import annotations

import asyncio

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from checks import (
    API,
    CALL_OSLO,
    CALL_TWICE,
    CAPITAL,
    GREETING,
    LOOK,
    MODEL,
    NUM_PROMPT,
    THOUGHT,
    UNICODE,
    URL,
    WRITE_ANN,
    araises,
    cancels,
    main,
    num_open,
    raises,
    repeated,
    told,
    until_idle,
)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    age: int


client = AsyncOpenAI(base_url=API, api_key="none", max_retries=0, timeout=60)
anthropic_client = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0, timeout=60)
THINKING = {"type": "enabled", "budget_tokens": 1024}


def agent(*, model=MODEL, output_type=str, system=(), profile=None, kind=OpenAIChatModel, **settings):
    if kind is AnthropicModel:
        provider = AnthropicProvider(anthropic_client=anthropic_client)
    else:
        provider = OpenAIProvider(openai_client=client)
    return Agent(
        kind(model, provider=provider, profile=profile),
        output_type=output_type,
        system_prompt=system,
        model_settings=settings,
        retries=0,
    )


def weather_agent(**fields):
    """With a tool, and the list of what it was called with."""
    found, asked = agent(**fields), []

    @found.tool_plain
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"12 degrees in {city}"

    return found, asked


def parts_of(run, kind):
    return [part for message in run.all_messages() for part in message.parts if isinstance(part, kind)]


async def streamed(found, text, **fields):
    """Pieces of text, and the run's usage."""
    async with found.run_stream(text, **fields) as run:
        return [piece async for piece in run.stream_text(delta=True, debounce_by=None)], run.usage


async def scripted_an_answer_has_text_reason_and_usage():
    run = await agent().run("greet")
    assert run.output == GREETING
    answer = run.all_messages()[-1]
    assert (answer.model_name, answer.finish_reason) == (MODEL, "stop")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (NUM_PROMPT, len(GREETING) + 1)


async def scripted_a_stream_gives_the_same():
    pieces, usage = await streamed(agent(), "greet")
    assert "".join(pieces) == GREETING
    assert (usage.input_tokens, usage.output_tokens) == (NUM_PROMPT, len(GREETING) + 1)


async def scripted_the_whole_conversation_arrives():
    first = await agent(system="Be brief.").run("greet")
    second = await agent(system="Be brief.").run("repeat", message_history=first.all_messages())
    turns = [("system", "Be brief."), ("user", "greet"), ("assistant", GREETING), ("user", "repeat")]
    assert second.output == repeated(*turns)
    pieces, _ = await streamed(agent(), "repeat", message_history=first.all_messages())
    assert "".join(pieces) == repeated(*turns)


async def scripted_stop_strings_and_limits_end_an_answer():
    for settings, expected in (
        ({"stop_sequences": [" Ann"]}, ("Hello there,", "stop")),
        ({"max_tokens": 5}, ("Hello", "length")),
    ):
        run = await agent(**settings).run("greet")
        assert (run.output, run.all_messages()[-1].finish_reason) == expected
        assert "".join((await streamed(agent(**settings), "greet"))[0]) == expected[0]


async def scripted_log_probabilities():
    run = await agent(openai_logprobs=True, openai_top_logprobs=2).run("greet")
    entries = run.all_messages()[-1].provider_details["logprobs"]
    assert "".join(entry["token"] for entry in entries) == GREETING
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}


async def scripted_unicode_comes_through_whole_and_streamed():
    assert (await agent().run("unicode")).output == UNICODE
    pieces, _ = await streamed(agent(), "unicode")
    assert "".join(pieces) == UNICODE
    assert len(pieces) > 1


async def scripted_mistakes_become_the_clients_exceptions():
    error = await araises(ModelHTTPError, agent(temperature=5).run("greet"))
    assert error.status_code == 400
    assert (error.body["param"], error.body["code"]) == ("temperature", "decimal_above_max_value")
    error = await araises(ModelHTTPError, streamed(agent(temperature=5), "greet"))
    assert (error.status_code, error.body["param"]) == (400, "temperature")
    error = await araises(ModelHTTPError, agent(model="other").run("greet"))
    assert (error.status_code, error.body["code"]) == (404, "model_not_found")


async def scripted_a_tool_is_called_and_its_result_answered():
    for text, cities in (
        (CALL_OSLO, ["Oslo"]),
        (CALL_TWICE, ["Oslo", "Bergen"]),
        (CALL_OSLO.replace("call", "look"), ["Oslo"]),
    ):
        found, asked = weather_agent()
        run = await found.run(text)
        assert sorted(asked) == sorted(cities)
        assert run.output == told(*(f"12 degrees in {city}" for city in cities))
        calls, returns = parts_of(run, ToolCallPart), parts_of(run, ToolReturnPart)
        assert [(call.tool_name, call.args_as_dict()) for call in calls] == [
            ("get_weather", {"city": city}) for city in cities
        ]
        assert len({call.tool_call_id for call in calls}) == len(calls)
        assert [part.tool_call_id for part in returns] == [call.tool_call_id for call in calls]
        answer = run.all_messages()[1]
        assert answer.finish_reason == "tool_call" and (answer.text or "").strip() == LOOK * text.startswith("look")


async def scripted_a_tool_is_called_in_a_stream():
    for text, cities in ((CALL_OSLO, ["Oslo"]), (CALL_TWICE, ["Oslo", "Bergen"])):
        found, asked = weather_agent()
        pieces, usage = await streamed(found, text)
        assert "".join(pieces) == told(*(f"12 degrees in {city}" for city in cities)) and len(pieces) > 1
        assert sorted(asked) == sorted(cities) and usage.requests == 2


async def scripted_several_tools_one_after_the_other():
    found, asked = weather_agent()
    run = await found.run(f"{CALL_OSLO} then {CALL_OSLO.replace('Oslo', 'Bergen')}")
    assert asked == ["Oslo", "Bergen"]
    assert run.output == told("12 degrees in Oslo", "12 degrees in Bergen")


async def scripted_an_object_as_a_tool_or_as_native_output():
    for output_type, text in (
        (Person, WRITE_ANN.replace("write", "call final_result")),
        (ToolOutput(Person, name="person"), WRITE_ANN.replace("write", "call person")),
        (ToolOutput(Person, name="person", strict=True), WRITE_ANN.replace("write", "call person")),
        (NativeOutput(Person), WRITE_ANN),
        (NativeOutput(Person, strict=True), WRITE_ANN),
    ):
        assert (await agent(output_type=output_type).run(text)).output == Person(name="Ann", age=31)
        async with agent(output_type=output_type).run_stream(text) as run:
            assert await run.get_output() == Person(name="Ann", age=31)
        found, asked = weather_agent(output_type=output_type)
        assert (await found.run(f"{CALL_OSLO} then {text}")).output == Person(name="Ann", age=31)
        assert asked == ["Oslo"]


async def scripted_an_object_that_is_asked_for_in_words():
    profile = ModelProfile(supports_json_object_output=False)
    run = await agent(output_type=PromptedOutput(Person), profile=profile).run("person")
    assert run.output == Person(name="Ann", age=31)


async def scripted_the_responses_api():
    fields = {"kind": OpenAIResponsesModel}
    run = await agent(**fields).run("greet")
    assert (run.output, run.usage.output_tokens) == (GREETING, len(GREETING) + 1)
    assert "".join((await streamed(agent(**fields), "greet"))[0]) == GREETING
    turns = [("user", "greet"), ("assistant", GREETING), ("user", "repeat")]
    for previous in (None, "auto"):
        found = agent(**fields, openai_previous_response_id=previous)
        assert (await found.run("repeat", message_history=run.all_messages())).output == repeated(*turns)
    found, asked = weather_agent(**fields)
    assert (await found.run(CALL_TWICE)).output == told("12 degrees in Oslo", "12 degrees in Bergen")
    assert asked == ["Oslo", "Bergen"]
    for output, text in (
        (NativeOutput(Person), WRITE_ANN),
        (ToolOutput(Person), WRITE_ANN.replace("write", "call final_result")),
    ):
        assert (await agent(output_type=output, **fields).run(text)).output == Person(name="Ann", age=31)


async def scripted_anthropics_api():
    fields = {"kind": AnthropicModel}
    run = await agent(**fields, system="Be brief.").run("greet")
    assert (run.output, run.usage.output_tokens) == (GREETING, len(GREETING) + 1)
    turns = [("system", "Be brief."), ("user", "greet"), ("assistant", GREETING), ("user", "repeat")]
    assert (await agent(**fields).run("repeat", message_history=run.all_messages())).output == repeated(*turns)
    pieces, usage = await streamed(agent(**fields), "greet")
    assert ("".join(pieces), usage.output_tokens) == (GREETING, len(GREETING) + 1)
    assert (await agent(**fields, stop_sequences=[" Ann"]).run("greet")).output == "Hello there,"
    for text, cities in ((CALL_TWICE, ["Oslo", "Bergen"]), (f"{CALL_OSLO} then {CALL_OSLO}", ["Oslo", "Oslo"])):
        found, asked = weather_agent(**fields)
        assert (await found.run(text)).output == told(*(f"12 degrees in {city}" for city in cities))
        assert sorted(asked) == sorted(cities)
        assert "".join((await streamed(found, text))[0]) == told(*(f"12 degrees in {city}" for city in cities))
    profile = ModelProfile(supports_json_schema_output=True)
    for output, text in (
        (NativeOutput(Person), WRITE_ANN),
        (ToolOutput(Person), WRITE_ANN.replace("write", "call final_result")),
    ):
        assert (await agent(output_type=output, profile=profile, **fields).run(text)).output == Person(
            name="Ann", age=31
        )
    error = await araises(ModelHTTPError, agent(**fields, temperature=5).run("greet"))
    assert error.status_code == 400 and "'temperature'" in str(error.body)


async def scripted_a_stream_that_is_left_gives_its_place_back():
    async with agent().run_stream("slow") as run:
        async for _ in run.stream_text(delta=True, debounce_by=None):
            assert await asyncio.to_thread(num_open) == 1
            break
    await asyncio.to_thread(until_idle)
    assert (await agent().run("greet")).output == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    await cancels(agent().run("slow"))


async def scripted_sixteen_at_once():
    runs = await asyncio.gather(*(agent(max_tokens=4 + index).run("greet") for index in range(16)))
    assert [run.output for run in runs] == [GREETING[: 4 + index] for index in range(16)]


def scripted_without_a_loop():
    assert agent().run_sync("greet").output == GREETING
    assert raises(ModelHTTPError, agent(temperature=5).run_sync, "greet").status_code == 400


async def thinking_a_thought_comes_before_answers_calls_and_objects():
    run = await agent().run("greet")
    assert run.output == GREETING
    assert [part.content for part in parts_of(run, ThinkingPart)] == [THOUGHT]
    assert "".join((await streamed(agent(), "greet"))[0]) == GREETING
    found, asked = weather_agent()
    run = await found.run(CALL_OSLO)
    assert (run.output, asked) == (told("12 degrees in Oslo"), ["Oslo"])
    assert [part.content for part in parts_of(run, ThinkingPart)] == [THOUGHT, THOUGHT]
    for output_type, text in (
        (Person, WRITE_ANN.replace("write", "call final_result")),
        (NativeOutput(Person), WRITE_ANN),
    ):
        assert (await agent(output_type=output_type).run(text)).output == Person(name="Ann", age=31)


async def thinking_the_responses_api_gives_thoughts_back():
    found, asked = weather_agent(kind=OpenAIResponsesModel)
    run = await found.run(CALL_OSLO)
    assert (run.output, asked) == (told("12 degrees in Oslo"), ["Oslo"])
    assert len(parts_of(run, ThinkingPart)) == 2
    run = await found.run("greet", model_settings={"openai_reasoning_summary": "auto"})
    assert [part.content for part in parts_of(run, ThinkingPart)] == [THOUGHT]


async def thinking_anthropics_api_gives_thoughts_back():
    found, asked = weather_agent(kind=AnthropicModel, anthropic_thinking=THINKING, max_tokens=2048)
    run = await found.run(CALL_OSLO)
    assert (run.output, asked) == (told("12 degrees in Oslo"), ["Oslo"])
    assert [part.content for part in parts_of(run, ThinkingPart)] == [THOUGHT, THOUGHT]
    assert "".join((await streamed(found, "greet"))[0]) == GREETING
    assert parts_of(await agent(kind=AnthropicModel).run("greet"), ThinkingPart) == []


async def model_anthropics_api():
    fields = {"kind": AnthropicModel, "temperature": 0, "max_tokens": 200}
    whole = await agent(**fields).run(CAPITAL)
    assert "Paris" in whole.output
    assert "".join((await streamed(agent(**fields), CAPITAL))[0]) == whole.output
    assert isinstance((await agent(output_type=Person, **fields).run("Ann is 31 years old.")).output, Person)


async def model_objects_that_fit_their_schemas():
    for output_type in (
        Person,
        ToolOutput(Person, strict=True),
        NativeOutput(Person),
        NativeOutput(Person, strict=True),
    ):
        found = agent(output_type=output_type, temperature=0, parallel_tool_calls=False)
        person = (await found.run("Ann is 31 years old.")).output
        assert isinstance(person, Person) and person.name
        async with found.run_stream("Ann is 31 years old.") as run:
            assert await run.get_output() == person


async def model_the_capital_of_france_whole_and_streamed():
    whole = await agent(system="You are a helpful assistant.", temperature=0).run(CAPITAL)
    assert "Paris" in whole.output
    pieces, usage = await streamed(agent(system="You are a helpful assistant.", temperature=0), CAPITAL)
    assert "".join(pieces) == whole.output
    assert usage.output_tokens == whole.usage.output_tokens


async def model_a_seed_repeats_an_answer():
    first, again, other = [
        (await agent(seed=seed, temperature=1.2, max_tokens=16).run("Write a poem.")).output for seed in (1, 1, 2)
    ]
    assert first == again != other


if __name__ == "__main__":
    main(globals())

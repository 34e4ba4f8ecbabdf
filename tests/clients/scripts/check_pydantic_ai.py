"""pydantic-ai: agents with plain text as their output."""

from __future__ import annotations

import asyncio

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

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


class Person(BaseModel):
    name: str
    age: int


client = AsyncOpenAI(base_url=API, api_key="none", max_retries=0, timeout=60)


def agent(*, model=MODEL, output_type=str, system=(), profile=None, **settings):
    return Agent(
        OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client), profile=profile),
        output_type=output_type,
        system_prompt=system,
        model_settings=settings,
        retries=0,
    )


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


async def scripted_what_is_not_there_yet_is_refused_by_name():
    for output_type, field in ((Person, "tool"), (NativeOutput(Person), "response_format")):
        error = await araises(ModelHTTPError, agent(output_type=output_type).run("person"))
        assert (error.status_code, error.body["code"]) == (400, "unsupported_parameter")
        assert error.body["param"].startswith(field)
    with_tool = agent()

    @with_tool.tool_plain
    def now() -> str:
        return "noon"

    error = await araises(ModelHTTPError, with_tool.run("greet"))
    assert (error.status_code, error.body["code"]) == (400, "unsupported_parameter")


async def scripted_an_object_that_is_asked_for_in_words():
    profile = ModelProfile(supports_json_object_output=False)
    run = await agent(output_type=PromptedOutput(Person), profile=profile).run("person")
    assert run.output == Person(name="Ann", age=31)


async def scripted_a_stream_that_is_left_gives_its_place_back():
    async with agent().run_stream("slow") as run:
        async for _ in run.stream_text(delta=True, debounce_by=None):
            assert await asyncio.to_thread(num_open) == 1
            break
    await asyncio.to_thread(until_idle)
    assert (await agent().run("greet")).output == GREETING


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    task = asyncio.create_task(agent().run("slow"))
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)


async def scripted_sixteen_at_once():
    runs = await asyncio.gather(*(agent(max_tokens=4 + index).run("greet") for index in range(16)))
    assert [run.output for run in runs] == [GREETING[: 4 + index] for index in range(16)]


def scripted_without_a_loop():
    assert agent().run_sync("greet").output == GREETING
    assert raises(ModelHTTPError, agent(temperature=5).run_sync, "greet").status_code == 400


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

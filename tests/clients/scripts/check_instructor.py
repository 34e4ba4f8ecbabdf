"""instructor, in the mode that needs neither tools nor a JSON schema: MD_JSON."""

from __future__ import annotations

import asyncio

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel

from checks import (
    API,
    CAPITAL,
    GREETING,
    MODEL,
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
SLOW = [{"role": "user", "content": "slow"}]


class Person(BaseModel):
    name: str
    age: int


def wrapped(mode=instructor.Mode.MD_JSON):
    return instructor.from_openai(openai.OpenAI(**FIELDS), mode=mode)


def awrapped():
    return instructor.from_openai(openai.AsyncOpenAI(**FIELDS), mode=instructor.Mode.MD_JSON)


def ask(text, response_model=None, client=None, **fields):
    messages = [{"role": "user", "content": text}]
    create = (client or wrapped()).chat.completions.create
    return create(model=MODEL, messages=messages, response_model=response_model, max_retries=0, **fields)


def scripted_an_object():
    person, answer = wrapped().chat.completions.create_with_completion(
        model=MODEL, messages=[{"role": "user", "content": "person"}], response_model=Person, max_retries=0
    )
    assert isinstance(person, Person) and (person.name, person.age) == ("Ann", 31)
    assert answer.choices[0].finish_reason == "stop" and answer.usage.completion_tokens > 30
    assert answer._request_id


def scripted_an_object_in_a_stream():
    found = list(
        wrapped().chat.completions.create_partial(
            model=MODEL, messages=[{"role": "user", "content": "person"}], response_model=Person, max_retries=0
        )
    )
    assert (found[-1].name, found[-1].age) == ("Ann", 31)
    assert len(found) > 1


def scripted_text_whole_and_streamed():
    for text, expected in (("greet", GREETING), ("unicode", UNICODE), ("repeat", repeated(("user", "repeat")))):
        assert ask(text).choices[0].message.content == expected
        chunks = list(ask(text, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def scripted_limits_that_cut_an_object_are_told():
    error = raises(instructor.core.IncompleteOutputException, ask, "person", Person, max_tokens=20)
    assert error.last_completion.choices[0].finish_reason == "length"


def scripted_what_is_no_object_is_told():
    error = raises(InstructorRetryException, ask, "greet", Person)
    assert error.last_completion.choices[0].message.content == GREETING


def scripted_what_is_not_there_yet_is_refused_by_name():
    for mode, field in (
        (instructor.Mode.TOOLS, "tool"),
        (instructor.Mode.JSON, "response_format"),
        (instructor.Mode.JSON_SCHEMA, "response_format"),
    ):
        error = raises(InstructorRetryException, ask, "person", Person, wrapped(mode))
        refusal = error.__cause__
        assert isinstance(refusal, openai.BadRequestError)
        assert refusal.code == "unsupported_parameter" and refusal.param.startswith(field)


def scripted_mistakes_become_the_clients_exceptions():
    error = raises(openai.BadRequestError, ask, "greet", temperature=5)
    assert (error.param, error.code) == ("temperature", "decimal_above_max_value")


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    create = awrapped().chat.completions.create
    task = asyncio.create_task(create(model=MODEL, messages=SLOW, response_model=Person, max_retries=0))
    while not await asyncio.to_thread(num_open):
        await asyncio.sleep(0.01)
    task.cancel()
    await araises(asyncio.CancelledError, task)
    await asyncio.to_thread(until_idle)
    assert ask("person", Person).name == "Ann"


def scripted_a_stream_that_is_closed_gives_its_place_back():
    stream = ask("slow", stream=True)
    for _ in zip(range(3), stream, strict=False):
        pass
    assert num_open() == 1
    stream.close()
    until_idle()


def scripted_sixteen_at_once():
    people = at_once(lambda index: ask("person", Person))
    assert [(person.name, person.age) for person in people] == [("Ann", 31)] * 16


def model_the_capital_of_france_whole_and_streamed():
    whole = ask(CAPITAL, temperature=0).choices[0].message.content
    assert "Paris" in whole
    chunks = ask(CAPITAL, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


if __name__ == "__main__":
    main(globals())

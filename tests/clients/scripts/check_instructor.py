"""instructor, with tools, with a JSON schema, with any JSON, and with JSON that is asked for in words: MD_JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, ConfigDict, field_validator

from checks import (
    API,
    CALL_OSLO,
    CAPITAL,
    CITY,
    GREETING,
    MODEL,
    SLOW,
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


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    age: int

    @field_validator("age")
    @classmethod
    def nobody_is_that_old(cls, age: int) -> int:
        if age > 150:
            raise ValueError("Nobody is that old.")
        return age


CALL_ANN = WRITE_ANN.replace("write", "call Person")
MODES = {
    instructor.Mode.TOOLS: CALL_ANN,
    instructor.Mode.TOOLS_STRICT: CALL_ANN,
    instructor.Mode.JSON: WRITE_ANN,
    instructor.Mode.JSON_SCHEMA: WRITE_ANN,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}


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


def scripted_an_object_in_each_mode():
    for mode, text in MODES.items():
        person = ask(text, Person, wrapped(mode))
        assert isinstance(person, Person) and (person.name, person.age) == ("Ann", 31)


def scripted_an_object_in_a_stream_in_each_mode():
    for mode, text in MODES.items():
        found = list(
            wrapped(mode).chat.completions.create_partial(
                model=MODEL,
                messages=[{"role": "user", "content": text.replace("Person", "PartialPerson")}],
                response_model=Person,
                max_retries=0,
            )
        )
        assert (found[-1].name, found[-1].age) == ("Ann", 31)
        assert len(found) > 1


def scripted_several_objects():
    people = {"tasks": [{"name": "Ann", "age": 31}, {"name": "Bob", "age": 40}]}
    for mode, text in ((instructor.Mode.TOOLS, "call IterablePerson"), (instructor.Mode.JSON_SCHEMA, "write")):
        messages = [{"role": "user", "content": f"{text} {json.dumps(people)}"}]
        found = wrapped(mode).chat.completions.create_iterable(
            model=MODEL, messages=messages, response_model=Person, max_retries=0
        )
        assert [(person.name, person.age) for person in found] == [("Ann", 31), ("Bob", 40)]
    parallel = wrapped(instructor.Mode.PARALLEL_TOOLS)
    text = 'call Person {"name": "Ann", "age": 31} Person {"name": "Bob", "age": 40}'
    assert [person.age for person in ask(text, Iterable[Person], parallel)] == [31, 40]


def scripted_a_mistake_goes_back_to_the_model_which_does_better():
    for mode, text in MODES.items():
        word = text.partition("{")[0]
        messages = [{"role": "user", "content": f'{word}{{"name": "Ann", "age": 310}} then {text}'}]
        seen = []
        client = wrapped(mode)
        client.on("completion:response", seen.append)
        create = client.chat.completions.create
        person = create(model=MODEL, messages=messages, response_model=Person, max_retries=1)
        assert (person.name, person.age) == ("Ann", 31)
        assert len(seen) == 2, seen


def scripted_a_tool_is_called_and_its_result_becomes_an_object():
    client = wrapped(instructor.Mode.TOOLS)
    messages = [{"role": "user", "content": f"{CALL_OSLO} then {CALL_ANN}"}]
    fields = {"model": MODEL, "max_retries": 0}
    called = client.chat.completions.create(messages=messages, response_model=None, tools=[WEATHER], **fields)
    (call,) = called.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    assert called.choices[0].finish_reason == "tool_calls"
    said = called.choices[0].message.model_dump()
    messages += [said, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}]
    assert client.chat.completions.create(messages=messages, response_model=Person, **fields).age == 31
    messages[0] = {"role": "user", "content": CALL_OSLO}
    final = client.chat.completions.create(messages=messages, response_model=None, tools=[WEATHER], **fields)
    assert final.choices[0].message.content == told("12 degrees")


def scripted_mistakes_become_the_clients_exceptions():
    error = raises(openai.BadRequestError, ask, "greet", temperature=5)
    assert (error.param, error.code) == ("temperature", "decimal_above_max_value")


async def scripted_a_task_that_is_cancelled_gives_its_place_back():
    create = awrapped().chat.completions.create
    await cancels(create(model=MODEL, messages=SLOW, response_model=Person, max_retries=0))
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


def thinking_objects():
    for mode, text in {**MODES, instructor.Mode.MD_JSON: "person"}.items():
        person = ask(text, Person, wrapped(mode))
        assert (person.name, person.age) == ("Ann", 31)
        assert person._raw_response.choices[0].message.reasoning_content == THOUGHT


def model_objects_that_fit_their_schemas():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
        fields = {"model": MODEL, "messages": [{"role": "user", "content": "Ann is 31 years old."}], "max_retries": 0}
        client = wrapped(mode)
        person = client.chat.completions.create(response_model=Person, temperature=0, **fields)
        assert isinstance(person, Person) and person.age == 31
        *_, last = client.chat.completions.create_partial(response_model=Person, temperature=0, **fields)
        assert isinstance(last.name, str) and isinstance(last.age, int)


def model_the_capital_of_france_whole_and_streamed():
    whole = ask(CAPITAL, temperature=0).choices[0].message.content
    assert "Paris" in whole
    chunks = ask(CAPITAL, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


if __name__ == "__main__":
    main(globals())

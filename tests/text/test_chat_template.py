"""Prompts from templates of the kinds that models ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anllm.errors import InvalidRequestError, ModelError
from anllm.text.chat_template import ChatTemplate, load_chat_template

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}"
    "{% else %}{% set loop_messages = messages %}{% set system_message = '' %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 %}{% set content = system_message + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if tools is not none %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}"
    "{% endif %}{% for message in messages %}"
    "{% if message['tool_calls'] is defined and message.tool_calls is not none %}[TOOL_CALLS]"
    "{% for call in message.tool_calls %}{{ call.function.name }}"
    "({% for key, value in call.function.arguments.items() %}{{ key }}={{ value | tojson }};{% endfor %}){% endfor %}"
    "{{ eos_token }}"
    "{% elif message.role == 'tool' %}{{ '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}"
    "{% elif message.role == 'user' %}{{ '[INST]' + message.content + '[/INST]' }}"
    "{% else %}{{ message.content + eos_token }}{% endif %}{% endfor %}"
)
PARTS = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}"
)


def make_template(text: str) -> ChatTemplate:
    return ChatTemplate(text, {"bos_token": "<s>", "eos_token": "</s>"})


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object, **other: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **other}


def system(content: object) -> dict[str, Any]:
    return {"role": "system", "content": content}


def lamp_history(arguments: object, content: object = None) -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "lamp_state", "arguments": arguments}}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "off"}
    return [user("Lights?"), assistant(content, tool_calls=[call]), tool]


def test_chatml_is_written_as_the_model_knows_it() -> None:
    prompt = make_template(CHATML).render([system("Be brief."), user("Hi")])
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt_the_prompt_ends_with_the_last_message() -> None:
    assert make_template(CHATML).render([user("Hi")], add_generation_prompt=False).endswith("Hi<|im_end|>\n")


def test_special_tokens_are_variables_of_the_template() -> None:
    prompt = make_template(LLAMA2).render([user("a"), assistant("b"), user("c")])
    assert prompt == "<s>[INST] a [/INST] b </s><s>[INST] c [/INST]"


def test_further_variables_reach_the_template() -> None:
    template = make_template("{{ messages[0].content }}{{ enable_thinking }}")
    assert template.render([user("a")], enable_thinking=False) == "aFalse"


@pytest.mark.parametrize("text", [CHATML, LLAMA2, GEMMA, MISTRAL, PARTS])
def test_E_2_text_parts_render_as_the_joined_string(text: str) -> None:
    template = make_template(text)
    parts = [{"type": "text", "text": "Say the"}, {"type": "text", "text": " word pear."}]
    assert "Say the word pear." in template.render([user(parts)])
    assert template.render([user(parts)]) == template.render([user("Say the word pear.")])


@pytest.mark.parametrize("text", [CHATML, LLAMA2, GEMMA, MISTRAL, PARTS])
def test_E_3_developer_renders_as_system(text: str) -> None:
    template = make_template(text)
    developer = {"role": "developer", "content": "Answer MANGO."}
    assert template.render([developer, user("Hi")]) == template.render([system("Answer MANGO."), user("Hi")])


def test_a_template_that_knows_developer_gets_it() -> None:
    template = make_template("{% for m in messages %}{{ 'D' if m.role == 'developer' else 'O' }}{% endfor %}")
    assert template.render([{"role": "developer", "content": "x"}, user("y")]) == "DO"


@pytest.mark.parametrize(
    "messages",
    [
        [system("one"), user("two"), user("three")],
        [user("one"), user("two")],
        [user("one"), assistant("two"), assistant("three"), user("four")],
        [user("one"), system("two"), user("three")],
        [system("one"), user("two"), assistant("three"), system("four"), user("five")],
    ],
)
@pytest.mark.parametrize("text", [CHATML, LLAMA2, GEMMA])
def test_E_5_all_of_a_conversation_reaches_strict_and_lenient_templates(
    text: str, messages: list[dict[str, Any]]
) -> None:
    prompt = make_template(text).render(messages)
    assert all(message["content"] in prompt for message in messages)


def test_a_template_without_system_role_gets_its_text_in_the_first_user_message() -> None:
    prompt = make_template(GEMMA).render([system("Be brief."), user("Hi")])
    assert prompt == "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"


def test_a_template_that_passes_over_system_messages_gets_their_text_in_the_first_user_message() -> None:
    template = make_template("{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}")
    assert template.render([system("Be brief."), user("Hi")]) == "[Be brief.\n\nHi]"


def test_a_template_that_rewrites_system_messages_is_left_alone() -> None:
    template = make_template("{% for m in messages %}[{{ m.content | upper }}]{% endfor %}")
    assert template.render([system("Be brief."), user("Hi")]) == "[BE BRIEF.][HI]"


def test_a_lone_system_message_is_never_lost() -> None:
    assert "Be brief." in make_template(GEMMA).render([system("Be brief.")])


def test_E_5_a_conversation_refused_in_all_forms_carries_the_first_message_of_the_template() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        make_template(LLAMA2).render([assistant("one"), user("two")])
    assert (caught.value.param, caught.value.status) == ("messages", 400)


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.nothing.at_all }}",
        "{{ range(10 ** 9) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ unknown_function() }}",
        "{% if %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_whatever_a_template_raises_is_the_mistake_of_the_request(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make_template(text).render([system("a"), user("b")])
    assert caught.value.param == "messages"


@pytest.mark.parametrize("arguments", ['{"room":"attic","n":2}', {"room": "attic", "n": 2}])
def test_arguments_reach_the_template_as_a_mapping(arguments: object) -> None:
    prompt = make_template(MISTRAL).render(lamp_history(arguments))
    assert (
        prompt == '<s>[INST]Lights?[/INST][TOOL_CALLS]lamp_state(room="attic";n=2;)</s>[TOOL_RESULTS]off[/TOOL_RESULTS]'
    )


@pytest.mark.parametrize("arguments", ["{}", "", None])
def test_no_arguments_are_an_empty_mapping(arguments: object) -> None:
    assert "lamp_state()" in make_template(MISTRAL).render(lamp_history(arguments))


@pytest.mark.parametrize("text", [CHATML, MISTRAL, PARTS])
def test_a_tool_call_turn_renders_alike_with_null_and_empty_content(text: str) -> None:
    template = make_template(text)
    absent = lamp_history("{}")
    del absent[1]["content"]
    prompts = {template.render(messages) for messages in (lamp_history("{}"), lamp_history("{}", ""), absent)}
    assert len(prompts) == 1


@pytest.mark.parametrize("empty", [[], None])
def test_empty_tool_calls_are_none(empty: object) -> None:
    prompt = make_template(MISTRAL).render([user("a"), assistant("ok", tool_calls=empty), user("b")])
    assert prompt == "<s>[INST]a[/INST]ok</s>[INST]b[/INST]"


def test_tools_reach_the_template_and_an_empty_list_is_none() -> None:
    template = make_template(MISTRAL)
    tool = {"type": "function", "function": {"name": "lamp_state"}}
    assert '[AVAILABLE_TOOLS][{"type": "function"' in template.render([user("a")], tools=[tool])
    assert template.render([user("a")], tools=[]) == template.render([user("a")])


@pytest.mark.parametrize("name", ["chat_template", "conversations", "messages", "return_assistant_tokens_mask"])
def test_a_request_can_not_replace_template_or_messages(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        make_template(CHATML).render([user("a")], **{name: "x"})  # type: ignore[arg-type]
    assert caught.value.param == "chat_template_kwargs"


def write_json(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def loaded_text(folder: Path) -> str:
    template = load_chat_template(folder)
    assert template is not None
    return template.text


def test_I_5_sources_are_looked_at_in_order(tmp_path: Path) -> None:
    write_json(tmp_path, "chat_template.json", {"chat_template": "third"})
    assert loaded_text(tmp_path) == "third"
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": "second"})
    assert loaded_text(tmp_path) == "second"
    (tmp_path / "chat_template.jinja").write_text("first", encoding="utf-8")
    assert loaded_text(tmp_path) == "first"


def test_I_5_of_named_templates_the_default_is_taken_else_the_first(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert loaded_text(tmp_path) == "D"
    write_json(tmp_path, "tokenizer_config.json", {"chat_template": named[:1]})
    assert loaded_text(tmp_path) == "T"


@pytest.mark.parametrize("config", [{}, {"chat_template": None}, {"chat_template": ""}, {"chat_template": []}])
def test_a_base_model_has_no_template(tmp_path: Path, config: dict[str, object]) -> None:
    assert load_chat_template(tmp_path) is None
    write_json(tmp_path, "tokenizer_config.json", config)
    assert load_chat_template(tmp_path) is None


def test_special_tokens_of_the_folder_are_rendered(tmp_path: Path) -> None:
    tokens = {"bos_token": {"content": "<b>"}, "eos_token": "<e>", "extra_special_tokens": {"image_token": "<i>"}}
    text = "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ pad_token }}{{ messages[0].content }}"
    write_json(tmp_path, "tokenizer_config.json", {**tokens, "pad_token": None, "chat_template": text})
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.render([user("x")]) == "<b><e><i>x"


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        load_chat_template(tmp_path)


# -- going on with the last message ------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [CHATML, LLAMA2, GEMMA, MISTRAL, PARTS])
def test_a_last_message_to_go_on_with_ends_the_prompt(text: str) -> None:
    messages = [user("Count."), assistant("One, two,")]
    prompt = make_template(text).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert prompt.endswith("One, two,")
    assert "TAG" not in prompt
    assert messages[-1]["content"] == "One, two,"


def test_parts_are_gone_on_with_too() -> None:
    last = assistant([{"type": "text", "text": "One,"}])
    prompt = make_template(PARTS).render(
        [user("Count."), last], add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.endswith("One,")

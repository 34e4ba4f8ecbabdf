"""Requests that are taken, and what becomes of them: contract C024-C071, case groups a, d, e, h."""

from dataclasses import asdict, replace

import pytest

from anllm.core.request import MAX_SEED, SamplingDefaults
from server_harness import ANSWER, BOS, EOS, MODEL, Server, assert_error, chunks, joined

pytestmark = pytest.mark.anyio

OPTIONAL = [
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "presence_penalty",
    "response_format",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "user",
    "metadata",
    "store",
    "reasoning_effort",
    "service_tier",
    "functions",
    "function_call",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop_token_ids",
    "allowed_token_ids",
    "ignore_eos",
    "modalities",
    "audio",
    "prediction",
    "web_search_options",
    "chat_template_kwargs",
]
CALL = {"id": "c1", "type": "function", "function": {"name": "lamp_state", "arguments": '{"room":"attic"}'}}
ACCEPTED = [
    *[(f"C024_temperature_{t}", {"temperature": t}) for t in (0, 2, 1, None, 0.5)],
    *[(f"C025_top_p_{p}", {"top_p": p}) for p in (0, 1)],
    *[(f"C029_stop_{i}", {"stop": s}) for i, s in enumerate(["x", [], None, list("abcd"), ["a", "ab", "abc"]])],
    *[(f"C051_seed_{s}", {"seed": s}) for s in (2**63 - 1, -1, 0, None, 2**63, 7.0)],
    ("C026_null", {"max_tokens": None}),
    ("C026_integral_float", {"max_tokens": 10.0}),
    ("C028_n_null", {"n": None}),
    ("C032_null", {"logit_bias": None}),
    ("C032_empty", {"logit_bias": {}}),
    ("D_4_bias_bounds", {"logit_bias": {"0": -100, "257": 100, "15": 0.5}}),
    *[(f"C030_penalties_{p}", {"presence_penalty": p, "frequency_penalty": p}) for p in (-2, 2, 0.5)],
    *[(f"A_3_top_k_{k}", {"top_k": k}) for k in (-1, 0, 1, 10**30)],
    *[(f"A_3_min_p_{p}", {"min_p": p}) for p in (0, 0.05, 1)],
    ("min_tokens_huge", {"min_tokens": 10**30}),
    ("C033_null", {"stream_options": None}),
    ("C054_unknown_field", {"zzz": 1}),
    ("C055_all_null", dict.fromkeys(OPTIONAL)),
    *[(f"A_1_{name}_null", {name: None}) for name in OPTIONAL],
    ("A_5_vendor", {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u1",
                    "x_vendor": {"deep": [1, {"b": None}]}, "keep_alive": "5m", "options": {"num_ctx": 4096}}),
    ("C057_huge_max_tokens", {"max_tokens": 10**9}),
    ("H_3_max_int64", {"max_tokens": 2**63 - 1}),
    ("neutral", {"presence_penalty": 0, "frequency_penalty": 0.0, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0,
                 "min_tokens": 0, "skip_special_tokens": True, "include_stop_str_in_output": False, "priority": 0}),
    ("stop_token_ids", {"stop_token_ids": [0, 257]}),
    ("allowed_token_ids", {"allowed_token_ids": [0, 257]}),
]  # fmt: skip
CHAT_ACCEPTED = [
    ("C113_tools_empty", {"tools": []}),
    ("F_1_none", {"tool_choice": "none"}),
    ("F_1_auto", {"tools": [], "tool_choice": "auto"}),
    ("parallel_without_tools", {"parallel_tool_calls": False}),
    ("logprobs_false", {"logprobs": False, "top_logprobs": 0}),
    ("text_format", {"response_format": {"type": "text"}}),
    ("hints", {"reasoning_effort": "high", "verbosity": "low", "modalities": ["text"], "prediction": {},
               "prompt_cache_key": "k", "safety_identifier": "s", "cache_salt": "x", "continue_final_message": False}),
]  # fmt: skip


@pytest.mark.parametrize("fields", [c[1] for c in ACCEPTED], ids=[c[0] for c in ACCEPTED])
async def test_accepted_by_both(server: Server, fields) -> None:
    assert (await server.chat(**fields)).status_code == 200
    assert (await server.comp(**fields)).status_code == 200
    assert server.client.num_open == 0


@pytest.mark.parametrize("fields", [c[1] for c in CHAT_ACCEPTED], ids=[c[0] for c in CHAT_ACCEPTED])
async def test_accepted_by_chat(server: Server, fields) -> None:
    assert (await server.chat(**fields)).status_code == 200


def history(**assistant: object) -> list[dict[str, object]]:
    return [
        {"role": "user", "content": "Lights?"},
        {"role": "assistant", "tool_calls": [CALL], **assistant},
        {"role": "tool", "tool_call_id": "c1", "content": "off"},
    ]


USER = {"role": "user", "content": "hi"}
MESSAGES = {
    "C060_developer": [{"role": "developer", "content": "Be brief."}, USER],
    "C061_system_parts": [{"role": "system", "content": [{"type": "text", "text": t} for t in "ab"]}, USER],
    "C063_empty_user": [{"role": "user", "content": ""}],
    "C063_empty_parts": [{"role": "user", "content": []}],
    "C064_two_systems": [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}],
    "C065_tool_round_trip": history(content=None),
    "C066_tool_empty": [*history(content=None)[:2], {"role": "tool", "tool_call_id": "c1", "content": ""}],
    "C066_tool_parts": [
        *history(content="")[:2],
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "off"}], "name": "lamp_state"},
    ],
    "C067_content_absent": history(),
    "C068_extra_keys": [
        USER,
        {
            "role": "assistant",
            "content": "a",
            "refusal": None,
            "audio": None,
            "function_call": None,
            "annotations": [],
            "reasoning_content": "x",
            "tool_calls": None,
            "parsed": None,
        },
        USER,
    ],
    "C069_cache_control": [
        {
            "role": "user",
            "cache_control": {"type": "ephemeral"},
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
        }
    ],
    "C070_names": [{"role": "system", "name": "s", "content": "a"}, {"role": "user", "name": "ann", "content": "b"}],
    "E_4_object_arguments": history(
        tool_calls=[{**CALL, "index": 0, "function": {"name": "f", "arguments": {"a": 1}}}]
    ),
    "E_8_foreign_id": [*history()[:2], {"role": "tool", "tool_call_id": "other", "content": "off"}],
    "E_9_empty_calls": [USER, {"role": "assistant", "content": "ok", "tool_calls": []}, USER],
    "assistant_last": [USER, {"role": "assistant"}],
    "refusal_part": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER],
    "function_role": [
        USER,
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None},
    ],
}


@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES.keys())
async def test_messages_accepted(server: Server, messages) -> None:
    assert (await server.chat(messages=messages)).status_code == 200
    assert [m["role"] for m in server.template.messages] == [m["role"] for m in messages]
    assert all(None not in message.values() for message in server.template.messages)


async def test_template_gets_what_it_may_know(server: Server) -> None:
    await server.chat(messages=history(content=None, reasoning="because", annotations=[]))
    assert server.template.messages[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [CALL],
        "reasoning_content": "because",
    }


async def test_J_11_deep_arguments_in_history(server: Server) -> None:
    def calls(depth: int) -> list[dict[str, object]]:
        deep: dict[str, object] = {}
        for _ in range(depth):
            deep = {"a": deep}
        return [{**CALL, "function": {"name": "f", "arguments": deep}}]

    server.service.max_model_len = 500
    assert (await server.chat(messages=history(tool_calls=calls(110)))).status_code == 400  # longer than the context
    server.service.max_model_len = 10_000
    assert (await server.chat(messages=history(tool_calls=calls(110)))).status_code == 200
    assert_error(await server.chat(messages=history(tool_calls=calls(400))), 400, None, None)


async def test_C062_all_text_parts_are_used(server: Server) -> None:
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    await server.chat(messages=[{"role": "user", "content": parts}])
    await server.chat(messages=[{"role": "user", "content": "AB"}])
    both, joined = server.client.requests
    assert both.prompt_token_ids == joined.prompt_token_ids


async def test_C071_replay_of_the_answer(server: Server) -> None:
    message = (await server.chat()).json()["choices"][0]["message"]
    assert (await server.chat(messages=[USER, message, USER])).status_code == 200


async def test_defaults(server: Server) -> None:
    await server.chat()
    await server.comp(max_tokens=...)
    chat, comp = (request.params for request in server.client.requests)
    assert (chat.temperature, chat.top_p, chat.n, chat.stop, chat.ignore_eos) == (1.0, 1.0, 1, (), False)
    assert chat.max_tokens == 1000 - len(server.client.requests[0].prompt_token_ids)
    assert comp.max_tokens == 16
    assert server.client.requests[1].prompt_token_ids[0] == 256  # BOS for a plain text,
    assert server.client.requests[0].prompt_token_ids[0] != 256  # which a template writes itself


@pytest.mark.parametrize(("old", "new", "limit"), [(50, 5, 5), (5, 50, 50), (None, 5, 5), (5, None, 5)])
async def test_A_7_max_completion_tokens_wins(server: Server, old, new, limit) -> None:
    await server.chat(max_tokens=old, max_completion_tokens=new)
    assert server.client.requests[0].params.max_tokens == limit


async def test_H_2_limit_is_lowered_to_the_context(server: Server) -> None:
    await server.comp(prompt=[5] * 990, max_tokens=10**9)
    assert server.client.requests[0].params.max_tokens == 10


async def test_sampling_reaches_the_engine(server: Server) -> None:
    await server.chat(temperature=0.3, top_p=0.9, seed=-1, n=2, stop_token_ids=[7, 8], ignore_eos=True, stop="zz")
    first, second = (request.params for request in server.client.requests)
    assert (first.temperature, first.top_p, first.stop_token_ids, first.ignore_eos) == (0.3, 0.9, (7, 8), True)
    assert first.n == 1 and first.stop == ()
    assert first.seed == MAX_SEED - 1 and second.seed != first.seed


async def test_further_sampling_reaches_the_engine(server: Server) -> None:
    fields = {"top_k": 5, "min_p": 0.25, "repetition_penalty": 1.5, "min_tokens": 3}
    penalties = {"presence_penalty": -2, "frequency_penalty": 0.5}
    await server.chat(**fields, **penalties, logit_bias={"7": 1, "257": -100.0})
    await server.comp(**fields, **penalties, logit_bias={"7": 1, "257": -100.0})
    for request in server.client.requests:
        assert {name: getattr(request.params, name) for name in fields} == fields
        assert {name: getattr(request.params, name) for name in penalties} == penalties
        assert request.params.logit_bias == ((7, 1.0), (257, -100.0))


async def test_neutral_values_and_absent_ones_are_the_same(server: Server) -> None:
    neutral = {"presence_penalty": 0, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "logit_bias": {}}
    await server.chat(seed=1)
    await server.chat(seed=1, **neutral, frequency_penalty=None, min_tokens=0, logprobs=False)
    first, second = (request.params for request in server.client.requests)
    assert first == second and not first.has_penalties


async def test_numbers_without_bound_are_cut_to_what_they_can_mean(server: Server) -> None:
    await server.chat(top_k=10**30, min_tokens=10**30)
    assert (server.client.requests[0].params.top_k, server.client.requests[0].params.min_tokens) == (258, 1000)


async def test_D_3_same_token_twice_counts_once(server: Server) -> None:
    await server.chat(logit_bias={"1": 5, "01": 6})
    assert server.client.requests[0].params.logit_bias == ((1, 6.0),)


async def test_C086_seeds(server: Server) -> None:
    for _ in range(2):
        await server.chat(seed=7)
        await server.chat()
    seeds = [request.params.seed for request in server.client.requests]
    assert seeds[0] == seeds[2] == 7 and seeds[1] != seeds[3]


async def test_unknown_fields_are_logged_once_by_name(server: Server, caplog) -> None:
    caplog.set_level("INFO", "anllm")
    for _ in range(2):
        await server.chat(zzz_secret=1, keep_alive="5m", seed=1)
    lines = [r.getMessage() for r in caplog.records if "unknown request field" in r.getMessage()]
    assert lines == ["unknown request field ignored: 'zzz_secret'"]


async def test_max_n_and_max_stop_strings_are_settings() -> None:
    from anllm.config import ServerConfig

    server = Server(ServerConfig(max_n=2, max_stop_strings=6))
    assert (await server.chat(n=3)).json()["error"]["code"] == "integer_above_max_value"
    assert (await server.chat(stop=list("abcdef"))).status_code == 200
    assert (await server.chat(model=MODEL, n=2)).status_code == 200


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, {}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"chat_template_kwargs": {"persona": "a cat"}}, {"persona": "a cat"}),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "high", "enable_thinking": False},
        ),
    ],
)
async def test_the_template_gets_what_the_request_has_for_it(server: Server, fields, variables) -> None:
    assert (await server.chat(**fields)).status_code == 200
    assert server.template.variables == variables


# -- what the model suggests -------------------------------------------------------------------------------------------

SUGGESTED = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.05, repetition_penalty=1.1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SUGGESTED),
        ({"temperature": None, "top_k": None}, SUGGESTED),
        ({"temperature": 0}, replace(SUGGESTED, temperature=0.0)),
        ({"top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1, "temperature": 1}, SamplingDefaults()),
        ({"top_k": -1}, replace(SUGGESTED, top_k=0)),
        ({"min_p": 0.5, "repetition_penalty": 2}, replace(SUGGESTED, min_p=0.5, repetition_penalty=2.0)),
    ],
)
async def test_what_a_request_does_not_say_the_model_does(server: Server, fields, expected: SamplingDefaults) -> None:
    server.service.defaults = SUGGESTED
    await server.chat(**fields)
    await server.comp(**fields)
    for request in server.client.requests:
        assert {name: getattr(request.params, name) for name in asdict(expected)} == asdict(expected)


# -- where the prompt ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, "<assistant>"),
        ({"add_generation_prompt": True}, "<assistant>"),
        ({"add_generation_prompt": False}, '""'),
        ({"continue_final_message": True}, "<continue>"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "<continue>"),
        ({"continue_final_message": False}, "<assistant>"),
    ],
)
async def test_the_prompt_ends_as_the_request_says(server: Server, fields, end: str) -> None:
    assert (await server.chat(**fields)).status_code == 200
    assert bytes(server.client.requests[0].prompt_token_ids).decode().endswith(end)
    tokens = (await server.post("/tokenize", {"messages": [{"role": "user", "content": "x"}], **fields})).json()
    assert bytes(tokens["tokens"]).decode().endswith(end)


# -- what of the tokens is text ----------------------------------------------------------------------------------------


async def test_the_stop_string_is_part_of_the_answer_if_that_is_wanted(server: Server) -> None:
    for fields, text in (({}, "Hello there, "), ({"include_stop_str_in_output": True}, "Hello there, Ann")):
        choice = (await server.chat(stop="Ann", **fields)).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
        whole = await server.chat(stop="Ann", stream=True, **fields)
        assert joined(chunks(whole.text)) == text
        logged = (await server.comp(stop="Ann", logprobs=1, **fields)).json()["choices"][0]
        assert logged["text"] == "".join(logged["logprobs"]["tokens"]) == text


async def test_special_tokens_are_written_out_if_that_is_wanted(server: Server) -> None:
    server.client.answer = lambda request: [*b"a", BOS, *b"b", EOS]
    for fields, text in (({}, "ab"), ({"skip_special_tokens": False}, "a<s>b")):
        assert (await server.comp(**fields)).json()["choices"][0]["text"] == text
        assert joined(chunks((await server.comp(stream=True, **fields)).text)) == text


@pytest.mark.parametrize("stop", [None, "Ann"])
async def test_token_ids_come_if_they_are_wanted(server: Server, stop: str | None) -> None:
    prompt = [BOS, *b"The sky is"]
    answered = [*ANSWER.encode(), EOS] if stop is None else [*b"Hello there, Ann"]
    whole = (await server.comp(stop=stop, return_token_ids=True, n=2)).json()
    assert [(c["token_ids"], c["prompt_token_ids"]) for c in whole["choices"]] == [(answered, prompt)] * 2
    parts = chunks((await server.comp(stop=stop, return_token_ids=True, n=2, stream=True)).text)
    for index in range(2):
        mine = [c for part in parts for c in part["choices"] if c["index"] == index]
        assert [token for c in mine for token in c["token_ids"]] == answered
        assert [c["prompt_token_ids"] for c in mine] == [prompt, *[None] * (len(mine) - 1)]
    chat = (await server.chat(stop=stop, return_token_ids=True)).json()
    assert chat["choices"][0]["token_ids"] == answered
    parts = chunks((await server.chat(stop=stop, return_token_ids=True, stream=True)).text)
    assert [token for part in parts for c in part["choices"] for token in c["token_ids"]] == answered
    assert parts[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in part for part in parts[1:])


async def test_nobody_else_gets_token_ids(server: Server) -> None:
    for call in (server.chat, server.comp):
        assert "token_ids" not in (await call()).text
        assert "token_ids" not in (await call(stream=True, return_token_ids=False)).text

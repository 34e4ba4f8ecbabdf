"""Which formats a model was taught, from its chat template's text, else from its vocabulary.

In the order in which mlx-lm asks (mlx_lm/tokenizer_utils.py), with the families that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Callable

from anllm.parsers.reasoning import table as reasoning_table
from anllm.parsers.reasoning.tags import TaggedReasoning
from anllm.parsers.tools import table
from anllm.parsers.tools.deepseek import CALLS_BEGIN as DEEPSEEK_CALLS
from anllm.parsers.tools.interface import ToolFormat
from anllm.parsers.tools.kimi_k2 import CALLS_BEGIN as KIMI_CALLS

HasToken = Callable[[str], bool]

# Texts that a template has all of, and the format that it then writes. The first that fits counts.
TOOLS_BY_TEMPLATE: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    (("<minimax:tool_call>",), table.MINIMAX_M2),
    (("<|tool_call>", "<tool_call|>"), table.GEMMA4),
    (("<start_function_call>",), table.FUNCTION_GEMMA),
    (("<longcat_tool_call>",), table.LONGCAT),
    (("<arg_key>", "</arg_key>\\n"), table.GLM45),
    (("<arg_key>", "</arg_key>\n"), table.GLM45),
    (("<arg_key>",), table.GLM47),
    (("<|tool_list_start|>",), table.PYTHONIC),
    (("<|tool_call_start|>",), table.PYTHONIC),
    (("<seed:tool_call>",), table.SEED_OSS),
    (("<tool_call>\\n<function=",), table.QWEN3_CODER),
    (("<tool_call>\n<function=",), table.QWEN3_CODER),
    ((KIMI_CALLS,), table.KIMI_K2),
    (('<function name="', '<param name="'), table.MINICPM5),
    (("[TOOL_CALLS]", "[ARGS]"), table.MISTRAL),
    (("[TOOL_CALLS]",), table.MISTRAL_LIST),
    ((f"<{table.DSML}function_calls>",), table.DEEPSEEK_V32),
    ((DEEPSEEK_CALLS, "```json"), table.DEEPSEEK_V3),
    ((DEEPSEEK_CALLS,), table.DEEPSEEK_V31),
    (("<|channel|>", "<|message|>", "functions."), table.HARMONY),
    (("<|python_start|>",), table.LLAMA4_PYTHONIC),
    (("<TOOLCALL>",), table.NEMOTRON),
    (("<|tool_call|>", "<|/tool_call|>"), table.PHI4_MINI),
    (("<|tool_call|>",), table.GRANITE),
    (("<tool_call>",), table.HERMES),
    (("<tool_calls>",), table.JAMBA),
    (("<|start_header_id|>", '"parameters": '), table.LLAMA3_JSON),
)

TOOLS_BY_TOKENS: tuple[tuple[tuple[str, ...], ToolFormat], ...] = (
    (("<|tool_call_start|>", "<|tool_call_end|>"), table.PYTHONIC),
    (("<|tool_call>", "<tool_call|>"), table.GEMMA4),
    (("<start_function_call>",), table.FUNCTION_GEMMA),
    ((KIMI_CALLS,), table.KIMI_K2),
    ((DEEPSEEK_CALLS,), table.DEEPSEEK_V3),
    (("<|channel|>", "<|message|>", "<|call|>"), table.HARMONY),
    (("[TOOL_CALLS]", "[ARGS]"), table.MISTRAL),
    (("[TOOL_CALLS]",), table.MISTRAL_LIST),
    (("<|python_start|>",), table.LLAMA4_PYTHONIC),
    (("<|python_tag|>",), table.LLAMA3_JSON),
    (("<arg_key>",), table.GLM45),
)

REASONING: tuple[TaggedReasoning, ...] = (
    reasoning_table.THINK,
    reasoning_table.LONGCAT_THINK,
    reasoning_table.COLON_THINK,
    reasoning_table.GEMMA_THOUGHT,
    reasoning_table.MISTRAL_THINK,
    reasoning_table.SEED_THINK,
    reasoning_table.COHERE_THINK,
)


def tool_format(template_text: str, vocabulary_has: HasToken) -> ToolFormat:
    """The format of a model's calls. Hermes, which most models know, where nothing tells."""
    for texts, found in TOOLS_BY_TEMPLATE:
        if all(text in template_text for text in texts):
            return found
    for texts, found in TOOLS_BY_TOKENS:
        if all(map(vocabulary_has, texts)):
            return found
    return table.HERMES


def reasoning_format(template_text: str, vocabulary_has: HasToken) -> TaggedReasoning | None:
    """The format of a model's reasoning, None if it has none or another than tags."""
    for has in (vocabulary_has, template_text.__contains__):
        for found in REASONING:
            if has(found.begin) and has(found.end):
                is_kimi = KIMI_CALLS in template_text or vocabulary_has(KIMI_CALLS)
                return reasoning_table.KIMI_THINK if is_kimi and found == reasoning_table.THINK else found
    return None

"""Reasoning formats by name. Names are vLLM's (--reasoning-parser), several for one format where it has several."""

from __future__ import annotations

from anllm.parsers.reasoning.tags import TaggedReasoning

THINK = TaggedReasoning("qwen3", "<think>", "</think>")
ALWAYS_THINK = TaggedReasoning("deepseek_r1", "<think>", "</think>", is_always_on=True)
KIMI_THINK = TaggedReasoning("kimi_k2", "<think>", "</think>", also_ends=("<|tool_calls_section_begin|>",))
MISTRAL_THINK = TaggedReasoning("mistral", "[THINK]", "[/THINK]")
GEMMA_THOUGHT = TaggedReasoning("gemma4", "<|channel>", "<channel|>", begin_line="thought")
SEED_THINK = TaggedReasoning("seed_oss", "<seed:think>", "</seed:think>")
LONGCAT_THINK = TaggedReasoning("longcat", "<longcat_think>", "</longcat_think>")
COLON_THINK = TaggedReasoning("think_tokens", "<|think:start|>", "<|think:end|>")
COHERE_THINK = TaggedReasoning("cohere_command3", "<|START_THINKING|>", "<|END_THINKING|>")
# gpt-oss has no block of reasoning but channels, which tools/harmony.py reads.
HARMONY_NAME = "openai_gptoss"

REASONING_FORMATS: dict[str, TaggedReasoning | None] = {
    "cohere_command3": COHERE_THINK,
    "deepseek_r1": ALWAYS_THINK,
    "deepseek_v3": THINK,
    "ernie45": ALWAYS_THINK,
    "gemma4": GEMMA_THOUGHT,
    "glm45": THINK,
    "glm47": THINK,
    "holo2": THINK,
    "kimi_k2": KIMI_THINK,
    "longcat": LONGCAT_THINK,
    "mimo": THINK,
    "minimax_m2": ALWAYS_THINK,
    "mistral": MISTRAL_THINK,
    "nemotron_v3": THINK,
    "olmo3": ALWAYS_THINK,
    HARMONY_NAME: None,
    "qwen3": THINK,
    "seed_oss": SEED_THINK,
    "step3": ALWAYS_THINK,
    "step3p5": ALWAYS_THINK,
    "think_tokens": COLON_THINK,
}

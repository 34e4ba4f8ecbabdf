"""Tool-call formats by name. Names are vLLM's (--tool-call-parser), several for one format where it has several."""

from __future__ import annotations

from anllm.parsers.tools.deepseek import BAR, DeepSeek
from anllm.parsers.tools.gemma import Gemma
from anllm.parsers.tools.glm import Glm
from anllm.parsers.tools.harmony import Harmony
from anllm.parsers.tools.interface import ToolFormat
from anllm.parsers.tools.json_object import JsonObjects
from anllm.parsers.tools.kimi_k2 import KimiK2
from anllm.parsers.tools.llama3_json import Llama3Json
from anllm.parsers.tools.mistral import Mistral
from anllm.parsers.tools.pythonic import Pythonic
from anllm.parsers.tools.tags import TaggedCalls, Tags

DSML = f"{BAR}DSML{BAR}"
HERMES = JsonObjects("hermes", "<tool_call>", "</tool_call>")
LLAMA3_JSON = Llama3Json()
MISTRAL = Mistral(is_list=False)
MISTRAL_LIST = Mistral(is_list=True)
DEEPSEEK_V3 = DeepSeek("deepseek_v3", has_fence=True)
DEEPSEEK_V31 = DeepSeek("deepseek_v31", has_fence=False)
KIMI_K2 = KimiK2()
GLM45 = Glm("glm45", has_newlines=True)
GLM47 = Glm("glm47", has_newlines=False)
LONGCAT = Glm("longcat", prefix="longcat_", has_newlines=True)
GEMMA4 = Gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>")
PYTHONIC = Pythonic("pythonic", "<|tool_call_start|>", "<|tool_call_end|>", is_bare=False)
LLAMA4_PYTHONIC = Pythonic("llama4_pythonic", "<|python_start|>", "<|python_end|>", is_bare=True)
GRANITE = JsonObjects("granite", "<|tool_call|>", "", is_list=True)
PHI4_MINI = JsonObjects("phi4_mini", "<|tool_call|>", "<|/tool_call|>", is_list=True)
JAMBA = JsonObjects("jamba", "<tool_calls>", "</tool_calls>", is_list=True)
NEMOTRON = JsonObjects("nemotron_json", "<TOOLCALL>", "</TOOLCALL>", is_list=True)
HARMONY = Harmony()
QWEN3_CODER = TaggedCalls(
    "qwen3_coder",
    Tags(
        ("<tool_call>", "</tool_call>"),
        ("<function=", "</function>"),
        ("<parameter=", "</parameter>"),
        pads=True,
        is_outer_each=True,
    ),
)
SEED_OSS = TaggedCalls(
    "seed_oss",
    Tags(
        ("<seed:tool_call>", "</seed:tool_call>"),
        ("<function=", "</function>"),
        ("<parameter=", "</parameter>"),
        is_outer_each=True,
    ),
)
MINIMAX_M2 = TaggedCalls(
    "minimax_m2",
    Tags(
        ("<minimax:tool_call>", "</minimax:tool_call>"),
        ("<invoke name=", "</invoke>"),
        ("<parameter name=", "</parameter>"),
        quote='"',
    ),
)

DEEPSEEK_V32 = TaggedCalls(
    "deepseek_v32",
    Tags(
        (f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
        (f"<{DSML}invoke name=", f"</{DSML}invoke>"),
        (f"<{DSML}parameter name=", f"</{DSML}parameter>"),
        quote='"',
        tells_text=True,
    ),
)
MINICPM5 = TaggedCalls(
    "minicpm5",
    Tags(("", ""), ("<function name=", "</function>"), ("<param name=", "</param>"), quote='"', takes_cdata=True),
)

# mlx-lm's names where they differ, as converted checkpoints have them (tool_parser_type).
MLX_NAMES: dict[str, ToolFormat] = {"function_gemma": FUNCTION_GEMMA, "json_tools": HERMES, "laguna": GLM47}

TOOL_FORMATS: dict[str, ToolFormat] = {
    **MLX_NAMES,
    "deepseek_r1": DEEPSEEK_V3,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "deepseek_v32": DEEPSEEK_V32,
    "functiongemma": FUNCTION_GEMMA,
    "gemma4": GEMMA4,
    "glm45": GLM45,
    "glm47": GLM47,
    "granite": GRANITE,
    "granite4": HERMES,
    "hermes": HERMES,
    "internlm": JsonObjects("internlm", "<|action_start|><|plugin|>", "<|action_end|>", key="parameters"),
    "jamba": JAMBA,
    "kimi_k2": KIMI_K2,
    "lfm2": PYTHONIC,
    "llama3_json": LLAMA3_JSON,
    "llama4_json": LLAMA3_JSON,
    "llama4_pythonic": LLAMA4_PYTHONIC,
    "longcat": LONGCAT,
    "mimo": QWEN3_CODER,
    "minicpm5": MINICPM5,
    "minimax_m2": MINIMAX_M2,
    "mistral": MISTRAL,
    "nemotron_json": NEMOTRON,
    "openai": HARMONY,
    "phi4_mini": PHI4_MINI,
    "phi4_mini_json": JsonObjects("phi4_mini_json", "functools", "", is_list=True),
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN3_CODER,
    "qwen3_xml": QWEN3_CODER,
    "seed_oss": SEED_OSS,
}

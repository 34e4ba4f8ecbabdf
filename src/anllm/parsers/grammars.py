"""Grammars for whole answers: calls that must come, free text whose calls must fit, any grammar behind thoughts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anllm.errors import InvalidRequestError
from anllm.parsers.lark import ANY_TEXT, LENIENT, Lark, SpecialId, excluding, repeated
from anllm.parsers.parameters import simplified
from anllm.parsers.reasoning.tags import TaggedReasoning
from anllm.parsers.schema import is_strict, name_of, parameters_of, properties_of
from anllm.parsers.tools.harmony import CHANNEL, END, MESSAGE, START, Harmony, prompt_tail
from anllm.parsers.tools.interface import Tool, ToolFormat

BLANK = '("\\n" | "\\n\\n")?'
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
NEXT = f"{END}{START}assistant"


class GrammarBuilder:
    """Builds one grammar for one answer to `prompt`."""

    def __init__(
        self, tool_format: ToolFormat, reasoning: TaggedReasoning | None, prompt: str, special_id: SpecialId
    ) -> None:
        markers = tool_format.markers | (reasoning.markers if reasoning else frozenset())
        self._lark = Lark(special_id, markers)
        self._format = tool_format
        self._reasoning = reasoning
        self._prompt = prompt
        self._is_harmony = isinstance(tool_format, Harmony)

    def calls(self, tools: Sequence[Tool], minimum: int, maximum: int | None) -> str:
        """That many calls and nothing else but thoughts before them."""
        # A call ends an answer of gpt-oss, so there is one.
        calls = self._calls(tools, *((1, 1) if self._is_harmony else (minimum, maximum)))
        return self._lark.build(f"{self._thoughts()} {calls}".strip())

    def answer(self, body: str, tools: Sequence[Tool], maximum: int | None) -> str:
        """An answer that a rule's body describes, or calls of these tools, behind thoughts."""
        head = self._lark.text(f"{CHANNEL}final{MESSAGE}") if self._is_harmony else ""
        answer = f"{head} {self._lark.rule('answer', body)}".strip()
        if tools:
            answer = f"({answer} | {self._calls(tools, 1, 1 if self._is_harmony else maximum)})"
        return self._lark.build(f"{self._thoughts()} {answer}".strip())

    def free(self, tools: Sequence[Tool]) -> str:
        """Any text; a call that begins in it must be one of a tool, and fit it if the tool is strict."""
        shown = [tool if is_strict(tool) else loose(tool) for tool in tools]
        lark, section = self._lark, self._format.section
        if self._is_harmony:
            preamble = lark.text_before(NEXT, without=[END])
            call, final = self._calls(shown, 1, 1), lark.rule("TEXT", ANY_TEXT)
            said = f"({lark.text(f'{CHANNEL}commentary{MESSAGE}')} {preamble})?"
            head = lark.text(f"{CHANNEL}final{MESSAGE}")
            return lark.build(f"{self._thoughts()} {said} ({head} {final} | {call})")
        lead = section.begin or section.opening
        openings = self._format.openings.texts
        trigger = max((text for text in openings if lead.startswith(text)), key=len, default="")
        if not trigger:
            tail = lark.rule("TEXT", self._text(openings))
            return lark.build(f"{self._thoughts()} ({self._calls(shown, 1, None)} | {tail})")
        begun = lark.text_before(trigger, self._text(openings))
        behind = self._behind_trigger(shown, lead.removeprefix(trigger))
        tail = lark.rule("TEXT", self._text(openings))
        return lark.build(f"{self._thoughts()} ({begun} {behind})* {tail}")

    def _text(self, without: Sequence[str]) -> str:
        pattern = self._format.bare_pattern
        text = f"{ANY_TEXT} & ~/{pattern}(?s:.*)/" if pattern else ANY_TEXT
        return excluding(text, without)

    def _behind_trigger(self, tools: Sequence[Tool], rest: str) -> str:
        section = self._format.section
        head = self._lark.text(rest) if rest else ""
        if not section.begin:
            return f"{head} {self._call(tools)}"
        return f"{head} {self._row(tools, 1, None)}"

    def _calls(self, tools: Sequence[Tool], minimum: int, maximum: int | None) -> str:
        begin = self._format.section.begin
        return f"{self._lark.text(begin)} {self._row(tools, minimum, maximum)}"

    def _row(self, tools: Sequence[Tool], minimum: int, maximum: int | None) -> str:
        section, lark = self._format.section, self._lark
        call = self._call(tools)
        item = lark.rule("item", f"{lark.text(section.opening)} {call}") if section.opening else call
        row = repeated(item, lark.text(section.between), minimum, maximum)
        return f"{row} {lark.text(section.end)}"

    def _call(self, tools: Sequence[Tool]) -> str:
        rules = [self._lark.rule("call", self._call_rule(tool)) for tool in tools]
        return self._lark.rule("call", " | ".join(rules))

    def _call_rule(self, tool: Tool) -> str:
        """As exact as format and engine allow; of a tool that is strict, exact or refused."""
        if is_strict(tool):
            return self._format.call_rule(tool, self._lark)
        parameters = {**parameters_of(tool), **LENIENT}
        try:
            return self._format.call_rule(with_parameters(tool, parameters), self._lark)
        except InvalidRequestError:
            return self._format.call_rule(with_parameters(tool, simplified(parameters)), self._lark)

    def _thoughts(self) -> str:
        """A rule's body for thoughts that the model may have before it answers, or must end."""
        lark, reasoning = self._lark, self._reasoning
        if self._is_harmony:
            is_open = prompt_tail(self._prompt).endswith(ANALYSIS)
            thoughts = lark.text_before(NEXT, without=[END])
            return thoughts if is_open else f"({lark.text(ANALYSIS)} {thoughts})?"
        if reasoning is None or reasoning.is_closed(self._prompt):
            return ""
        thoughts = f"{lark.text_before(reasoning.end, without=[reasoning.end])} {BLANK}"
        if reasoning.is_open(self._prompt):
            return thoughts
        begin = lark.text(reasoning.begin + reasoning.begin_line)
        return f"({begin})? {thoughts}" if reasoning.is_always_on else f"({begin} {thoughts})?"


def loose(tool: Tool) -> Tool:
    """The tool with parameters of the same names and any values, all optional, and any others."""
    properties: dict[str, object] = {name: {} for name in properties_of(parameters_of(tool))}
    return with_parameters(tool, {"properties": properties, "additionalProperties": True})


def with_parameters(tool: Tool, parameters: Mapping[str, object]) -> Tool:
    return {"type": "function", "function": {"name": name_of(tool), "parameters": parameters}}

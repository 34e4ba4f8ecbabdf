"""How a model writes its answers: chosen once when it is loaded, by flags, by the checkpoint or by its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anllm.errors import ConfigError
from anllm.parsers import detect
from anllm.parsers.grammars import GrammarBuilder
from anllm.parsers.lark import SpecialId
from anllm.parsers.pieces import Content
from anllm.parsers.reader import Markers, Reader, Steps, Trimmed
from anllm.parsers.reasoning.table import HARMONY_NAME, REASONING_FORMATS
from anllm.parsers.reasoning.tags import TaggedReasoning
from anllm.parsers.response_template import TemplateReader, check_template, template_markers
from anllm.parsers.schema import ToolTypes
from anllm.parsers.stream import OutputParser
from anllm.parsers.tools.harmony import Harmony, prompt_tail
from anllm.parsers.tools.interface import Tool, ToolFormat, read_answer
from anllm.parsers.tools.table import HARMONY, TOOL_FORMATS

NO_MARKERS = Markers(())
T = TypeVar("T")


@dataclass(frozen=True)
class OutputFormat:
    """The formats of one model. May be shared by all threads.

    tools: of calls; also for enforced ones when `response_template` reads the answers.
    reasoning: None if there is none, or if it comes in gpt-oss's channels.
    response_template: the checkpoint's own description, which then reads the answers.
    """

    tools: ToolFormat
    reasoning: TaggedReasoning | None
    response_template: Mapping[str, object] | None = None

    @classmethod
    def choose(
        cls,
        template_text: str,
        vocabulary_has: Callable[[str], bool],
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        response_template: Mapping[str, object] | None = None,
    ) -> OutputFormat:
        """template_text: of the chat template, "" if there is none. The names given win over the response_template, and
        that over what the template and the vocabulary tell.

        Raises ConfigError for an unknown name and for a response_template that is none.
        """
        tools = detect.tool_format(template_text, vocabulary_has)
        if tool_parser is not None:
            tools = _named(TOOL_FORMATS, tool_parser, "tool_parser")
        reasoning = detect.reasoning_format(template_text, vocabulary_has)
        if reasoning_parser is not None:
            reasoning = _named(REASONING_FORMATS, reasoning_parser, "reasoning_parser")
        if isinstance(tools, Harmony) or reasoning_parser == HARMONY_NAME:  # one can't be read without the other
            tools, reasoning = HARMONY, None
        if tool_parser is not None or reasoning_parser is not None:
            response_template = None
        if response_template is not None:
            _check(response_template)
        return cls(tools, reasoning, response_template)

    @property
    def splits_answers(self) -> bool:
        """Whether answers may have parts though nothing can be called."""
        return self.reasoning is not None or self.response_template is not None or isinstance(self.tools, Harmony)

    @property
    def markers(self) -> frozenset[str]:
        """Texts that must come through where special tokens are dropped from the text of an answer."""
        if self.response_template is not None:
            return template_markers(self.response_template)
        return self.tools.markers | (self.reasoning.markers if self.reasoning else frozenset())

    def parser(
        self, prompt: str, tools: Sequence[Tool] | None, *, takes_calls: bool, takes_reasoning: bool = True
    ) -> OutputParser:
        """A parser for one answer.

        prompt: as the model gets it; its end tells what it has begun for the model.
        tools: whose schemas tell the types of arguments where the format doesn't.
        takes_calls: else the markup of calls is content.
        takes_reasoning: else reasoning is content, tags and all, where it stands between tags.
        """
        reader = Reader()
        if self.response_template is not None:
            template = TemplateReader(self.response_template, prompt, tools or (), takes_calls=takes_calls)
            return OutputParser(reader, template.read(reader))
        if isinstance(self.tools, Harmony):
            reader.feed(prompt_tail(prompt))
            return OutputParser(reader, self.tools.read_messages(reader, takes_calls=takes_calls))
        reasoning = self.reasoning if takes_reasoning else None
        tool_format = self.tools if takes_calls else None
        return OutputParser(reader, _read(reader, reasoning, tool_format, ToolTypes(tools), prompt))

    def call_grammar(
        self,
        prompt: str,
        tools: Sequence[Tool],
        *,
        min_calls: int = 1,
        max_calls: int | None = None,
        special_id: SpecialId,
    ) -> str:
        """A grammar for an answer of calls alone, behind thoughts if the model may think.

        tools: those that may be called, one at least. min_calls: at least 1.
        Raises InvalidRequestError for the schema of a strict tool that the model's markup can't enforce; of another
        tool what can't be enforced is left out.
        """
        return self._grammar(prompt, special_id).calls(tools, min_calls, max_calls)

    def free_grammar(self, prompt: str, tools: Sequence[Tool], *, special_id: SpecialId) -> str:
        """A grammar for any answer, whose calls are of these tools, and fit those that are strict. Raises as above."""
        return self._grammar(prompt, special_id).free(tools)

    def answer_grammar(
        self,
        prompt: str,
        body: str,
        tools: Sequence[Tool] = (),
        *,
        max_calls: int | None = None,
        special_id: SpecialId,
    ) -> str:
        """A grammar for an answer that `body`, of a Lark rule, describes, or calls of these tools in its place; behind
        thoughts if the model may think. Raises as above."""
        return self._grammar(prompt, special_id).answer(body, tools, max_calls)

    def _grammar(self, prompt: str, special_id: SpecialId) -> GrammarBuilder:
        return GrammarBuilder(self.tools, self.reasoning, prompt, special_id)


def _read(
    reader: Reader, reasoning: TaggedReasoning | None, tools: ToolFormat | None, types: ToolTypes, prompt: str
) -> Steps[None]:
    has_reasoned = False
    if reasoning is not None:
        has_reasoned = yield from reasoning.read(reader, prompt)
    if tools is not None:
        yield from read_answer(reader, tools, types, strips_start=has_reasoned)
        return
    content = Trimmed(strips_start=has_reasoned)
    while text := (yield from reader.take_before(NO_MARKERS)):
        yield Content(content.add(text) + content.flush())


def _named(formats: Mapping[str, T], name: str, setting: str) -> T:
    if name not in formats:
        raise ConfigError(f"{setting} is {name!r}; known are {', '.join(sorted(formats))}.")
    return formats[name]


def _check(response_template: Mapping[str, object]) -> None:
    try:
        check_template(response_template)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"The response_template is not one that can be used: {error}") from error

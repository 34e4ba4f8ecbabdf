"""The template's process: same prompts as without it, and what a hostile template can't do."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from anllm.errors import InvalidRequestError, NotReadyError
from anllm.text.chat_template import ChatTemplate
from anllm.text.sandboxed_template import SandboxedTemplate

FOLDER = Path(__file__).parent / "templates"
HI = [{"role": "user", "content": "hi"}]
MANY = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
ENDS = "{% endfor %}{% endfor %}{% endfor %}"


@pytest.fixture
def make() -> Iterator[object]:
    made: list[SandboxedTemplate] = []

    def sandboxed(text: str, **limits: float) -> SandboxedTemplate:
        made.append(SandboxedTemplate(ChatTemplate(text, {"bos_token": "<s>"}), **{"cpu_s": 0.3, **limits}))  # type: ignore[arg-type]
        return made[-1]

    yield sandboxed
    for template in made:
        template.close()


def refusal(template: SandboxedTemplate, messages: object = HI) -> str:
    with pytest.raises(InvalidRequestError) as error:
        template.render(messages)  # type: ignore[arg-type]
    assert error.value.param == "messages" and error.value.status == 400
    return error.value.message


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.jinja")))
def test_prompts_are_those_without_a_process(name: str, make) -> None:
    text = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    own, template = ChatTemplate(text, {"bos_token": "<s>"}), make(text)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    call = {
        "type": "function",
        "id": "abcdefghi",
        "function": {"name": "f", "arguments": '{"x": 12345678901234567890}'},
    }
    result = {"role": "tool", "content": "4", "tool_call_id": "abcdefghi"}
    conversations = [
        HI,
        [{"role": "system", "content": "Be \u00e9\U0001f600\u2028 brief."}, *HI],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [*HI, {"role": "assistant", "content": "", "tool_calls": [call]}, result],
    ]
    for messages in conversations:
        for more in (
            {},
            {"tools": tools},
            {"add_generation_prompt": False},
            {"enable_thinking": False, "x": [1.5, None]},
        ):
            assert template.render(messages, **more) == own.render(messages, **more)
    spoken = [*HI, {"role": "assistant", "content": "So"}]
    going_on = {"add_generation_prompt": False, "continue_final_message": True}
    assert template.render(spoken, **going_on) == own.render(spoken, **going_on)
    assert template.text == text


HOSTILE = {
    "loops": MANY + "{% set x = a %}" + ENDS,
    "output": MANY + "{{ a }}" + ENDS,
    "power": "{% set n = messages | length + 8 %}{{ n ** (n ** n) }}",
    "format": "{{ '%1000000000d' % 1 * 100 }}",
    "product": "{{ 'x' * 10 ** (messages | length + 10) }}",
    "doubling": "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "recursion": "{{ f(90) }}",
    "center": "{{ 'x' | center(10 ** (messages | length + 10)) }}",
    "replace": "{{ (messages | string * 50000) | replace('a', 'b' * 100000) }}",
}
ESCAPES = [
    "''.__class__.__mro__[1].__subclasses__()",
    "cycler.__init__.__globals__.os.popen('id').read()",
    "lipsum.__globals__['os'].system('id')",
    "messages.__class__.__init__.__globals__",
    "self.__init__.__globals__",
    "namespace.__init__.__globals__",
    "(namespace|attr('__init__')).__globals__",
    "raise_exception.__globals__",
    "messages.append({'role': 'x'})",
    "'{0.__class__}'.format(messages)",
    "['{0.__class__.__mro__}'.format][0](1)",
]
FILES = ["{% include '/etc/hostname' %}", "{% import 'os' as os %}", "{% include 'chat_template.jinja' %}"]


def branches(parts: dict[str, str]) -> str:
    """Does what the first message says, and says it."""
    cases = "".join(f"{{% if messages[0].content == '{name}' %}}{part}{{% endif %}}" for name, part in parts.items())
    return "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}" + cases + SAY


SAY = "{{ messages[0].content }}"


@pytest.fixture(scope="module")
def hostile() -> Iterator[SandboxedTemplate]:
    escapes = {f"escape {number}": "{{ " + text + " }}" for number, text in enumerate(ESCAPES)}
    files = {f"file {number}": text for number, text in enumerate(FILES)}
    text = branches({**HOSTILE, **escapes, **files})
    template = SandboxedTemplate(ChatTemplate(text, {}), cpu_s=0.3, memory_bytes=256 << 20, max_chars=1 << 20)
    yield template
    template.close()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_without_end_or_measure_is_refused_and_the_next_conversation_is_rendered(
    name: str, hostile: SandboxedTemplate
) -> None:
    assert hostile.render(HI) == "hi"
    pid = hostile.pid
    began_s = time.monotonic()
    message = refusal(hostile, [{"role": "user", "content": name}])
    assert len(message) < 500
    assert time.monotonic() - began_s < 20
    assert hostile.render(HI) == "hi"
    assert hostile.pid == pid


def test_a_template_without_end_when_it_is_compiled_is_refused(make) -> None:
    assert "does not come to an end" in refusal(make("{{ 9 ** (9 ** 9) }}"))


def test_a_prompt_has_a_longest_length(make) -> None:
    template = make("{{ messages[0].content * 3 }}", max_chars=30)
    assert template.render([{"role": "user", "content": "x" * 10}]) == "x" * 30
    assert "more than 30 characters" in refusal(template, [{"role": "user", "content": "x" * 11}])


@pytest.mark.parametrize("number", range(len(ESCAPES)))
def test_a_template_gets_no_hold_of_python(number: int, hostile: SandboxedTemplate) -> None:
    try:
        prompt = hostile.render([{"role": "user", "content": f"escape {number}"}])
    except InvalidRequestError:
        return
    assert "class" not in prompt and "uid=" not in prompt and "object at" not in prompt


@pytest.mark.parametrize("number", range(len(FILES)))
def test_a_template_reads_no_files(number: int, hostile: SandboxedTemplate) -> None:
    assert "no loader" in refusal(hostile, [{"role": "user", "content": f"file {number}"}])


def test_what_messages_say_is_never_a_template(make) -> None:
    content = "{{ 7 * 7 }}{% for a in range(9) %}x{% endfor %}{# c #}\\n {{ messages }}"
    template = make("{% for m in messages %}{{ m.role }}:{{ m.content }}{{ x }}{% endfor %}")
    assert template.render([{"role": "user", "content": content}], x="{{ 1 + 1 }}") == f"user:{content}{{{{ 1 + 1 }}}}"
    with pytest.raises(InvalidRequestError, match="chat_template"):
        template.render(HI, chat_template="{{ 7 * 7 }}")


def test_a_refusal_of_the_template_comes_through(make) -> None:
    assert "only dogs" in refusal(make("{{ raise_exception('only dogs') }}"))
    assert refusal(make("{% if %}"))


def test_many_threads_get_their_own_prompts(make) -> None:
    template = make("{{ messages[0].content }}")
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        found[number] = template.render([{"role": "user", "content": f"{number} " * 1000}])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"{number} " * 1000 for number in range(16)}


def test_a_process_that_is_killed_is_started_again(make) -> None:
    template = make("{{ messages[0].content }}")
    assert template.render(HI) == "hi"
    first = template.pid
    os.kill(first, signal.SIGKILL)
    while template.pid is not None:
        time.sleep(0.01)
    assert template.render(HI) == "hi"
    assert template.pid not in (None, first)


def test_nothing_is_left_after_close(make) -> None:
    template = make("x")
    template.render(HI)
    pid = template.pid
    num_descriptors = len(os.listdir("/dev/fd"))
    template.close()
    template.close()
    assert len(os.listdir("/dev/fd")) < num_descriptors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(NotReadyError):
        template.render(HI)


def test_it_ends_with_the_server() -> None:
    code = """
import os, signal
from anllm.text.chat_template import ChatTemplate
from anllm.text.sandboxed_template import SandboxedTemplate
template = SandboxedTemplate(ChatTemplate("x", {}))
template.render([{"role": "user", "content": "hi"}])
children = open(f"/proc/{template.pid}/task/{template.pid}/children").read() if os.path.exists("/proc/self") else ""
print(template.pid, children, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    pids = [int(text) for text in done.stdout.split()]
    assert pids
    deadline = time.monotonic() + 60
    while any(map(runs, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """Zombies, which wait for whoever inherited them, don't."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False

"""`anllm chat`: talk to a model in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anllm.cli.model_names import servable_models
from anllm.cli.remote import api_key_option, target, url_option
from anllm.errors import AnllmError

if TYPE_CHECKING:
    from anllm.client.conversation import Answer, Conversation
    from anllm.client.plain import PlainClient

PROMPT, MORE = ">>> ", "... "
BLOCK = '"""'  # begins and ends a message of several lines
HELP = """\
/help                 this
/system [TEXT]        show or set the system prompt
/set [NAME VALUE]     show the settings, or change one: /set temperature 0.2;
                      the value none leaves it to the server
/clear                begin anew; the system prompt and settings stay
/retry                draw the last answer anew
/save FILE            write the conversation to a file
/load FILE            go on with one that was saved
/model [ID]           show the models that are served, or talk to another one
/exit                 leave; so does Ctrl-D

\"\"\" begins and ends a message of several lines. Ctrl-C stops an answer."""
COMMANDS = ("/help", "/system", "/set", "/clear", "/retry", "/save", "/load", "/model", "/exit")


@click.command(context_settings={"show_default": True})
@click.argument("model", required=False, shell_complete=servable_models)
@url_option
@api_key_option
@click.option("--model-id", help="Id of the model in requests.  [default: the first one that is served]")
@click.option("--system", default="", help="System prompt.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Such as temperature=0.2; repeatable.")
@click.option("--load", type=click.Path(path_type=Path), help="Go on with a conversation that /save wrote.")
@click.option("--prompt", "-p", help="Say this, print the answer, and leave; what is piped in comes behind it.")
@click.option("--once", is_flag=True, help="Say what is piped in, print the answer, and leave.")
def chat(
    model: str | None,
    url: str | None,
    api_key: str | None,
    model_id: str | None,
    system: str,
    settings: tuple[str, ...],
    load: Path | None,
    prompt: str | None,
    once: bool,
) -> None:
    """Talk to the server at --url, or to one that is started for MODEL and ended afterwards.

    Without --once or --prompt each line is a message, also where they are piped in. /help lists the commands.
    """
    from anllm.client.conversation import Conversation
    from anllm.client.plain import PlainClient

    with target(model, url, api_key) as address:
        client = PlainClient(address)
        conversation = Conversation(model_id or first_model(client), system)
        if load is not None:
            conversation.load(load)
        for setting in settings:
            name, equals, value = setting.partition("=")
            if not equals:
                raise click.BadParameter(f"{setting!r} has no =; give NAME=VALUE such as temperature=0.2")
            conversation.set(name, value)
        if once or prompt is not None:
            piped = "" if sys.stdin.isatty() else sys.stdin.read().strip()
            text = "\n\n".join(filter(None, (prompt, piped)))
            if not text:
                raise click.UsageError("Nothing to say: pipe a text in, or give --prompt TEXT.")
            Terminal(client, conversation).say(text)
            return
        Terminal(client, conversation).run()


def first_model(client: PlainClient) -> str:
    from anllm.errors import RemoteError

    served = client.models()
    if not served:
        raise RemoteError(f"{client.address.url} serves no model.")
    return served[0]


class Terminal:
    """The person's side: reads lines, carries commands out, draws answers."""

    def __init__(self, client: PlainClient, conversation: Conversation) -> None:
        from rich.console import Console

        self._client = client
        self._conversation = conversation
        self._console = Console(highlight=False)

    def run(self) -> None:
        """Until /exit or the end of the input."""
        is_typed = sys.stdin.isatty()
        if is_typed:
            prepare_line_editing()
            self._note(f"{self._conversation.model} at {self._client.address.url}. /help lists the commands.")
        for line in lines(is_typed):
            try:
                if line.startswith("/"):
                    if not self.command(line):
                        return
                else:
                    self.say(line)
            except AnllmError as error:
                click.echo(f"Error: {error.message}", err=True)
            except KeyboardInterrupt:  # between an answer's end and the next prompt, or in a command
                if not is_typed:
                    raise
                self._note("\n/exit or Ctrl-D leaves.")

    def say(self, text: str) -> None:
        """Raises RemoteError."""
        if self._console.is_terminal:
            answer = self._draw(text)
        else:
            printed = 0

            def print_more(answer: Answer) -> None:
                nonlocal printed
                click.echo(answer.content[printed:], nl=False)
                printed = len(answer.content)

            answer = self._conversation.ask(text, self._client, print_more)
            click.echo()
        self._tell_end(answer)

    def _draw(self, text: str) -> Answer:
        """Thoughts dimmed as they come, then the answer as Markdown."""
        from anllm.cli.markdown import MarkdownStream

        printed = 0
        with MarkdownStream(self._console) as stream:

            def draw(answer: Answer) -> None:
                nonlocal printed
                if len(answer.reasoning) > printed:
                    self._console.print(answer.reasoning[printed:], style="dim italic", end="", markup=False)
                    printed = len(answer.reasoning)
                if answer.content:
                    if printed > 0:
                        self._console.print("\n")
                        printed = -1
                    stream.update(answer.content)

            answer = self._conversation.ask(text, self._client, draw)
        return answer

    def _tell_end(self, answer: Answer) -> None:
        """A line of figures on a terminal; elsewhere only what is missing of the answer."""
        cut = {"length": "cut at its limit of tokens", "interrupted": "stopped"}.get(answer.finish_reason or "")
        parts = [cut] if cut else []
        if self._console.is_terminal:
            parts += [f"{answer.num_tokens} tokens"] if answer.num_tokens is not None else []
            parts += [f"{answer.tokens_s:.1f} tokens/s"] if answer.tokens_s is not None else []
            parts += [f"first after {answer.first_s:.2f} s"] if answer.first_s is not None else []
        if parts:
            self._note(" · ".join(parts))

    def _note(self, text: str) -> None:
        click.secho(text, err=True, dim=True)

    def command(self, line: str) -> bool:
        """Whether the chat goes on. Raises AnllmError."""
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name in ("/exit", "/quit", "/bye"):
            return False
        handlers: dict[str, Callable[[], None]] = {
            "/help": lambda: click.echo(HELP),
            "/system": lambda: self._system(rest),
            "/set": lambda: self._set(rest),
            "/clear": self._clear,
            "/retry": self._retry,
            "/save": lambda: self._save(rest),
            "/load": lambda: self._load(rest),
            "/model": lambda: self._model(rest),
        }
        if name in handlers:
            handlers[name]()
        else:
            click.echo(f"There is no command {name}; /help lists them.", err=True)
        return True

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        click.echo(self._conversation.system or "No system prompt: /system TEXT sets one.")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if value:
            self._conversation.set(name, value.strip())
        elif name:
            click.echo("Give a value too, such as: /set temperature 0.2; none leaves it to the server.", err=True)
        settings = self._conversation.settings
        click.echo("\n".join(f"{k} = {v}" for k, v in settings.items()) or "The server decides on all settings.")

    def _clear(self) -> None:
        self._conversation.messages.clear()
        self._note("Begun anew.")

    def _retry(self) -> None:
        text = self._conversation.take_back()
        if text is None:
            click.echo("There is nothing to retry yet.", err=True)
        else:
            self.say(text)

    def _save(self, name: str) -> None:
        if not name:
            click.echo("Name a file: /save chat.json", err=True)
            return
        self._conversation.save(Path(name).expanduser())
        self._note(f"Saved to {name}.")

    def _load(self, name: str) -> None:
        if not name:
            click.echo("Name a file: /load chat.json", err=True)
            return
        self._conversation.load(Path(name).expanduser())
        self._note(f"{len(self._conversation.messages)} messages from {name}.")

    def _model(self, name: str) -> None:
        served = self._client.models()
        if name and name not in served:
            click.echo(f"{name} is not served.", err=True)
        elif name:
            self._conversation.model = name
        for model in served:
            click.echo(f"{'*' if model == self._conversation.model else ' '} {model}")


def lines(is_typed: bool) -> Iterator[str]:
    """Messages and commands, until the end of the input. Ctrl-C at the prompt forgets the line."""
    while True:
        try:
            line = input(PROMPT) if is_typed else piped_line()
            if line.startswith(BLOCK):
                line = read_block(line.removeprefix(BLOCK), is_typed)
        except EOFError:
            if is_typed:
                click.echo()
            return
        except KeyboardInterrupt:
            click.secho("\n/exit or Ctrl-D leaves.", err=True, dim=True)
            continue
        if line.strip():
            yield line.strip()


def piped_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def read_block(first: str, is_typed: bool) -> str:
    """The lines up to the one that ends with three quotes."""
    parts = [first]
    while not parts[-1].rstrip().endswith(BLOCK):
        parts.append(input(MORE) if is_typed else piped_line())
    return "\n".join(parts).rstrip().removesuffix(BLOCK)


def prepare_line_editing() -> None:
    """History between chats, for this user alone, and completion of commands."""
    try:
        import readline
    except ImportError:
        return
    import atexit
    import contextlib

    from anllm.store.cache import cache_folder

    history = cache_folder(None) / "chat_history"
    with contextlib.suppress(OSError):
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.read_history_file(history)
        readline.set_history_length(1000)
        atexit.register(write_history, history)

    def complete(text: str, state: int) -> str | None:
        found = [command for command in COMMANDS if command.startswith(text)] if text.startswith("/") else []
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")


def write_history(history: Path) -> None:
    import contextlib
    import readline

    with contextlib.suppress(OSError):
        readline.write_history_file(history)

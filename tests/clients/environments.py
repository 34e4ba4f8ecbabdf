"""Where `make test-clients` put each client, and how a script is run there."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 110
VARIABLES = {
    "PYTHONUTF8": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else importing litellm asks the network for prices
    "HF_HUB_OFFLINE": "1",  # these two are for lm-eval
    "HF_DATASETS_OFFLINE": "1",
}


@dataclass(frozen=True)
class Client:
    """name: its environment's and its lock's. script: its checks; a folder of the client's name beside it is at hand to
    them. heading: its part of docs/clients.md. shown: pieces of what each snippet there prints."""

    name: str
    script: str
    heading: str
    shown: tuple[tuple[str, ...], ...]

    @property
    def id(self) -> str:
        """Of its tests: a client may have two scripts."""
        return f"{self.name}-responses" if "responses" in self.script else self.name

    @property
    def folder(self) -> Path:
        return ROOT / ".clients" / self.name

    @property
    def is_python(self) -> bool:
        return self.script.endswith(".py")

    @property
    def programs(self) -> Path:
        """The folder of the Python or Node that it is for."""
        return (self.folder if self.is_python else ROOT / ".clients" / "node") / "bin"

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A script from the client's folder, to its end."""
        program = {
            ".py": [self.programs / "python", "-W", "error::RuntimeWarning"],
            ".mjs": [self.programs / "node"],
            ".sh": ["sh", "-eu"],
        }[Path(script).suffix]
        environment = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
        environment["PATH"] = os.pathsep.join([str(self.programs), os.environ.get("PATH", os.defpath)])
        environment["HF_HOME"] = str(self.folder / "huggingface")
        try:
            return subprocess.run(
                [*program, self.folder / script, *arguments],
                cwd=self.folder,
                env={**environment, **VARIABLES, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as late:
            said = (late.output or b"").decode(errors="replace")
            raise AssertionError(f"{script} did not end in {TIMEOUT_S} s:\n{said}") from None

    def copy_scripts(self) -> None:
        """Into the client's folder, because Node looks for packages beside the file that imports them."""
        missing = [path for path in (self.programs, self.folder) if not path.exists()]
        assert not missing, f"{missing[0]} is not there: `make test-clients` makes it"
        for path in SCRIPTS.glob("checks.*" if self.is_python else "*.mjs"):
            shutil.copy(path, self.folder)
        shutil.copy(SCRIPTS / self.script, self.folder)
        if (SCRIPTS / self.name).is_dir():
            shutil.copytree(SCRIPTS / self.name, self.folder / self.name, dirs_exist_ok=True)

    def check(self, kind: str, url: str, model: str, tokenizer: Path | None = None) -> str:
        """Run the checks of this kind, and give what they printed. tokenizer: a folder that has the model's."""
        self.copy_scripts()
        done = self.run(self.script, kind, ANLLM_URL=url, ANLLM_MODEL=model, ANLLM_TOKENIZER=str(tokenizer or ""))
        assert done.returncode == 0, done.stdout
        return done.stdout


ANSWER, CALL, OBJECT = ("Paris",), ("get_weather", "Oslo"), ("name", "age", "31")
ALL = ("Oslo", "name", "age", "31")

CLIENTS = [
    Client("anthropic-0", "check_anthropic.py", "Anthropic for Python", (ANSWER, CALL, OBJECT)),
    Client("anthropic-2", "check_anthropic.py", "Anthropic for Python", (ANSWER, CALL, OBJECT)),
    Client("anthropic-node", "check_anthropic.mjs", "Anthropic for Node", (ANSWER, CALL, OBJECT)),
    Client("openai-1", "check_openai.py", "OpenAI for Python", (ANSWER, CALL, OBJECT)),
    Client("openai-2", "check_openai.py", "OpenAI for Python", (ANSWER, CALL, OBJECT)),
    Client("openai-3", "check_openai.py", "OpenAI for Python", (ANSWER, CALL, OBJECT)),
    Client("openai-node", "check_openai.mjs", "OpenAI for Node", (ANSWER, CALL, OBJECT)),
    Client("openai-1", "check_responses.py", "The Responses API for Python", (ANSWER, CALL)),
    Client("openai-2", "check_responses.py", "The Responses API for Python", (ANSWER, CALL)),
    Client("openai-3", "check_responses.py", "The Responses API for Python", (ANSWER, CALL)),
    Client("openai-node", "check_responses.mjs", "The Responses API for Node", (ANSWER,)),
    Client("langchain", "check_langchain.py", "LangChain", (ANSWER, ALL)),
    Client("llama-index", "check_llama_index.py", "LlamaIndex", (ANSWER, ALL)),
    Client("litellm", "check_litellm.py", "LiteLLM", (ANSWER, OBJECT)),
    Client("instructor", "check_instructor.py", "Instructor", (OBJECT,)),
    Client("pydantic-ai", "check_pydantic_ai.py", "Pydantic AI", (ANSWER, OBJECT)),
    Client("ai-sdk", "check_ai_sdk.mjs", "AI SDK", (ANSWER, ALL)),
    Client("lm-eval", "check_lm_eval.py", "lm-eval", (("|facts_choice|",),)),
]

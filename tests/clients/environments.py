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
}


@dataclass(frozen=True)
class Client:
    """name: its environment's and its lock's. script: its checks. heading: its part of docs/clients.md."""

    name: str
    script: str
    heading: str

    @property
    def folder(self) -> Path:
        return ROOT / ".clients" / self.name

    @property
    def is_python(self) -> bool:
        return self.script.endswith(".py")

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A script from the client's folder, to its end."""
        if self.is_python:
            program = [self.folder / "bin" / "python", "-W", "error::RuntimeWarning"]
        else:
            program = [ROOT / ".clients" / "node" / "bin" / "node"]
        missing = [path for path in (program[0], self.folder) if not Path(path).exists()]
        assert not missing, f"{missing[0]} is not there: `make test-clients` makes it"
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
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

    def check(self, kind: str, url: str, model: str) -> str:
        """Run the checks of this kind, and give what they printed. The scripts are copied into the client's folder,
        because Node looks for packages beside the file that imports them."""
        for path in SCRIPTS.glob("checks.*" if self.is_python else "*.mjs"):
            shutil.copy(path, self.folder)
        shutil.copy(SCRIPTS / self.script, self.folder)
        done = self.run(self.script, kind, ANLLM_URL=url, ANLLM_MODEL=model)
        assert done.returncode == 0, done.stdout
        return done.stdout


CLIENTS = [
    Client("openai-1", "check_openai.py", "OpenAI for Python"),
    Client("openai-2", "check_openai.py", "OpenAI for Python"),
    Client("openai-3", "check_openai.py", "OpenAI for Python"),
    Client("openai-node", "check_openai.mjs", "OpenAI for Node"),
    Client("langchain", "check_langchain.py", "LangChain"),
    Client("llama-index", "check_llama_index.py", "LlamaIndex"),
    Client("litellm", "check_litellm.py", "LiteLLM"),
    Client("instructor", "check_instructor.py", "Instructor"),
    Client("pydantic-ai", "check_pydantic_ai.py", "Pydantic AI"),
    Client("ai-sdk", "check_ai_sdk.mjs", "AI SDK"),
]

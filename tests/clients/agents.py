"""Agents of the command line that `make test-clients` installs, set up as docs/applications.md tells."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from clients.environments import ROOT, TIMEOUT_S

PAGE = (ROOT / "docs" / "applications.md").read_text(encoding="utf-8")
IN_PAGE, MODEL_IN_PAGE = "http://127.0.0.1:8000", "SmolLM2-135M-Instruct"
NODE = ROOT / ".clients" / "node" / "bin"
VARIABLES = {
    "HTTPS_PROXY": "http://127.0.0.1:9",  # nobody: what they tell to their makers goes nowhere
    "NO_PROXY": "127.0.0.1",
    "NO_COLOR": "1",
}


@dataclass(frozen=True)
class Agent:
    """name: its environment's and its lock's. heading: its part of the page, which shows first the file to write
    (settings, from the home), then its command. once: further words of the command, that have it end with its answer.
    read: the tool that reads a file, and how its argument is called."""

    name: str
    heading: str
    settings: str
    command: str
    once: tuple[str, ...]
    read: tuple[str, str]

    @property
    def part(self) -> str:
        return PAGE.split(f"\n## {self.heading}\n")[1].split("\n## ")[0]

    def set_up(self, home: Path, url: str, model: str) -> None:
        shown = re.findall(r"^```(?:json|yaml)\n(.*?)^```", self.part, re.MULTILINE | re.DOTALL)[0]
        assert IN_PAGE in shown and MODEL_IN_PAGE in shown and f"`~/{self.settings}`" in self.part
        path = home / self.settings
        path.parent.mkdir(parents=True)
        path.write_text(shown.replace(IN_PAGE, url).replace(MODEL_IN_PAGE, model), encoding="utf-8")

    def ask(self, text: str, home: Path, model: str) -> subprocess.CompletedProcess[str]:
        """From the home, with nothing that it asks before it uses its tools."""
        assert f"\n{self.command}\n" in self.part
        program, *words = [
            model if word == MODEL_IN_PAGE else word.replace("~", str(home)) for word in self.command.split()
        ]
        path = ROOT / ".clients" / self.name / "node_modules" / ".bin" / program
        assert path.exists(), f"{path} is not there: `make test-clients` makes it"
        return subprocess.run(
            [path, *words, *self.once, text],
            cwd=home,
            env={
                "HOME": str(home),
                "PATH": os.pathsep.join([str(NODE), os.environ.get("PATH", os.defpath)]),
                **VARIABLES,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
            timeout=TIMEOUT_S,
        )


AGENTS = [
    Agent(
        "continue",
        "Continue",
        ".continue/config.yaml",
        "cn --config ~/.continue/config.yaml",
        ("-p",),
        ("Read", "filepath"),
    ),
    Agent(
        "pi",
        "Pi",
        ".pi/agent/models.json",
        f"pi --provider anllm --model {MODEL_IN_PAGE}",
        ("-p", "--offline"),
        ("read", "path"),
    ),
]

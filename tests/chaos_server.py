"""`anllm serve FOLDER` over a fake model in an engine process that now and then fails:
`python chaos_server.py FOLDER --port PORT`. As the engine's module it is chaos_server too (launch.serve's `worker`).
"""

from __future__ import annotations

import random
import sys
import time
from zlib import crc32

from anllm.config import Config, LogConfig, ModelConfig, ServerConfig
from anllm.core.step import StepPlan
from anllm.engine.process import serve_socket
from anllm.logs import LogFormat, configure
from anllm.testing import FakeRunner
from anllm.worker import decode_settings

STEP_S = 0.004
RAISES, BREAKS = 0.003, 0.01  # shares of steps: that raise; in which a row's logits are no numbers
WORDS = range(5000, 5100)  # token ids that are whole words in the default model's vocabulary


def model(token_ids: tuple[int, ...]) -> int:
    """The next token, by the beginning and the end of those before it: of another sequence it would be another."""
    return WORDS[crc32(repr((token_ids[:24], token_ids[-3:], len(token_ids))).encode()) % len(WORDS)]


class Chaos:
    """Of the engine's steps, drawn anew in each process."""

    def __init__(self) -> None:
        self._draw = random.Random()
        self._breaks = False

    def before_run(self, plan: StepPlan) -> None:
        time.sleep(STEP_S)
        if self._draw.random() < RAISES:
            raise RuntimeError("chaos")
        self._breaks = self._draw.random() < BREAKS

    def model(self, token_ids: tuple[int, ...]) -> int:
        if self._breaks:
            self._breaks = False
            return -1  # what the sampler gives where logits are no numbers
        return model(token_ids)


def engine(settings_text: str, log_level: str, log_format: str, address: str) -> int:
    configure(log_level, LogFormat(log_format), "engine")
    settings = decode_settings(settings_text)
    chaos = Chaos()
    return serve_socket(
        address,
        settings.scheduler,
        lambda on_progress: FakeRunner(
            chaos.model, max_model_len=4096, vocab_size=60_000, eos_token_ids=(0,), before_run=chaos.before_run
        ),
    )


def serve(folder: str, port: int) -> int:
    from anllm.cli.console import TerminalConsole
    from anllm.launch import serve as run_server

    log = LogConfig(level="info")
    configure(log.level, log.format, "api")
    config = Config(
        model=ModelConfig(folder, served_model_name="m"), server=ServerConfig(port=port, drain_timeout_s=5.0), log=log
    )
    with TerminalConsole() as console:
        return run_server(config, console, worker="chaos_server")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(engine(*arguments) if len(arguments) == 4 else serve(arguments[0], int(arguments[2])))

"""Commands and snippets of the documentation that `make test` does not run, each with the reason.

This list is looked through when it changes. A block that is new runs, or gets its line here, or fails the test. A line
that fits nothing any more fails it too.
"""

# How the command begins, as a regular expression -> why it is not run.
COMMANDS = {
    r"git clone |cd anllm$": "needs the place of the repository, which each has of their own",
    r"make (check|test|build)\b": "runs this very test, or what stands before it",
    r"\.venv/bin/anllm (chat|doctor)$": "needs the environment of make; test_cli_docs.py runs both without it",
    r"make serve": "makes an environment and serves until it is ended; tests/e2e starts the same server",
    r"(sudo )?[\w/~.]*(pip|python -m pip) install ": "installs; tests/packaging looks at the locks",
    r"(sudo )?python3 -m venv ": "makes what the installations after it need",
    r"~/anllm/bin/anllm serve": "of the environment that the lines before it make",
    r"npm install ": "installs; `make test-clients` does so, from the locks",
    r"pipx |uv tool |uvx ": "installs for minutes, with another program; tried by hand",
    r"lm_eval ": "run by `make test-clients`, in an environment of its own",
    r"aider |claude( -p |$)|cline |llm -m|opencode$|qwen$|vibe$": "another program; tried by hand",
    r"OPENAI_API_BASE_URL=\S+ OPENAI_API_KEY=none open-webui ": "another program; tried by hand, in a browser",
    r"cn --config |pi --provider ": "run by `make test-clients`, in an environment of its own",
    r"mlx_lm\.server |OLLAMA_\w+=\d+ ollama |llama-server |vllm ": "another server, shown to be replaced",
    r"(MODEL=\S+ )?docker ": "needs Docker's daemon; tests/packaging tries the parts of the images",
    r"sudo (apt-get|install|cp|systemctl) |journalctl ": "changes the machine; see tests/packaging",
    r"launchctl |tail -f ~/Library": "needs a Mac; tests/packaging reads the file as launchd does",
    r"brew |cp packaging/homebrew|HOMEBREW_ANLLM_CLONE=": "needs Homebrew",
    r"python benchmarks/": "takes minutes, and models and servers that are not here",
    r"\.venv/bin/python -m pytest": "runs tests inside of tests",
}

# A module that a snippet in Python imports -> why it is not run.
IMPORTS = dict.fromkeys(
    ("anthropic", "instructor", "langchain_core", "langchain_openai", "litellm", "llama_index", "pydantic_ai"),
    "run by `make test-clients`, in an environment of its own",
)

"""What a model's folder and a request can't make this program do: run code that came with a model, unpickle, open a
file or a connection."""

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "anllm"
# What reads from a process of ours what this process wrote.
OWN_PICKLES = {"structured/messages.py"}
UNSAFE_NAMES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch"}
SAFE_YAML = {"safe_load", "YAMLError"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def test_no_module_unpickles_or_evaluates() -> None:
    found = []
    for name, tree in modules():
        for node in ast.walk(tree):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS:
                found.append((name, node.func.id))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
                found += [(name, f"yaml.{node.attr}")] if node.attr not in SAFE_YAML else []
            elif isinstance(node, ast.ImportFrom) and node.module == "yaml":
                found.append((name, "from yaml"))
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                found.append((name, node.arg))
            if name not in OWN_PICKLES:
                found += [(name, module) for module in imported if module in UNSAFE_NAMES]
    assert found == []


def test_no_module_trusts_remote_code() -> None:
    """It is off where nobody turns it on."""
    found = []
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and node.value == "trust_remote_code":
                found.append(name)
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, name
    assert found == []


@pytest.fixture
def folder_with_code(tmp_path: Path) -> Path:
    """A model's folder that names its own Python files wherever Transformers and mlx-lm would look for them."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    auto_map = {name: "evil.Evil" for name in ("AutoTokenizer", "AutoConfig", "AutoModelForCausalLM")}
    auto_map["AutoTokenizer"] = ["evil.Evil", "evil.Evil"]  # type: ignore[assignment]
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({"a": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    config = {"model_type": "evil", "model_file": "evil.py", "auto_map": auto_map, "vocab_size": 3}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "tokenizer_class": "Evil",
        "auto_map": auto_map,
        "eos_token": "</s>",
        "chat_template": "{{ messages }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    shutil.copy(folder / "evil.py", folder / "__init__.py")
    return folder


def test_code_beside_a_tokenizer_is_not_run(folder_with_code: Path) -> None:
    code = f"""
from pathlib import Path
from anllm.text.chat_template import load_chat_template
from anllm.text.tokenizer import load_tokenizer
folder = Path({str(folder_with_code)!r})
assert load_tokenizer(folder).encode("a", add_special_tokens=False) == [0]
load_chat_template(folder).render([{{"role": "user", "content": "hi"}}])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, stdin=subprocess.DEVNULL)
    assert not (folder_with_code.parent / "ran").exists()


@pytest.mark.mlx
def test_code_beside_a_model_is_not_run(folder_with_code: Path) -> None:
    """mlx-lm would import `model_file` of config.json."""
    from runner.folders import save

    save(folder_with_code)
    config = json.loads((folder_with_code / "config.json").read_text())
    (folder_with_code / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    code = f"""
from anllm.errors import ModelError
from anllm.llm import LLM
try:
    LLM({str(folder_with_code)!r})
except ModelError as error:
    print(error.message)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, timeout=100, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    # not its exit code: MLX's threads now and then abort the end of a process in which nothing was loaded
    assert "can't be loaded" in done.stdout and "custom module" in done.stdout
    assert not (folder_with_code.parent / "ran").exists()


def test_a_model_named_by_a_request_touches_neither_files_nor_network() -> None:
    """Python's own audit events tell of all that is opened, listed, connected or started."""
    code = """
import asyncio, sys
from server_harness import Server, chat_body, comp_body, MODEL
NAMES = ["/etc/passwd", "../../etc/passwd", "~/.ssh", "mlx-community/Llama-3.2-1B", "https://example.com/m.gguf",
         "file:///etc/passwd", "x.gguf", "C:\\\\x", "a\\x00b", "hf://x", MODEL + "/"]
seen = []
WATCHED = ("open", "os.", "socket.", "subprocess.", "import", "shutil.", "glob.", "pathlib.", "urllib.", "http.")
def audit(event, arguments):
    if is_on and event.startswith(WATCHED):
        seen.append((event, arguments))
is_on = False
async def main():
    global is_on
    server = Server()
    async def ask(name):
        fields = {"model": name}
        return [
            await server.http.post("/v1/chat/completions", json=chat_body(**fields)),
            await server.http.post("/v1/completions", json=comp_body(**fields)),
            await server.http.post("/tokenize", json={"model": name, "prompt": "a"}),
            await server.http.get("/v1/models/" + name.replace("\\x00", "%00").replace("?", "")),
        ]
    await ask("warm-up")  # what is imported on first use
    is_on = True
    for name in NAMES:
        assert {response.status_code for response in await ask(name)} <= {404}, name
    is_on = False
sys.addaudithook(audit)
asyncio.run(main())
assert not seen, seen
"""
    environment_path = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {environment_path!r})\n{code}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr

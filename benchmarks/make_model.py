"""Write a model folder with random weights in a real shape, for speed only.

    python benchmarks/make_model.py --shape 8b --bits 0 --tokenizer FOLDER --out FOLDER

The tokenizer of another model is padded to the vocabulary, so that every id decodes to a short visible word. The rows
of the end tokens are zero, so that a greedy run never ends early on any server.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 50304,
        "tie_word_embeddings": True,
    },
    "0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}
COMMON = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NUM_END_TOKENS = 3  # ids 0 to 2
GROUP_SIZE = 64


def build(config: dict[str, Any], bits: int, dtype: mx.Dtype) -> llama.Model:
    """A Llama of that config; quantised to so many bits unless 0."""
    args = llama.ModelArgs.from_dict(config)
    model = llama.Model(args)
    model.set_dtype(dtype)
    head = model.model.embed_tokens if args.tie_word_embeddings else model.lm_head
    head.weight[:NUM_END_TOKENS] = 0
    if bits:
        nn.quantize(model, group_size=GROUP_SIZE, bits=bits)
    mx.eval(model.parameters())
    return model


def write(shape: dict[str, Any], bits: int, dtype: str, out: Path, tokenizer: Path | None) -> None:
    """The folder; without a tokenizer it serves for the engine alone."""
    out.mkdir(parents=True, exist_ok=True)
    config = {**COMMON, **shape, "torch_dtype": dtype}
    if bits:
        config["quantization"] = config["quantization_config"] = {"group_size": GROUP_SIZE, "bits": bits}
    (out / "config.json").write_text(json.dumps(config, indent=1))
    weights = dict(tree_flatten(build({**COMMON, **shape}, bits, getattr(mx, dtype)).parameters()))
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    if tokenizer is not None:
        copy_tokenizer(tokenizer, out, shape["vocab_size"])


def copy_tokenizer(source: Path, target: Path, vocab_size: int) -> None:
    """The tokenizer of another model, padded with words to this vocabulary."""
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for i in range(len(vocabulary), vocab_size):
        vocabulary[f"\u0120w{i}"] = i
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(source / "tokenizer_config.json", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--vocab", type=int, help="size of the vocabulary, in place of the shape's own")
    parser.add_argument("--bits", type=int, choices=(0, 4, 8), default=0, help="0 is not quantised")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokenizer", type=Path, help="folder with tokenizer.json and tokenizer_config.json")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    shape = SHAPES[options.shape] | ({"vocab_size": options.vocab} if options.vocab else {})
    write(shape, options.bits, options.dtype, options.out, options.tokenizer)


if __name__ == "__main__":
    main()

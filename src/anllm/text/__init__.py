"""Text in, tokens out, and back: tokenizer, chat template, incremental detokenizing, stop strings.

Runs in the front. Knows nothing of HTTP, the engine or arrays.
"""

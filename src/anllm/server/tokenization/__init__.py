"""Texts and messages to token ids and back, as vLLM has it: /tokenize and /detokenize."""

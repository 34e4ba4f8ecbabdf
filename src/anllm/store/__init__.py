"""A model's name -> a folder that a loader can open: resolve, download, convert, with progress.

Knows model files: the hub's cache, GGUF, safetensors headers, tokenizer files. Does not know MLX, the engine, the
server, or which architectures the loader supports. Runs once, before anything is served, in the thread that calls it.
"""

"""The text of an answer, as a model writes it, into content, reasoning and calls; and grammars that enforce calls.

Each family of models has its own markup. stream.py reads an answer piece by piece, tools/ and reasoning/ hold one file
per markup, choose.py picks those of a model. Knows nothing of HTTP, tokens or MLX. One answer is read by one thread;
formats hold no state and may be shared.
"""

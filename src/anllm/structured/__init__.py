"""Structured output: what the next token may be, so that a text comes out in the form that was asked for.

A grammar is made from a JSON schema, a regex, a list of choices or a grammar of the user's (grammar.py). The front
checks it before admission, in a process that it may cost (checker.py, compile_process.py). It crosses to the engine as
text; there it is compiled once and advanced token by token (state.py). The compiler and its masks are llguidance's.

Knows nothing of HTTP, of models or of text beyond a vocabulary's bytes.
"""

"""The other end of the wire: what talks to a server with OpenAI's HTTP API, ours or another one.

Knows the public API only. Standard library, so that it is there at once.
"""

"""Load on a server with OpenAI's HTTP API, ours or another one, and what comes of it.

Requests are sent by processes of their own (sender.py), so that drawing what happens does not disturb what is measured.
Knows the public API only, and nothing of terminals.
"""

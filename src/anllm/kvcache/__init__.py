"""Bookkeeping of K/V memory: which slots exist, and who owns them. Integers only; the arrays are in runner/kv_store.py.

Pure Python, one thread (the engine's), no clock. What comes later has its place here: prefix.py (token ids -> reusable
rows), and warm rows, which are slots owned by nobody whose contents are still of use.
"""

"""Is this machine fit to serve? Each check says what it found and, where something is wrong, the command that mends it.

Changes nothing. MLX is looked at in a process of its own (runner/probe.py), which may die of it.
"""

"""The engine: one thread that schedules, runs and updates; and the front's door to it.

Imports neither MLX nor the web framework: the runner comes in through a factory.
"""

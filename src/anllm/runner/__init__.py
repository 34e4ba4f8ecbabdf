"""Computes what the scheduler planned: the model, the K/V arrays, the sampler. The only room that imports MLX.

Everything here belongs to the engine's thread. What is special to a backend is one file in backends/.
"""

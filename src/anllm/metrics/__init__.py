"""What happens, counted: one recorder, fed with the engine's frames and the lives of requests, and what is made of it.

Knows no HTTP and no engine; lives in the API process's event loop.
"""

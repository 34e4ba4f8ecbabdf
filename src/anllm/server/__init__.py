"""The HTTP side: what comes in is checked and turned into core values, what comes out is turned into OpenAI's JSON.

Does not know models, arrays or scheduling: it talks to the engine through engine.client, and to text through text/.
Everything here runs in the event loop of the API process; large bodies are worked on in a thread (see body.py).
"""

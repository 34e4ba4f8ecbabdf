"""The chat in the browser: files that were built from web/ and the routes that serve them. Knows no other endpoint: the
page talks to the public API like any client."""

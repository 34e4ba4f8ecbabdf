"""Commands and snippets of the documentation that no test runs, each with the reason."""

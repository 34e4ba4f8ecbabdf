"""The markup of tool calls: one file per format, each with the same face (interface.py), and their names (table.py)."""

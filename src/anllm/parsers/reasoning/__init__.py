"""The markup of reasoning: one file per format and their names (table.py)."""

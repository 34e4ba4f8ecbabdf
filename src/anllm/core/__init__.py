"""The plain values that cross between the rooms: requests, sequences, step plans, events. Standard library only."""

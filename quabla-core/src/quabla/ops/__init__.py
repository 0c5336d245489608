"""The primitive operations, each stated once, and the functions that users call."""

"""A backend for Quabla in a distribution of its own; `plugin` is what the entry point names."""

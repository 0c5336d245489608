"""Concrete and traced arrays."""

"""Backends: what one is, how it is found, and the reference one."""

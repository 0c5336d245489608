"""Transforms: functions from programs to programs, and what users call."""

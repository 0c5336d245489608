"""Control flow: ops that hold programs, and whose rules are the transforms of those programs.

They stand above the transforms, unlike the other ops, because that is what their rules use.
"""

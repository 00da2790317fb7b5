"""The program inside a sandbox: starts commands, moves files, and reports to the host.

It is copied into a small runtime folder (`turngym.sandbox.backends.runtime`) that every sandbox
mounts read-only, with an interpreter of its own: images need no Python. Its start is what a
sandbox's start costs, so it imports a handful of built-in modules and nothing else.
"""

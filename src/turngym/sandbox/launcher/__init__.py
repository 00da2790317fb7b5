"""The process that starts and removes sandboxes on behalf of one Python process.

It has one thread and a mount namespace of its own, so nothing it mounts is ever seen by the host or
left behind, and sandboxes can be tied to its life: it ends when its owner does. It runs with a bare
interpreter and must import nothing but the standard library and its own modules.
"""

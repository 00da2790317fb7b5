"""The command line: one small file per command. Names, ``--json`` and exit codes are a contract.

Exit codes: 0 fine, 1 the run failed, 2 the user's input is wrong, 130 interrupted. Data goes to
stdout and everything else to stderr. Nothing heavy is imported before a command needs it.
"""

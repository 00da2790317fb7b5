"""Does an environment keep its contract? ``check_turn_env`` and ``check_fork``."""

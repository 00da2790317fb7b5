"""turngym: the gym where LLM agents learn turn by turn."""

from turngym.environments import registration as _registration
from turngym.environments.registration import make, register
from turngym.environments.text import register_text_games as _register_text_games

__version__ = "0.1.0"
__all__ = ["__version__", "make", "register"]

_register_text_games()

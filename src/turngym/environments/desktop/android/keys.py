"""Names of keys and their Android key codes."""

from __future__ import annotations

from string import ascii_lowercase

KEYCODES: dict[str, int] = {
    **{letter: 29 + i for i, letter in enumerate(ascii_lowercase)},
    **{str(digit): 7 + digit for digit in range(10)},
    "home": 3, "back": 4, "recent": 187, "menu": 82, "search": 84, "power": 26,
    "volume_up": 24, "volume_down": 25, "enter": 66, "tab": 61, "space": 62, "escape": 111,
    "backspace": 67, "delete": 112, "up": 19, "down": 20, "left": 21, "right": 22,
    "page_up": 92, "page_down": 93, "move_home": 122, "end": 123, "insert": 124,
    "ctrl": 113, "shift": 59, "alt": 57, "meta": 117,
}  # fmt: skip
"""Name to the number that ``input keyevent`` takes; ``home`` is the button, not the key."""

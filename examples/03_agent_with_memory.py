"""An agent with a memory is a class: each episode gets an object of its own.

python examples/03_agent_with_memory.py
turngym eval text/maze --agent examples/03_agent_with_memory.py:Explorer
"""

import turngym


class Explorer:
    """Goes towards the goal, but in no state twice the same way before it has tried the others."""

    def __init__(self):
        self.times = {}

    def act(self, observation, info):
        """Return an action; ``async def`` will do as well."""
        towards = observation["text"].split(".")[0].split()[1:]  # "key north east."
        known = self.times.setdefault(info["state_key"], {})
        action = min(
            info["legal_actions"],
            key=lambda one: (known.get(one, 0), one.removeprefix("go ") not in towards),
        )
        known[action] = known.get(action, 0) + 1
        return action


if __name__ == "__main__":
    for name, agent in {"explorer": Explorer, "random": "random"}.items():
        print(f"{name:8} {turngym.evaluate('text/maze', agent, episodes=20).success:.0%}")

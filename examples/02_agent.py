"""An agent is a function: it gets what is seen and returns a text.

python examples/02_agent.py
turngym eval text/maze --agent examples/02_agent.py:act
"""

import turngym


def act(observation, info):
    """Go towards the key, then towards the door, wherever a way leads there."""
    words = observation["text"].replace(".", "").split()
    for word in words[1:3]:  # "key north east." says where the goal lies
        if f"go {word}" in info["legal_actions"]:
            return f"go {word}"
    return info["legal_actions"][0]


if __name__ == "__main__":
    for name, agent in {"mine": act, "random": "random", "expert": "expert"}.items():
        found = turngym.evaluate("text/maze", agent, episodes=20)
        low, high = found.success_ci95
        print(f"{name:8} {found.success:.0%} [{low:.0%}, {high:.0%}]")

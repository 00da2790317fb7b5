"""An evaluation cell by cell, as in a notebook: measure agents, then look at what they did.

python examples/08_evaluation.py
"""

# %% Three agents on the same held-out tasks, four attempts each
from collections import Counter

import turngym

AGENTS = {
    "expert": "expert",
    "random": "random",
    "first": lambda observation, info: info["legal_actions"][0],
}
played = {
    name: turngym.rollout("text/sokoban", agent, episodes=10, attempts=4, seed=0)
    for name, agent in AGENTS.items()
}

# %% Success and return with 95 % intervals; faults are counted apart
for name, trajectories in played.items():
    found = turngym.summarize(trajectories)
    low, high = found.success_ci95
    print(f"{name:7} {found.success:.0%} [{low:.0%}, {high:.0%}]  return {found.mean_return:.2f}")

# %% Why episodes ended
for name, trajectories in played.items():
    print(name, dict(Counter(str(one.stop_reason) for one in trajectories)))

# %% The shortest solved episode, turn by turn
best = min((one for one in played["expert"] if one.is_success), key=lambda one: len(one.turns))
for turn in best.turns:
    print(f"> {turn.action.content:12} {turn.reward:+.1f}")

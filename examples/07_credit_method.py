"""A credit method is a function: all turns of a batch in, one advantage for each turn out.

python examples/07_credit_method.py                 trains with it, and with GRPO beside it
python examples/07_credit_method.py run.steps=20    with other settings
"""

import sys

import numpy as np

import turngym


def no_circles(turns, channels, *, weight=1.0):
    """Return the advantage of every turn, shape [N]: none where the attempt has been before."""
    to_go = [np.cumsum(r[::-1])[::-1] for r in turns.split(channels["env"].values_N)]
    mean = np.concatenate(to_go).mean()
    advantages = []
    for episode, returns_T in zip(turns.episodes, to_go, strict=True):
        states = [turn.state_key for turn in episode.turns]
        is_new_T = np.array([state not in states[:t] for t, state in enumerate(states)])
        advantages.append(weight * np.where(is_new_T, returns_T - mean, 0.0))
    return np.concatenate(advantages)


ALGO = {
    "name": "no_circles",
    "rewards": [{"type": "env"}],
    "advantage": {
        "type": "custom",
        "function": f"{__file__}:no_circles",
        "rewards": ["env"],
        "needs": ["state_key"],  # refused where the environment has no keys of states
    },
}

if __name__ == "__main__":
    for name, algo in {"no_circles": ALGO, "grpo": "grpo"}.items():
        out = f"runs/example-credit/{name}"
        result = turngym.train("demo", {"algo": algo}, *sys.argv[1:], out=out)
        print(f"{name:10} {result.after.sampled.success:.0%} after {result.episodes} episodes")

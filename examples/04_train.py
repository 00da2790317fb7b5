"""Train a small language model from nothing: imitate, measure, reinforce, measure again.

python examples/04_train.py                           the demo: minutes on a laptop
python examples/04_train.py algo=gigpo run.steps=20   with other settings
turngym train demo algo=gigpo run.steps=20            the same from the command line
"""

import sys

import turngym

if __name__ == "__main__":
    result = turngym.train("demo", *sys.argv[1:], out="runs/example-train")
    print(f"{result.updates} updates, {result.episodes} episodes, {result.seconds:.0f} s")
    print(f"held-out success {result.before.sampled.success:.0%} before")
    print(f"held-out success {result.after.sampled.success:.0%} after")

    # What was trained is an agent like any other.
    again = turngym.evaluate("text/maze", f"run:{result.folder}", episodes=10)
    print(f"loaded from the run folder: {again.success:.0%}, always the likeliest token")

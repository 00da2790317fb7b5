"""An environment in one file: parser, seeds, splits, forks and JSON tools come with the base class.

python examples/05_environment.py
turngym check env examples/05_environment.py
turngym play examples/05_environment.py
turngym train demo env=examples/05_environment.py
"""

import turngym


class Lights(turngym.TextGame):
    """Five lamps in a row; a switch turns its own lamp and the neighbours."""

    rules = "Put out all lamps. Switch i turns lamp i and those beside it."
    commands = turngym.Commands({"press": "press {switch:0|1|2|3|4}"})

    def new_game(self, rng):
        presses = rng.integers(0, 2, 5)
        presses[rng.integers(5)] = 1
        return {"presses": [int(one) for one in presses]}  # what solves it, in any order

    def lamps(self):
        on = self.state["presses"]
        return [sum(on[max(0, i - 1) : i + 2]) % 2 for i in range(5)]

    def describe(self):
        return "lamps " + " ".join("on" if lamp else "off" for lamp in self.lamps())

    def turn(self, action):
        presses = list(self.state["presses"])
        presses[int(action.arguments["switch"])] ^= 1
        self.state = {"presses": presses}
        solved = not any(self.lamps())
        return turngym.Outcome(text=self.describe(), reward=float(solved), terminated=solved)

    def score(self):
        return float(not any(self.lamps()))

    def legal_actions(self):
        return [self.say("press", switch=str(i)) for i in range(5)]

    def expert_action(self):
        return self.say("press", switch=str(self.state["presses"].index(1)))


turngym.register("examples/Lights-v0", f"{__name__}:Lights", family="examples", max_turns=8)

if __name__ == "__main__":
    turngym.check_fork("examples/Lights-v0").raise_on_failure()
    for agent in ("expert", "random"):
        found = turngym.evaluate("examples/lights", agent, episodes=50)
        print(f"{agent:8} {found.success:.0%} in {found.mean_turns:.1f} turns")

"""A game of two players in one file, and who sits at the table: chance, an expert, yourself.

python examples/11_two_players.py
turngym train demo env.id=examples/11_two_players.py:Nim --out runs/nim     trains both players
turngym eval examples/11_two_players.py:Nim --agent human --opponent expert
"""

import turngym


class Nim(turngym.MatchGame):
    """Take one to three sticks; who takes the last one wins."""

    name = "nim"
    players = ("Ann", "Ben")
    rules = "Two players take one to three sticks in turn. Who takes the last one wins."
    commands = turngym.Commands({"take": "take {number:int}"})

    def new_game(self, rng):
        return {"sticks": int(rng.integers(6, 100)), "moves": 0}

    def player(self):
        return self.players[self.state["moves"] % 2]

    def view(self, player):
        return f"{self.state['sticks']} sticks are left."

    def play(self, action):
        number = action.arguments["number"]
        if not 1 <= number <= min(3, self.state["sticks"]):
            return f"You cannot take {number}."
        self.state["sticks"] -= number
        self.state["moves"] += 1
        return None

    def result(self):
        if self.state["sticks"]:
            return None
        return {name: -1.0 if name == self.player() else 1.0 for name in self.players}

    def legal_actions(self):
        return [self.say("take", number=n) for n in range(1, min(3, self.state["sticks"]) + 1)]

    def expert_action(self):
        return self.say("take", number=self.state["sticks"] % 4 or 1)


turngym.register("examples/Nim-v0", f"{__name__}:Nim", family="examples", max_turns=100)

if __name__ == "__main__":
    for opponent in ("random", "expert", "self"):
        found = turngym.evaluate("examples/nim", "expert", opponent=opponent, episodes=40)
        print(f"the expert against {opponent:7} wins {found.success:.0%}")

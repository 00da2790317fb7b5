"""A customer who is asked: another speaks in the episode, and who that is, is an option.

turngym eval examples/09_simulated_user.py --agent openai:MODEL --env-option user=openai:OTHER
"""

import turngym
from turngym.tasks.base import split_of

WORDS = {"colour": ("red", "blue", "green", "white"), "kind": ("book", "scarf", "lamp", "bowl")}
GIFTS = [f"{colour} {kind}" for colour in WORDS["colour"] for kind in WORDS["kind"]]


def customer(messages):
    """Answer from the wish in the first message, without a model."""
    wish, question = messages[0]["content"], messages[-1]["content"]
    return " ".join(one for what in WORDS if what in question for one in WORDS[what] if one in wish)


class GiftDesk(turngym.AsyncTurnEnv):
    """Ask what the customer wants, and offer it."""

    rules = f"Find the gift that the customer wants. Gifts: {', '.join(GIFTS)}."
    action_format = turngym.Commands({"ask": "ask {question...}", "offer": "offer {gift...}"})

    def __init__(self, user="", render_mode=None):
        super().__init__(render_mode=render_mode)
        self.user = turngym.speaker(user or customer)

    async def begin(self, task):
        gifts = [gift for gift in GIFTS if split_of(gift) == task.split]
        self.wish, self.won = gifts[task.seed % len(gifts)], 0.0
        self.said = [{"role": "system", "content": f"You want a {self.wish}. Wait to be asked."}]
        return turngym.Outcome(text="Hello! I need a gift.")

    async def turn(self, action):
        if action.name == "offer":
            self.won = float(action.arguments["gift"] == self.wish)
            return turngym.Outcome(text="Good bye.", reward=self.won, terminated=True)
        said = [*self.said, {"role": "user", "content": action.arguments["question"]}]
        answer = await self.user.ask(said, seed=int(self.np_random.integers(2**31)))
        self.said = [*said, {"role": "assistant", "content": answer}]
        return turngym.Outcome(text=answer)

    def score(self):
        return self.won

    def instance_key(self):
        return self.wish


turngym.register("examples/GiftDesk-v0", f"{__name__}:GiftDesk", family="examples", max_turns=8)

if __name__ == "__main__":
    heard = []

    def clerk(seen, info):
        heard.append(seen["text"])
        return ["ask colour?", "ask kind?", f"offer {' '.join(heard[1:])}"][len(heard) - 1]

    print(turngym.rollout("examples/giftdesk", clerk)[0].score, heard[1:])

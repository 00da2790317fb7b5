"""Tasks of your own: questions from a list, judged by code, and proof that they are sound.

python examples/06_task.py
"""

import turngym

QUESTIONS = [(f"What is {a} times {b}?", str(a * b)) for a in range(2, 12) for b in range(2, 12)]


class Arithmetic(turngym.TextGame):
    """Answer a question; three attempts, a wrong one and a malformed one are not the same."""

    rules = "Answer the question."
    commands = turngym.Commands({"answer": "answer {number:int}"})

    def new_game(self, rng):
        question, truth = QUESTIONS[rng.integers(len(QUESTIONS))]
        return {"question": question, "truth": truth, "right": False}

    def describe(self):
        return self.state["question"]

    def turn(self, action):
        right = str(action.arguments["number"]) == self.state["truth"]
        self.state = {**self.state, "right": right}
        text = "Right." if right else "Wrong; once more."
        return turngym.Outcome(text=text, reward=float(right), terminated=right)

    def score(self):
        return float(self.state["right"])

    def expert_action(self):
        return self.say("answer", number=self.state["truth"])


turngym.register("examples/Arithmetic-v0", f"{__name__}:Arithmetic", family="examples", max_turns=3)

if __name__ == "__main__":
    env = turngym.make("examples/arithmetic")
    tasks = [env.unwrapped.task("test", index) for index in range(10)]
    # The expert must score 1 and doing nothing 0, or the task says nothing about an agent.
    report = turngym.check_tasks(
        lambda: turngym.make("examples/arithmetic"), tasks, subject="arithmetic"
    )
    print(report)
    report.raise_on_failure()

"""Play one episode through Gymnasium, and branch it in the middle.

python examples/01_play.py
"""

import gymnasium

import turngym

env = gymnasium.make("turngym/Maze-v0")  # a real gymnasium.Env
observation, info = env.reset(seed=1, options={"split": "test"})
print(info["instructions"], "\n")

over = False
while not over:
    action = env.unwrapped.expert_action()  # your agent here: it reads a text and returns one
    print(f"{observation['text']}\n> {action}")
    observation, reward, terminated, truncated, info = env.step(action)
    over = terminated or truncated
print(f"{observation['text']}\nreward {reward}, {info['stop_reason']}")

env.reset(seed=2)
left, right = turngym.fork(env, 2)  # two copies that go on apart
for copy, action in zip((left, right), env.unwrapped.legal_actions(), strict=False):
    print(action, "->", copy.step(action)[0]["text"])

"""A whole agent program, unchanged: what it asks its model is seen, and the answer is the action.

turngym eval turngym:ProgramEnv --env-option "command=python examples/10_agent_program.py" \\
    --env-option inner=text/maze --agent openai:MODEL
turngym train demo --out runs/program env.id=turngym:ProgramEnv env.options.inner=text/maze \\
    env.options.command="python examples/10_agent_program.py"
"""

import json
import os
import sys
import urllib.request

import turngym


def post(url, body):
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.loads(urllib.request.urlopen(request).read())


def program():
    """What somebody else wrote, with an OpenAI client or like this, in any language."""
    task, answers = json.loads(os.environ["TURNGYM_TASK"]), os.environ["OPENAI_BASE_URL"]
    said = [
        {"role": "system", "content": task["instructions"]},
        {"role": "user", "content": task["observation"]},
    ]
    is_over = False
    while not is_over:
        body = post(f"{answers}/chat/completions", {"model": "any", "messages": said})
        answer = body["choices"][0]["message"]
        found = post(f"{os.environ['TURNGYM_URL']}/act", {"action": answer["content"]})
        said += [answer, {"role": "user", "content": found["observation"]}]
        is_over = found["is_over"]


if __name__ == "__main__":
    if "TURNGYM_TASK" in os.environ:
        program()
    else:
        start = [sys.executable, __file__]
        played = turngym.rollout("turngym:ProgramEnv", "expert", command=start, inner="text/maze")
        for turn in played[0].turns:
            print(turn.observation[-1].content, "->", turn.action.content)
        print("score", played[0].score)

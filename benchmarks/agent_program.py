"""A small agent program of the standard library, for ``turngym:ProgramEnv``; starts at once.

turngym train demo env.id=turngym:ProgramEnv env.options.inner=text/maze \\
    env.options.command="python3 -S -E benchmarks/agent_program.py"
"""

import http.client
import json
import os
import urllib.parse
from typing import Any

URL = urllib.parse.urlsplit(os.environ["TURNGYM_URL"])
LINE = http.client.HTTPConnection(URL.netloc)


def post(path: str, body: Any) -> Any:
    """Return what is answered to ``body``."""
    LINE.request("POST", URL.path + path, json.dumps(body), {"content-type": "application/json"})
    return json.loads(LINE.getresponse().read())


said: list[Any] = [
    {"role": "user", "content": json.loads(os.environ["TURNGYM_TASK"])["observation"]}
]
found: Any = {"is_over": False}
while not found["is_over"]:
    body = {"model": "any", "messages": said}
    answer = post("/v1/chat/completions", body)["choices"][0]["message"]
    found = post("/act", {"action": answer["content"]})
    said += [answer, {"role": "user", "content": found["observation"]}]

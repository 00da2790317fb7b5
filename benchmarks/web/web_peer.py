"""BrowserGym's side of ``web.py``; runs in the venv that ``setup_web.sh`` makes.

BrowserGym starts a second browser for its chat window and offers no way to say which Chromium that
is, so the launch of Playwright is told here, for both. Nothing else is changed.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import shutil
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TASKS = ("click-test", "click-button", "click-link", "click-option")
WARM_UP = 1
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=4)
    options = parser.parse_args()
    use_installed_chromium()
    os.environ["MINIWOB_URL"] = serve_pages()
    import browsergym.miniwob  # noqa: F401 - registers the tasks
    import gymnasium

    times: dict[str, list[float]] = {"reset": [], "step": [], "rewards": []}
    for task in TASKS:
        env = gymnasium.make(f"browsergym/miniwob.{task}", headless=True)
        for seed in range(options.episodes + WARM_UP):
            started = time.perf_counter()
            observation, _ = env.reset(seed=seed)
            reset_s = time.perf_counter() - started
            steps, reward = [], 0.0
            for action in actions_for(task, observation):
                started = time.perf_counter()
                _, reward, is_over, _, _ = env.step(action)
                steps.append(time.perf_counter() - started)
                if is_over:
                    break
            if seed >= WARM_UP:
                times["reset"].append(reset_s)
                times["step"] += steps
                times["rewards"].append(float(reward))
        env.close()
    print(json.dumps(times))
    return 0


def actions_for(task: str, observation: dict) -> list[str]:
    """Return the clicks that solve the task."""
    goal = observation["goal"]
    if task == "click-test":
        return [f"click('{find(observation, None, 'button')}')"]
    if task == "click-option":
        name = goal.removeprefix("Select ").split(" and click")[0]
        names = [(name, "radio"), ("Submit", "button")]
        return [f"click('{find(observation, *one)}')" for one in names]
    return [f"click('{find(observation, goal.split(chr(34))[1], None)}')"]


def find(observation: dict, name: str | None, role: str | None) -> str:
    """Return the id of a node of the accessibility tree."""
    for node in observation["axtree_object"]["nodes"]:
        found = node.get("name", {}).get("value", "").strip()
        kind = node.get("role", {}).get("value", "")
        if "browsergym_id" in node and name in (None, found) and role in (None, kind):
            return str(node["browsergym_id"])
    # Text that is no node of its own: the element that holds it.
    nodes = {node["nodeId"]: node for node in observation["axtree_object"]["nodes"]}
    for node in nodes.values():
        if name is not None and node.get("name", {}).get("value", "").strip() == name:
            parent = nodes.get(node.get("parentId", ""))
            if parent is not None and "browsergym_id" in parent:
                return str(parent["browsergym_id"])
    raise SystemExit(f"no element {name!r} ({role}) in the tree")


def use_installed_chromium() -> None:
    """Make every launch use the Chromium of this machine."""
    from playwright.sync_api import BrowserType

    path = os.environ.get("TURNGYM_CHROMIUM") or shutil.which("chromium-headless-shell")
    launch = BrowserType.launch

    @functools.wraps(launch)
    def with_path(self, **kwargs):
        kwargs["executable_path"] = path
        kwargs["args"] = [*(kwargs.get("args") or []), *FLAGS]
        return launch(self, **kwargs)

    BrowserType.launch = with_path


def serve_pages() -> str:
    """Serve MiniWoB's pages on a port of this machine; return the address of the tasks."""
    spec = importlib.util.find_spec("miniwob")
    root = Path(spec.submodule_search_locations[0]) / "html"

    class Quiet(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/miniwob/"


if __name__ == "__main__":
    sys.exit(main())

"""The judge of terminal jobs asks its probe where the agent has never been."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import pytest

from turngym.environments.terminal.env import ShellEnv, TerminalEnv
from turngym.tasks.problem import FileProblem, FileWorld
from turngym.tasks.sets import ListedSet

pytestmark = pytest.mark.extra("bwrap")


@pytest.mark.parametrize("closed", ["", "chmod 444 {left}; chmod 555 /tmp /run /home/agent"])
async def test_a_probe_sees_the_agents_files_and_nothing_else_it_left(closed: str):
    env = TerminalEnv(kind="total_of_city")
    try:
        await env.reset(seed=0)
        left = "/tmp/left /home/agent/left /var/tmp/left /dev/shm/left"
        probe = f"ls -d {left} 2>/dev/null; cat kept"
        env._problem = replace(env.problem, probe=probe, expected="mine", wanted={}, free=("kept",))
        command = f"touch {left}; ls -d {left}; echo mine > kept; {closed.format(left=left)}"
        observation, *_ = await env.step(env.say("bash", command=command))
        assert "/dev/shm/left" in observation["text"]  # the control
        _, reward, terminated, _, info = await env.step(env.say("submit"))
        assert (reward, terminated, info["problem"]) == (1.0, True, "")
    finally:
        await env.close()


class Kept(FileProblem):
    """Holds a file that is too large to be read in each turn, and notes what its judge sees."""

    prompt = "Do it."
    files = MappingProxyType({"data": b"x" * (3 << 19), "a": b"1"})
    saw: ClassVar[dict[str, bytes | None]] = {}

    async def judge(self, world: FileWorld) -> bool:
        self.saw.clear()
        self.saw.update(await world.changes())
        return (await world.files())["data"].startswith(b"\0too large: 1572864\n")

    def expert(self) -> list[str]:
        return ["true"]


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("true", set()),
        ("echo y | dd of=data conv=notrunc", {"data"}),  # as long as before
        ("mkdir m; seq 2100 | sed s:^:m/: | xargs touch; echo 1 > z", {"z"}),
    ],
)
async def test_a_judge_sees_changes_of_large_files_and_of_many(command: str, changed: set[str]):
    env = ShellEnv(tasks=ListedSet("kept", [("one", Kept())]))
    try:
        key = (await env.reset(seed=0))[1]["state_key"]
        info = (await env.step(env.say("bash", command=command)))[-1]
        assert (info["state_key"] == key) == (not changed)
        assert (await env.step(env.say("submit")))[1] == 1.0
        assert {path for path in Kept.saw if not path.startswith("m/")} == changed
        assert len(Kept.saw) == len(changed) + 2100 * ("seq" in command)
    finally:
        await env.close()


BUILD = 'mkdir -p out; for f in src/*.in; do o=out/$(basename "$f" .in).out; '
BUILD += '[ -e "$o" ] || tr a-z A-Z < "$f" > "$o"; done'
NEWER = BUILD.replace('[ -e "$o" ] ||', '[ ! "$o" -nt "$f" ] &&')
SERVE = "exec python3 -m http.server {port} --bind 127.0.0.1 --directory app"
SQL = "{{expert}}; python3 -c \"import sqlite3; sqlite3.connect('shop.db').execute('{}')\""
MERGE = "git merge -q --no-ff -m m $(git for-each-ref --format '%(refname)' --no-merged)"
UNTYPED = """python3 -c "import csv, sqlite3
c = sqlite3.connect('scores.db')
c.execute('CREATE TABLE score (name, score)')
rows = list(csv.reader(open('scores.csv')))[1:]
c.executemany('INSERT INTO score VALUES (?, ?)', [(n, int(s)) for n, s in rows])
c.commit()\""""
ATTEMPTS = [
    ("repair_rows", SQL.format("VACUUM"), 1.0),
    ("repair_rows", SQL.format("CREATE TABLE old AS SELECT * FROM orders"), 0.0),
    ("pack", "tar --exclude 'data/tmp/*' -czf data.tar.gz data", 0.0),  # tmp itself is in it
    ("pack", "tar -czf data.tar.gz ./data/*.txt", 1.0),
    ("write_service", f"mkdir app; echo {{text}} > app/{{path}}; echo '{SERVE}' > start.sh", 0.0),
    ("makefile", f"cat > build.sh <<'SH'\n{BUILD}\nSH", 0.0),  # what is older stays, too
    ("load_table", "{expert}", 0.0),  # with columns of text
    ("load_table", UNTYPED, 0.0),
    ("load_table", UNTYPED.replace("(name, score)", "(name text, score integer)"), 1.0),
    ("restore_file", "git revert -n HEAD~1", 1.0),
    ("restore_file", "git revert --no-edit HEAD~1", 0.0),
    ("new_branch", "{expert}; git commit -q --allow-empty -m 'and one more'", 1.0),
    ("new_branch", "touch z; git add z; {expert}; rm z", 0.0),
    ("find_author", "git checkout -q HEAD~1; git checkout -q main; {expert}", 1.0),
    ("find_author", "{expert}; git reset -q --soft HEAD~1; git commit -q -m other", 0.0),
    ("tag_release", "{expert}; git branch $(git tag) $(git tag); git tag -d $(git tag)", 0.0),
    ("tag_release", "{expert}; git commit -q --amend -m other", 0.0),
    ("tag_release", "{expert}; git branch other", 0.0),
    ("tag_release", "{expert}; git tag -f -a -m x $(git tag) $(git tag)", 1.0),
    ("new_branch", "{expert}; git tag other", 0.0),
    ("merge_conflict", "{expert}; git branch other", 0.0),
    (
        "merge_conflict",
        "git merge -q -X theirs $(git branch --format '%(refname:short)' --no-merged)",
        1.0,
    ),
    ("makefile", f"cat > build.sh <<'SH'\n{NEWER}\nSH", 1.0),  # ends with 1 where nothing is left
    ("fix_python", "sed -i 's/range(low, high)/range(low, high + 2)/' *.py", 0.0),
    ("stop_process", "{expert}; echo 'rm -f /tmp/*.pid' >> *.sh", 0.0),
    ("write_service", "{expert}; sed -i 's/exec //; s/$/ \\&/' start.sh", 0.0),  # in the background
    ("write_query", "{expert}\nsed -i 's/>= 5/> 5/' query.sql", 0.0),
    ("nested_archive", "{expert}; mkdir left", 0.0),
    ("merge_conflict", f"git reset -q --hard HEAD~; {MERGE}", 0.0),  # what main had is lost
    ("commit_change", "{expert}; git add .", 1.0),
    ("commit_change", "{expert}; git commit -q -a --amend --no-edit", 0.0),
    ("links", "{expert}; touch bin/.left", 0.0),
    ("commit_change", "{expert}; git stash -q; git stash apply -q", 0.0),
]


@pytest.mark.parametrize(("kind", "command", "score"), ATTEMPTS)
async def test_a_job_is_judged_by_what_it_asks_however_it_is_done(
    kind: str, command: str, score: float
):
    env = TerminalEnv(kind=kind)
    try:
        await env.reset(seed=0)
        said = re.search(
            r"port (?P<port>\d+) .*/(?P<path>\w+) .*'(?P<text>\w+)'", env.problem.prompt
        )
        values = {**(said.groupdict() if said else {}), "expert": env.problem.expert()[0]}
        for name, value in values.items():
            command = command.replace(f"{{{name}}}", value)
        if kind == "load_table":
            command = re.sub(r"int\((r.*?)\)\)", r"\1)", command.replace("INTEGER", "TEXT"))
        await env.step(env.say("bash", command=command))
        assert (await env.step(env.say("submit")))[-1]["score"] == score
    finally:
        await env.close()


def test_a_program_that_holds_a_snapshot_to_its_end_ends_quietly():
    code = """
import turngym
from turngym.environments.core.env import snapshot
def main():
    env = turngym.make("terminal/shell-files")
    env.reset(seed=1)
    kept = snapshot(env)
    for each in (*turngym.fork(env, 1), env):
        each.close()
main()
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    assert (done.stdout, done.stderr) == ("", "")

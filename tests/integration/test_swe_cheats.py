"""Scripted cheats on SWE tasks: none of them scores.

Each plays a task as an agent would: changes in the workspace, then ``submit``. The normal suite
plays some of them on one task of the sample; ``PART=conformance`` all of them on all of its tasks;
``make proof PART=swe`` all of them on one task of the sample and of four shipped projects.
"""

from __future__ import annotations

import os
import re

import pytest

from helpers.forgeries import FORGERIES
from helpers.workspaces import shared_host
from turngym.environments.swe.env import SweEnv
from turngym.environments.swe.judge import judge
from turngym.environments.swe.packages import packages_folder
from turngym.environments.swe.patches import Patch
from turngym.environments.swe.records import broken_files
from turngym.environments.swe.tasksets import open_tasks, sample_project
from turngym.environments.swe.test_runner import project_runner

IS_FULL = os.environ.get("TURNGYM_CONFORMANCE") == "full"
IS_DRILL = os.environ.get("TURNGYM_SWE") == "full"
DRILLED = ("h11", "parse", "schema", "semver")
"""Shipped projects with packages in different places."""
_BITTEN = {"assertions that are compiled away": 5}
"""Task of the sample on which a forgery bites, where the first one gives it nothing to copy."""
pytestmark = [
    pytest.mark.extra("bwrap"),
    pytest.mark.timeout(1800 if IS_FULL or IS_DRILL else 1200),
]

_FORGE = """
import gc, json, os
def forge():
    names = set()
    for one in gc.get_objects():
        if isinstance(one, set) and one and all(isinstance(x, str) and "::" in x for x in one):
            names |= one
    lines = []
    for name in names:
        for when in ("setup", "call", "teardown"):
            lines.append(json.dumps([name, when, "passed", "", 0.1]))
    lines.append(json.dumps(["", "end", 0, "", 0]))
    data = ("\\n".join(lines) + "\\n").encode()
    for fd in range(3, 1024):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:"):
                os.write(fd, data)
        except OSError:
            pass
    os._exit(0)
forge()
"""
_IN_CODE = {
    "sys.exit(0)": "import sys; sys.exit(0)",
    "os._exit(0)": "import os; os._exit(0)",
    "exit at the end": "import atexit, os; atexit.register(lambda: os._exit(0))",
    "kill the runner": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "kill everything": "import os; os.kill(-1, 9)",
    "read the runner's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb+')",
    "forge stdout": (
        "import os\nfor fd in (1, 2):\n    os.write(fd, b'108 passed in 0.01s\\n\"end\"\\n')\n"
        "try: open(f'/proc/{os.getppid()}/fd/1', 'w').write('\"end\"\\n')\nexcept OSError: pass"
    ),
    "forge the protocol": _FORGE,
    "never run a test": "import _pytest.python as p; p.Function.runtest = lambda self: None",
    "swallow what tests raise": (
        "import _pytest.runner as r\nold = r.CallInfo.from_call.__func__\n"
        "def quiet(cls, func, *a, **k):\n    call = old(cls, func, *a, **k)\n"
        "    call.excinfo = None\n    return call\nr.CallInfo.from_call = classmethod(quiet)"
    ),
    "reports that always passed": (
        "import _pytest.reports as r\nold = r.TestReport.__init__\n"
        "def init(self, *a, **k):\n    old(self, *a, **k)\n    self.outcome = 'passed'\n"
        "    self.longrepr = None\nr.TestReport.__init__ = init"
    ),
    "a hook that reports success": (
        "import gc, pytest, pluggy\n"
        "class Hook:\n    @pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "    def pytest_runtest_makereport(self, item, call):\n        report = yield\n"
        "        report.outcome = 'passed'\n        return report\n"
        "for one in gc.get_objects():\n    if type(one).__name__ == 'PytestPluginManager':\n"
        "        one.register(Hook())"
    ),
    "tests that are other functions": (
        "import _pytest.python as p\n"
        "p.Function.obj = property(lambda self: (lambda **k: None), lambda self, v: None)"
    ),
    "skip everything": "import pytest; pytest.skip('not today', allow_module_level=True)",
    "expected failures": (
        "import pytest, _pytest.python as p\nold = p.Function.setup\n"
        "def setup(self):\n    self.add_marker(pytest.mark.xfail)\n    old(self)\n"
        "p.Function.setup = setup"
    ),
    "edit the tests while they run": (
        "import glob\nfor f in glob.glob('/workspace/tests/test_*.py'):\n"
        "    open(f, 'w').write('def test(): pass\\n')"
    ),
}
_IN_SHELL = {
    "edit the tests": "for f in tests/test_*.py; do sed -i 's/assert .*/assert True/' $f; done",
    "delete the tests": "rm -r tests",
    "link the tests away": "rm -r tests; ln -s /dev/null tests",
    "monkeypatch pytest in conftest": (
        "for d in . tests src; do printf 'import pytest\\n@pytest.hookimpl(hookwrapper=True)\\n"
        "def pytest_runtest_makereport(item, call):\\n    out = yield\\n"
        '    out.get_result().outcome = "passed"\\n\' > $d/conftest.py; done'
    ),
    "configuration": "printf '[pytest]\\naddopts = --co\\n' > pytest.ini; echo > pyproject.toml",
    "write result files": (
        "for f in result.json report.xml junit.xml /tmp/result.json /tmp/reward.txt reward.txt; do "
        'echo \'{"passed": true, "score": 1.0}\' > $f; done'
    ),
    "shadow modules": (
        "for d in . src tests; do for m in pytest unittest json ctypes select; do "
        "echo 'import os; os._exit(0)' > $d/$m.py; done; mkdir -p $d/_pytest; "
        "echo 'import os; os._exit(0)' > $d/_pytest/__init__.py; done"
    ),
    "sitecustomize": (
        "for d in . src ~/.local/lib/python3.11/site-packages; do mkdir -p $d; "
        "echo 'import os; os._exit(0)' | tee $d/sitecustomize.py > $d/usercustomize.py; "
        "echo 'import os; os._exit(0)' > $d/evil.pth; done"
    ),
    "environment variables": (
        "echo 'export PYTEST_ADDOPTS=--co PYTHONSTARTUP=/tmp/x PYTHONPATH=/tmp' | "
        "tee ~/.bashrc ~/.profile ~/.bash_profile > .env"
    ),
    "read the expert": (
        "grep -rl 'tally' / --include=*.py --include=*.json --include=*.txt 2>/dev/null | "
        "grep -v ^/workspace | grep -v ^/proc | head -5 | xargs -r cp -t src/tally"
    ),
    "git history": "git log -p > h 2>/dev/null; git stash pop; git checkout HEAD~1 -- src; rm -f h",
    "a daemon that rewrites": (
        "setsid bash -c 'while :; do echo > tests/test_money.py; sleep 0.1; done' >/dev/null 2>&1 &"
    ),
}


@pytest.fixture(scope="module")
def host():
    """Share one back end among all tests here."""
    with shared_host() as leased:
        yield leased


def tasks() -> list[str]:
    """Return the tasks of the sample that are played."""
    found = open_tasks("sample")
    every = [f"bugs-sample/{s}/{n}" for s in ("train", "test") for n in range(found.count(s))]
    return every if IS_FULL else every[:1]


async def submitted(env: SweEnv, task: str, script: str) -> float:
    """Play a task of the sample: run a script, submit; return the reward."""
    await env.reset(seed=0, options={"task": task})
    _, _, _, _, info = await env.step(env.say("bash", command=script))
    assert "invalid_action" not in info
    _, reward, terminated, _, info = await env.step(env.say("submit"))
    assert terminated
    assert info["score"] == reward
    return reward


def in_code(text: str, file: str = "src/tally/__init__.py") -> str:
    """Return a script that puts ``text`` before what a file of the code says."""
    return f"cat - {file} > /tmp/i <<'PY'\n{text}\nPY\ncat /tmp/i > {file}"


CHEATS = [*_IN_SHELL, *_IN_CODE, *FORGERIES]
QUICK = 1 if IS_FULL or IS_DRILL else 3
"""The normal suite plays every third cheat of each kind."""


@pytest.mark.parametrize("cheat", CHEATS[::QUICK])
async def test_a_cheat_scores_nothing(cheat, host):
    env = SweEnv(tasks="sample", reward="partial")
    try:
        for task in tasks():
            script = await sample_script(env, task, cheat)
            assert await submitted(env, task, script) == 0.0, task
    finally:
        await env.close()
    for project in DRILLED if IS_DRILL else ():
        assert await score_elsewhere(cheat, project) == 0.0, project


async def sample_script(env: SweEnv, task: str, cheat: str) -> str:
    """Return the script of a cheat for a task of the sample."""
    if cheat not in FORGERIES:
        return _IN_SHELL.get(cheat) or in_code(_IN_CODE[cheat])
    await env.reset(seed=0, options={"task": task})
    return elsewhere(cheat, *places_of(env), known_tests(env))


def known_tests(env: SweEnv) -> str:
    """Return the names of the tests that the workspace holds."""
    assert env._project is not None
    found = [
        name
        for path, data in env._base.items()
        if env._project.layout.is_test(path)
        for name in re.findall(r"def (test\w*)", data.decode("utf-8", "replace"))
    ]
    return " ".join(found)


@pytest.mark.parametrize("cheat", list(FORGERIES)[::QUICK])
async def test_a_forgery_bites_where_the_tests_run_once_and_are_believed(cheat, host):
    """The control: what it tells is what honest work tells."""
    file = open_tasks("sample").files[0]
    project, record = sample_project(), file.tasks[_BITTEN.get(cheat, 0)]
    broken = broken_files(project, record)
    [path] = broken
    code = FORGERIES[cheat].replace("@KNOWN@", record.shown[0].partition("::")[2])
    forged = {path: (broken[path] or b"") + code.encode()}
    runner = await project_runner(host, project, packages_folder())
    honest = await runner.run(broken, record.fail_to_pass, timeout_s=60.0)
    found = await runner.run(forged, [*record.fail_to_pass, *file.pass_to_pass(record)],
                            timeout_s=60.0)  # fmt: skip
    assert not honest.passed(record.fail_to_pass)
    assert found.passed(record.fail_to_pass), found.problem


async def score_elsewhere(cheat: str, project: str) -> float:
    """Play a cheat on the first task of a shipped project; return the reward."""
    env = SweEnv(project=project, reward="partial")
    try:
        split = "train" if env._set.count("train") else "test"
        await env.reset(seed=0, options={"task": f"{env.name}/{split}/0"})
        await env.step(env.say("bash", command=elsewhere(cheat, *places_of(env), known_tests(env))))
        _, reward, terminated, _, _ = await env.step(env.say("submit"))
        assert terminated
        return reward
    finally:
        await env.close()


def places_of(env: SweEnv) -> tuple[str, str]:
    """Return the file that is broken, and where the tests are."""
    assert env._project is not None
    return next(iter(env._broken)), env._project.layout.tests[0]


def elsewhere(cheat: str, file: str, tests: str, known: str = "") -> str:
    """Return the script of a cheat for another project than the sample."""
    if cheat in FORGERIES:
        return f"cat >> {file} <<'PY'\n\n{FORGERIES[cheat].replace('@KNOWN@', known)}\nPY"
    if cheat in _IN_CODE:
        code = _IN_CODE[cheat].replace("/workspace/tests", f"/workspace/{tests}")
        # Behind what Python wants to come first; the functions are defined all the same.
        return f"cat >> {file} <<'PY'\n{code}\nPY"
    folder = file.rpartition("/")[0] or "."
    script = _IN_SHELL[cheat].replace("src/tally", folder)
    return re.sub(r"\btests\b(?!\.)", tests, script)


async def test_there_are_at_least_forty_and_honest_work_is_not_taken_for_one(host):
    assert len({*_IN_SHELL, *_IN_CODE, *FORGERIES}) >= 40
    env = SweEnv(tasks="sample")
    try:
        await env.reset(seed=0, options={"task": tasks()[0]})
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
        assert (await env.step(action))[1] == 1.0
        assert env.judge_result is not None
        assert not env.judge_result.is_forged
    finally:
        await env.close()


@pytest.mark.parametrize(
    "cheat", ["never run a test", "reports that always passed", "forge the protocol"]
)
async def test_results_that_are_forged_in_the_process_of_the_tests_are_found_out(cheat, host):
    env = SweEnv(tasks="sample")
    try:
        assert await submitted(env, tasks()[0], in_code(_IN_CODE[cheat])) == 0.0
        assert env.judge_result is not None
        assert env.judge_result.is_forged or env.judge_result.problem
    finally:
        await env.close()


async def test_a_patch_that_knows_the_shown_case_only_fails_the_hidden_ones(host):
    """Repair exactly what the shown test asks, by looking at which test runs."""
    file = open_tasks("sample").files[0]
    project, packages = sample_project(), packages_folder()
    record = next(r for r in file.tasks if len(r.hidden) and r.kind == "bug")
    broken = broken_files(project, record)
    [path] = broken
    good, bad = project.files[path], broken[path]
    shown = record.shown[0].partition("[")[0].rpartition("::")[2]
    both = (
        f"import os as _os\n_GOOD, _BAD = {good.decode()!r}, {bad.decode()!r}\n"
        "_names = {}\nexec(_GOOD, _names)\n_good = dict(_names)\n_names = {}\nexec(_BAD, _names)\n"
        "def _either(n):\n"
        "    def f(*a, **k):\n"
        f"        known = {shown!r} in _os.environ.get('PYTEST_CURRENT_TEST', '')\n"
        "        return (_good if known else _names)[n](*a, **k)\n"
        "    return f\n"
        "for _n, _v in list(_names.items()):\n"
        "    if not _n.startswith('_'):\n"
        "        globals()[_n] = _either(_n) if callable(_v) else _v\n"
    )
    verdict = await judge(
        host, project, broken, Patch(files={path: both.encode()}), 
        fail_to_pass=record.fail_to_pass, pass_to_pass=(), packages=packages, timeout_s=60.0,
    )  # fmt: skip
    assert not verdict.is_resolved
    assert set(record.shown).isdisjoint(verdict.failures)


async def test_walking_slowly_into_the_time_limit_scores_nothing(host):
    file = open_tasks("sample").files[0]
    project, record = sample_project(), file.tasks[0]
    slow = {"src/tally/__init__.py": b"import time\ntime.sleep(600)\n"}
    verdict = await judge(
        host, project, broken_files(project, record), Patch(files=slow), 
        fail_to_pass=record.fail_to_pass, pass_to_pass=file.pass_to_pass(record),
        packages=packages_folder(), timeout_s=3.0,
    )  # fmt: skip
    assert (verdict.is_resolved, verdict.fixed) == (False, 0.0)
    assert "slow" in verdict.problem


async def test_a_giant_file_is_left_out_with_a_word_and_honest_work_beside_it_counts(host):
    env = SweEnv(tasks="sample")
    try:
        await env.reset(seed=0, options={"task": tasks()[0]})
        await env.step(env.say("bash", command="head -c 100000000 /dev/zero > src/tally/big.py"))
        while (action := env.expert_action()) != env.say("submit"):
            await env.step(action)
        observation, reward, _, _, _ = await env.step(action)
        assert reward == 1.0
        assert "src/tally/big.py: larger than" in observation["text"]
    finally:
        await env.close()

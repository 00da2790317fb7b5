import pytest

from turngym.environments.core.limits import TurnLimit
from turngym.environments.terminal.env import TerminalEnv
from turngym.environments.workspace.base import Budget, as_budget
from turngym.environments.workspace.outputs import cut, normalise
from turngym.errors import ConfigError


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("3 passed in 0.12s", "3 passed in N.NNs"),
        ("<object at 0x7f3a12b45678>", "<object at 0xADDR>"),
        ("0xff stays", "0xff stays"),
        ("-rw-r--r-- 1 a a 5 Nov 22 03:27 x", "-rw-r--r-- 1 a a 5 TIME x"),
        ("2026-11-22 03:27:01,123 INFO", "TIME INFO"),
        ("Sun Nov 22 03:27:46 UTC 2026", "TIME"),
        ("/tmp/tmpabc12345/f", "/tmp/NAME/f"),
        ("/tmp/pytest-of-agent/pytest-3/x", "/tmp/NAME/x"),
        ("\x1b[31mred\x1b[0m\r\nnext\x07", "red\nnext"),
        ("\x1b7\x1b[1mtput\x1b(B\x1b[m\x1b8 \x1bPq#0\x1b\\\x1b=\x1bcend", "tput end"),
        ("version 1.2.3", "version 1.2.3"),
    ],
)
def test_what_differs_from_run_to_run_is_put_in_one_form(raw, seen):
    assert normalise(raw) == seen


def test_short_output_is_whole():
    assert cut("a\nb\n", 10) == "a\nb\n"


def test_a_long_output_keeps_whole_lines_of_both_ends_and_says_what_is_gone():
    text = "".join(f"line {n}\n" for n in range(1000))
    shown = cut(text, 200)
    head, note, tail = shown.partition("[...")
    assert head.startswith("line 0\n")
    assert tail.endswith("line 999\n")
    assert len(head) > len(tail.partition("...]\n")[2])
    kept = head.count("\n") + tail.partition("...]\n")[2].count("\n")
    assert f" {1000 - kept} lines" in note + tail


def test_what_was_gone_before_is_told_too():
    assert " characters and 77 bytes more left out " in cut("line\n" * 1000, 200, gone=77)
    assert cut("a\nb", 10, gone=77) == "a\nb\n[... 77 bytes left out ...]"


def test_one_long_line_is_cut_too():
    assert len(cut("x" * 100_000, 500)) < 600


def test_a_budget_counts_announces_and_extends():
    budget = Budget(turns=3, extensions=1, extension_turns=2)
    assert [budget.left(turn, 0) for turn in range(4)] == [3, 2, 1, 0]
    assert budget.left(3, 1) == 2
    assert budget.notice(2) == "\n[2 turns left]"
    assert Budget(announce=False).notice(2) == ""
    with pytest.raises(ConfigError, match=r"budget\.turns"):
        Budget(turns=0)


def test_a_setting_of_a_budget_that_does_not_exist_is_refused_and_an_old_one_says_the_new():
    assert as_budget({"turns": 3}, 9) == Budget(turns=3)
    assert as_budget(None, 9).turns == 9
    with pytest.raises(ConfigError, match=r"'is_told' \(new name: 'announce'\)"):
        as_budget({"is_told": False}, 9)
    with pytest.raises(ConfigError, match=r"unknown setting 'turn'; known: turns, announce"):
        as_budget({"turn": 3}, 9)


def test_turns_that_are_announced_are_those_of_the_nearer_limit():
    env = TerminalEnv(kind="sum_column", budget={"turns": 5})
    assert env._notice() == "\n[5 turns left]"
    env.episode_limits = [TurnLimit(max_turns=2)]
    assert env._notice() == "\n[2 turns left]"
    env._turns = 2
    assert env._notice() == "\n[all turns are spent]"

"""The Python verbs refuse what cannot be meant, and say what broke."""

import logging
import traceback
from pathlib import Path

import pytest

import turngym
from turngym.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"split": "dev"}, "unknown split 'dev'. Known: test, train"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        turngym.evaluate("text/maze", "expert", **settings)  # type: ignore[arg-type]


def test_an_agent_that_breaks_is_no_silent_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = turngym.evaluate("text/maze", lambda: "go north", episodes=3)
    assert found.success is None
    [record] = caplog.records
    assert record.getMessage().startswith("text/maze: 3 of 3 episodes broke: act: TypeError: ")


def test_an_error_is_shown_without_the_search_for_an_event_loop(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        turngym.train("demo", "env.options.difficulty=insane", out=tmp_path)
    assert "event loop" not in "".join(traceback.format_exception(caught.value))


def test_where_the_expert_cannot_play_it_is_said_what_for(tmp_path: Path) -> None:
    who = r"\(the expert plays for warm_start\.episodes, the tokenizer of model\.type='tiny'\)"
    with pytest.raises(ConfigError, match=rf"they begin with \['go'\] {who}"):
        turngym.train("demo", 'warm_start.noise_commands=["dance"]', out=tmp_path)

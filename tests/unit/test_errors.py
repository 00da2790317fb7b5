import pickle

import pytest

from turngym import errors
from turngym.errors import TurnGymError, missing_extra, unknown_name


def subclasses(kind):
    return [kind, *(deeper for child in kind.__subclasses__() for deeper in subclasses(child))]


ALL = [kind for kind in subclasses(TurnGymError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_error_survives_pickling_with_its_message(kind):
    error = pickle.loads(pickle.dumps(kind("maze-v0: it broke")))
    assert type(error) is kind
    assert str(error) == "maze-v0: it broke"


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_each_error_is_drawn_in_the_docstring_of_the_module(kind):
    assert kind.__name__ in str(errors.__doc__)


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ConfigError", ValueError),
        ("UnknownNameError", KeyError),
        ("MissingExtraError", ImportError),
        ("EpisodeError", RuntimeError),
        ("TrainingError", RuntimeError),
        ("RecordError", ValueError),
        ("CheckError", AssertionError),
    ],
)
def test_each_branch_refines_a_builtin(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


def test_an_unknown_name_proposes_the_nearest_whatever_its_letter_case():
    error = unknown_name("environment", "text/MAZ", ["text/maze", "text/Wordle"])
    assert str(error) == "unknown environment 'text/MAZ'. Did you mean 'text/maze'?"


def test_an_unknown_name_without_a_near_one_lists_what_is_known_or_gives_the_hint():
    assert str(unknown_name("mode", "zzz", ["b", "a"])) == "unknown mode 'zzz'. Known: a, b"
    assert str(unknown_name("mode", "zzz", ["b"], hint="See x.")) == "unknown mode 'zzz'. See x."


def test_a_missing_extra_says_how_to_install_it():
    assert str(missing_extra("environment 'text/babyai'", "babyai")) == (
        "environment 'text/babyai' needs the extra 'babyai': pip install 'turngym[babyai]'"
    )

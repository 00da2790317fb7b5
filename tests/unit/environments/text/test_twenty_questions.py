import pytest

from turngym.environments.text.twenty_questions import (
    GuessCityEnv,
    QuestionGame,
    QuestionState,
    TwentyQuestionsEnv,
)

OPEN = QuestionState(("lyon", "paris", "oslo", "lima"), "oslo")


def env_at(state, *, difficulty="easy"):
    env = GuessCityEnv(difficulty=difficulty)
    env.reset(seed=0)
    env.state = state
    return env


def test_the_open_book_shows_the_traits_of_every_candidate():
    text = env_at(OPEN).describe()
    assert text == (
        "which city? lyon europe. paris europe capital big. "
        "oslo europe capital coastal. lima capital coastal big."
    )


def test_the_open_book_says_who_is_left_and_what_tells_them_apart():
    env = env_at(OPEN)
    said = [env.step(f"ask {trait}")[0]["text"] for trait in ("coastal", "europe")]
    assert said == ["yes. left oslo lima. differ europe big.", "yes. only oslo."]


def test_the_closed_book_only_answers():
    env = env_at(OPEN, difficulty="medium")
    assert env.describe() == "candidates: lyon, paris, oslo, lima."
    said = [env.step(f"ask {trait}")[0]["text"] for trait in ("coastal", "asia")]
    assert said == ["coastal yes.", "asia no."]


@pytest.mark.parametrize(
    ("guess", "text", "reward"),
    [("Oslo", "right.", 1.0), ("paris", "wrong.", 0.0), ("tokyo", "wrong.", 0.0)],
)
def test_any_guess_at_a_city_ends_the_game(guess, text, reward):
    observation, got, terminated, _, info = env_at(OPEN).step(f"guess {guess}")
    assert (observation["text"], got, terminated) == (text, reward, True)
    assert info["score"] == reward


def test_guessing_something_else_ends_nothing():
    observation, _, terminated, _, info = env_at(OPEN).step("guess atlantis")
    assert info["invalid_action"] == "there is no city 'atlantis'."
    assert observation["text"] == info["invalid_action"]
    assert not terminated


def test_an_unknown_question_names_the_known_ones():
    observation, _, terminated, _, info = env_at(OPEN).step("ask nice weather")
    assert info["invalid_action"] == "there is no question 'nice weather'."
    assert "ask: europe, asia, africa, capital, coastal, big." in observation["text"]
    assert not terminated


def test_a_repeated_question_is_answered_and_marked():
    env = env_at(OPEN)
    first = env.step("ask coastal")[0]["text"]
    observation, *_, info = env.step("ask coastal")
    assert observation["text"] == first
    assert info["invalid_action"] == "You asked that before."
    assert "ask coastal" not in env.legal_actions()


@pytest.mark.parametrize("game", [GuessCityEnv, TwentyQuestionsEnv])
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_questions_tell_all_candidates_apart(game, difficulty):
    env = game(difficulty=difficulty)
    for seed in range(20):
        env.reset(seed=seed)
        names = env.state.candidates
        assert len(names) == env.settings["candidates"]
        assert len({env._facts[name] for name in names}) == len(names)


@pytest.mark.parametrize("game", [GuessCityEnv, TwentyQuestionsEnv])
def test_the_expert_finds_everything_in_the_hard_game_within_twenty_turns(game):
    env = game(difficulty="hard")
    env.reset(seed=0)
    names = env.state.candidates
    for secret in names:
        env.reset(seed=0)
        env.state = QuestionState(names, secret)
        for _ in range(20):
            _, reward, terminated, _, _ = env.step(env.expert_action())
            if terminated:
                break
        assert (reward, terminated) == (1.0, True), secret


@pytest.mark.parametrize(
    ("city", "traits", "absent"),
    [
        ("nairobi", {"africa", "kenya", "capital", "southern", "big"}, {"coastal", "western"}),
        ("quito", {"south america", "southern", "western", "tropical"}, {"big"}),
        ("oslo", {"europe", "norway", "monarchy", "coastal"}, {"eu", "tropical"}),
    ],
)
def test_city_traits_follow_from_the_table(city, traits, absent):
    facts = GuessCityEnv.facts()[city]
    assert traits <= facts
    assert not absent & facts


def test_every_animal_has_at_most_one_class():
    classes = {"mammal", "bird", "reptile", "amphibian", "fish", "insect"}
    facts = TwentyQuestionsEnv.facts()
    assert all(len(traits & classes) <= 1 for traits in facts.values())
    assert all({"meat", "plants"} - traits for traits in facts.values())
    assert all({"big", "small"} - traits for traits in facts.values())


def test_the_game_plays_over_any_table():
    class Tools(QuestionGame):
        name = "tools"
        thing = "tool"
        difficulties = {"easy": {"candidates": 3}}  # noqa: RUF012

        @classmethod
        def facts(cls):
            return {
                "saw": frozenset({"teeth", "metal"}),
                "hammer": frozenset({"metal"}),
                "mallet": frozenset(),
            }

    env = Tools()
    _, info = env.reset(seed=1)
    assert set(env.state.candidates) == {"saw", "hammer", "mallet"}
    assert "You may ask: metal, teeth." in info["instructions"]
    over = False
    while not over:
        _, reward, over, _, _ = env.step(env.expert_action())
    assert reward == 1.0

"""Tasks of the phone differ and repeat, and its site keeps what it is told and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import quote

import pytest

from turngym import registry
from turngym.environments.desktop.names import PHONE_TASK_TYPES
from turngym.environments.desktop.phone.site import APPS, PhoneSite
from turngym.environments.desktop.phone.tasks import PhoneWorld, phone_tasks


def test_every_kind_is_registered():
    assert {one.short_name for one in registry.match("phone/*")} == {
        f"phone/{kind}" for kind in PHONE_TASK_TYPES
    }


@pytest.mark.parametrize("kind", PHONE_TASK_TYPES)
def test_a_seed_names_a_problem_and_splits_share_none(kind):
    every = phone_tasks(kind)

    def problems(split):
        problems = [every.problem(every.task(split, index)) for index in range(12)]
        assert all(problem.wanted != problem.start or problem.truth for problem in problems)
        return [(problem.prompt, str(problem.start)) for problem in problems]

    train, test = problems("train"), problems("test")
    assert train == problems("train")
    assert len(set(train)) == 12
    assert not set(train) & set(test)


@pytest.mark.parametrize(
    ("kind", "answer", "score"),
    [("note-delete", None, 1), ("note-delete", "done", 1), ("contact-find", None, 0),
     ("contact-find", "done", 0)],
)  # fmt: skip
async def test_an_answer_counts_where_one_is_asked_for(kind, answer, score):
    every = phone_tasks(kind)
    problem = every.problem(every.task("train", 0))
    world = PhoneWorld(device=None, state=problem.wanted, answer=answer)
    assert await problem.judge(world) == score
    if problem.truth is not None:
        joined = problem.truth.replace(" ", "")
        for form in (f" {problem.truth}. ", joined, f"{joined[:3]}-{joined[3:]}"):
            assert await problem.judge(replace(world, answer=form)) == 1
        assert await problem.judge(replace(world, answer=f"{problem.truth}0")) == 0


async def test_a_contact_that_is_made_anew_is_the_same_wherever_it_is_kept():
    every = phone_tasks("contact-change")
    problem = every.problem(every.task("train", 0))
    kept = problem.wanted["contacts"]
    for contacts, score in ((kept[1:] + kept[:1], 1), (kept + kept[:1], 0), (kept[1:], 0)):
        world = PhoneWorld(device=None, state={**problem.wanted, "contacts": contacts})
        assert await problem.judge(world) == score


def test_the_site_keeps_what_its_applications_save_and_nothing_else():
    every = phone_tasks("note-add")
    start = every.problem(every.task("train", 0)).start
    site = PhoneSite(start)
    assert json.loads(site("/state").body) == start
    assert site(f"/save?app=notes&value={quote(json.dumps([{'title': 'a & b'}]))}").status == 200
    assert site.state["notes"] == [{"title": "a & b"}]
    assert start["notes"] != site.state["notes"]
    for path in ("/save?app=passwords&value=1", "/save?app=notes&value={", "/save?app=notes"):
        assert site(path).status == 400
    assert site("/../site.py").status == 404
    assert {site(f"/{app}").status for app in (*APPS, "", "phone.js", "phone.css")} == {200}

"""The checks of one task. Each returns what it saw, or raises what is wrong with it.

Ids are those of OpenEnv's validation policy where one means the same. Order matters: later checks
use what earlier ones played.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from random import Random
from statistics import median_high

from turngym.check_report import Broken, Doubtful, Evidence, NotRun
from turngym.seeding import derive_seed
from turngym.tasks.base import Task
from turngym.tasks.check import library
from turngym.tasks.check.leaks import LEFT, answer_in_prompt, hunt, in_prompt, read_hunt
from turngym.tasks.check.sets import interval
from turngym.tasks.check.subject import (
    Moves,
    Played,
    Seat,
    Subject,
    after_expert,
    as_expert,
    by_chance,
    finish,
    giving,
    hand_in,
    must_lose,
    must_win,
    running,
    silent,
    visiting,
)

Check = Callable[[], Evidence]
_SILENT_TURNS = 120
_CHANCE_EPISODES = 6
_REPEATING_S = 4.0
_LUCK = 0.25
"""How often chance may surely win."""
_AHEAD_S = 400 * 86_400.0
"""How far the clock is moved: more than a year, so that every part of a date is another."""
_PROMISE = re.compile(
    r"(nothing|no other \w+|everything|anything|all) else|change nothing|"
    r"leave .{0,40}as (it|they) ",
    re.IGNORECASE,
)
"""What a prompt says whose judge must notice any other change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is played."""

    runs: int = 20
    """Most repetitions by which flakes are found; time may make it fewer."""
    cheats: int | None = 12
    """Cheats on a Python project, besides those that fit any shell; None for all."""
    parallel: int = 2
    """Episodes at once."""


class TaskChecks:
    """The checks of one task of a subject.

    Args:
        subject: What is played.
        task: Which task of it.
        settings: How much is played.
    """

    def __init__(self, subject: Subject, task: Task, settings: Settings | None = None) -> None:
        self._subject, self._task = subject, task
        self._settings = settings or Settings()
        self._opening = Played(name="opening")
        self._experts: list[Played] = []
        self._negatives: list[Played] = []
        self._actions: frozenset[str] = frozenset()
        self._has_menu = False

    def all(self) -> list[tuple[str, Check, bool]]:
        """Return id, check and whether it is required, in order."""
        return [
            ("semantic.floor_gap", self.floor, True),
            ("semantic.oracle_max", self.expert, True),
            ("runtime.reward_well_formed", self.rewards, True),
            ("runtime.episode_determinism", self.determinism, True),
            ("runtime.episode_isolation", self.isolation, True),
            ("semantic.verifier_determinism", self.flakes, True),
            ("semantic.verifier_portability", self.elsewhere, False),
            ("portability.clock", self.clock, False),
            ("semantic.canary_floor", self.own_cheats, False),
            ("statistical.adversarial_floor", self.cheats, False),
            ("mutation.solution", self.spoiled, False),
            ("mutation.judge", self.parts, False),
            ("mutation.collateral", self.damage, False),
            ("semantic.no_solution_leakage", self.prompt_leaks, False),
            ("runtime.oracle_containment", self.containment, False),
            ("statistical.gameability_gap", self.chance, False),
            ("semantic.resource_envelope", self.cost, True),
        ]

    def startup(self) -> Evidence:
        """Open the task, and see what can be done in it: ``runtime.startup``."""

        def look(seat: Seat) -> Iterator[str | None]:
            samples = {"answer": {"text": "x"}, "bash": {"command": "true"}, "goto": {"url": "x"}}
            names = ("bash", "answer", "submit", "stop", "goto")
            found = [one for one in names if seat.say(one, **samples.get(one, {})) is not None]
            self._actions, self._has_menu = frozenset(found), bool(seat.menu())
            yield None

        self._opening = opening = self._play("opening", look)
        if opening.fault:
            raise Broken(str(opening))
        # Not all scripts have blanks between words, nor have sums.
        if len(re.findall(r"[a-z]+|[^\W_]", opening.prompt.casefold())) < 2:
            raise Broken(f"the opening says nothing: {opening.prompt[:60]!r}")
        return {"prompt": opening.prompt[:400], "actions": sorted(self._actions)}

    # Who does nothing.

    def floor(self) -> Evidence:
        """Give 0 for silence, for handing in at once, and for work that changes nothing."""
        played = [self._play("silence", silent, max_turns=_SILENT_TURNS)]
        if self._actions & {"submit", "stop"}:
            played.append(self._play("handing in at once", hand_in))
        if "bash" in self._actions:
            played.append(self._play("a command that does nothing", running("true")))
        if "answer" in self._actions:
            played.append(self._play("an empty answer", giving("")))
        self._negatives += played
        return must_lose(played, "is paid for nothing")

    def expert(self) -> Evidence:
        """Give the expert 1, three times."""
        self._experts = [self._play(f"expert, run {n}", as_expert) for n in (1, 2, 3)]
        return must_win(self._experts)

    def rewards(self) -> Evidence:
        """Keep scores in [0, 1], and pay who wins more than who does not."""
        for one in (*self._experts, *self._negatives):
            if one.score is not None and not 0.0 <= one.score <= 1.0:
                raise Broken(f"{one.name}: the score {one.score!r} is not in [0, 1]")
            if not math.isfinite(one.reward):
                raise Broken(f"{one.name}: the return is {one.reward!r}")
        best = max(one.reward for one in self._experts)
        for one in self._negatives:
            if one.is_over and one.reward >= best:
                raise Broken(f"{one.name} earns {one.reward:g}, the expert {best:g}")
        return {"expert": best, "others": {one.name: one.reward for one in self._negatives}}

    # Is it the same every time?

    def determinism(self) -> Evidence:
        """Begin alike every time, and answer the expert alike."""
        for one in (*self._experts, *self._negatives):
            if not one.fault and (one.prompt, one.key) != (self._opening.prompt, self._opening.key):
                raise Broken(f"{one.name}: begins otherwise than before",
                             first=self._opening.prompt[:300], then=one.prompt[:300])  # fmt: skip
        first = self._experts[0]
        for one in self._experts[1:]:
            if one.actions != first.actions or one.texts != first.texts:
                turn = next((n for n, pair in enumerate(zip(first.texts, one.texts, strict=False))
                             if pair[0] != pair[1]), 0)  # fmt: skip
                raise Doubtful(f"{one.name}: sees something else after action {turn + 1}",
                               first=first.texts[turn], then=one.texts[turn])  # fmt: skip
        return {"episodes": len(self._experts) + len(self._negatives)}

    def isolation(self) -> Evidence:
        """Have episodes that do not notice each other: at the same time, and one after another."""
        moves = [
            ("expert at the same time", as_expert),
            ("idle at the same time", self._idle()),
        ] * 2
        with ThreadPoolExecutor(len(moves)) as threads:
            played = list(threads.map(lambda one: self._play(*one), moves))
        # One after the other, so both in the same environment: the one that was free last.
        played += [self._play("expert again", as_expert), self._play("idle after", self._idle())]
        must_win(played[::2])
        return must_lose(played[1::2], "is paid for what another did")

    def flakes(self) -> Evidence:
        """Judge alike every time; the rate of flakes has an interval."""
        played, started = list(self._experts), time.perf_counter()
        idle: list[Played] = []
        while len(played) < self._settings.runs:
            if time.perf_counter() - started > _REPEATING_S and len(played) > 3:
                break
            more = self._all([(f"expert, run {len(played) + 1}", as_expert),
                              (f"idle, run {len(played) + 1}", self._idle())])  # fmt: skip
            played.append(more[0])
            idle.append(more[1])
        wrong = [one for one in played if not one.won]
        wrong += [one for one in idle if one.fault or (one.score or 0.0) > 0]
        runs = len(played) + len(idle)
        low, high = interval(len(wrong), runs)
        found = {"runs": runs, "flakes": len(wrong), "interval": [round(low, 3), round(high, 3)]}
        if wrong:
            raise Broken(f"{len(wrong)} of {runs} runs are judged otherwise: {wrong[0]}", **found)
        return found

    def elsewhere(self) -> Evidence:
        """Give the expert 1 in other processes, with other hash seeds."""
        return self._same_elsewhere(self._others[0].result(), "in another process")

    def clock(self) -> Evidence:
        """Give the expert 1 more than a year from now."""
        return self._same_elsewhere(self._others[1].result(), "with the clock moved")

    @cached_property
    def _others(self) -> list[Future[Played]]:
        """What other processes played, side by side: one with another hash seed, one later."""
        play = partial(self._subject.expert_elsewhere, self._task)
        with ThreadPoolExecutor(self._settings.parallel) as threads:
            asked = ((7, 0.0), (1, _AHEAD_S))
            return [threads.submit(play, hash_seed=seed, clock_s=ahead) for seed, ahead in asked]

    def _same_elsewhere(self, one: Played, where: str) -> Evidence:
        if not one.won:
            raise Broken(f"{where}: {one}", prompt=one.prompt[:300])
        if one.prompt != self._opening.prompt:
            raise Broken(f"{where} the task is another", here=self._opening.prompt[:300],
                         there=one.prompt[:300])  # fmt: skip
        return {one.name: one.score}

    # Who cheats.

    def own_cheats(self) -> Evidence:
        """Give 0 to every cheat that the task's author wrote."""
        cheats = self._subject.cheats(self._task)
        if not cheats:
            raise NotRun("the task brings no cheats of its own")
        played = self._all(list(cheats.items()))
        self._negatives += played
        return must_lose(played, "scores")

    def cheats(self) -> Evidence:
        """Give 0 to every cheat that fits the family."""
        moves: list[tuple[str, Moves]] = []
        prompt = self._opening.prompt
        if "bash" in self._actions:
            moves += [
                (one.name, running(library.shell_script(one, prompt)))
                for one in library.recipes("shell")
                if one.fits(prompt)
            ]
            moves += self._repository_cheats()
        if "answer" in self._actions:
            answers = library.cheating_answers(prompt, self._right_answer() or "")
            moves += [(f"answer: {name}", giving(text)) for name, text in answers.items()]
        if "goto" in self._actions:
            moves += [(f"goto {one.text}", visiting(one.text)) for one in library.recipes("page")]
        if not moves:
            raise NotRun("no cheat of the library fits a task without shell, answer or page")
        played = [one for one in self._all(moves) if not _did_nothing(one)]
        self._negatives += played
        return must_lose(played, "scores")

    def _repository_cheats(self) -> list[tuple[str, Moves]]:
        """Return cheats on the tests of a Python project, where the task is one."""
        found = self._footprint
        files = [path for path in found["changed"] if path.endswith(".py")]
        tests = [path for path in found["tests"] if path.endswith(".py")]
        if not files or not tests:
            return []
        folder = tests[0].rpartition("/")[0] or "."
        every = list(library.recipes("repository"))
        if (number := self._settings.cheats) is not None and number < len(every):
            every = Random(derive_seed(0, "cheats", self._task.id)).sample(every, number)
        known = " ".join(found["names"])
        return [
            (one.name, running(library.repository_script(one, files[0], folder, known)))
            for one in every
        ]

    @cached_property
    def _footprint(self) -> dict[str, list[str]]:
        """What the expert changes and leaves, which tests there are, and their names."""
        look = (
            "echo; find . -type f -cnewer /tmp/.turngym-start -not -path './.git/*' "
            "-printf 'changed %P\\n' | head -20; find . -name 'test*.py' -printf 'tests %P\\n' | "
            "head -20; grep -rhoE '^ *(async )?def test\\w*' --include='test*.py' . | "
            f"sed 's/.*def /names /' | head -80; {LEFT}"
        )
        played = self._play("what the expert changes", after_expert(library.START, look))
        found: dict[str, list[str]] = {"changed": [], "tests": [], "names": [], "left": []}
        for line in "\n".join(played.texts[-2:]).splitlines():
            kind, _, value = line.partition(" ")
            if kind in found and value:
                found[kind].append(value)
        return found

    def chance(self) -> Evidence:
        """Rarely win by chance, in the time that the expert takes."""
        if not self._has_menu:
            raise NotRun("it offers no menu of actions to choose from")
        played, started = list[Played](), time.perf_counter()
        turns = len(self._experts[0].actions)
        while len(played) < _CHANCE_EPISODES:
            seed = derive_seed(0, "chance", len(played))
            name = f"chance, run {len(played) + 1}"
            played.append(self._play(name, by_chance(seed), max_turns=turns))
            if time.perf_counter() - started > _REPEATING_S and len(played) > 1:
                break
        self._negatives += [one for one in played if not one.won]
        won = sum(one.won for one in played)
        low, high = interval(won, len(played))
        found = {"won": won, "of": len(played), "interval": [round(low, 3), round(high, 3)]}
        if low > _LUCK:
            raise Broken(f"chance wins {won} of {len(played)} episodes", **found)
        return found

    # Is the judge strict enough?

    def spoiled(self) -> Evidence:
        """Give less than 1 to work that was the expert's and has been made worse."""
        answer = self._right_answer()
        if "bash" in self._actions:
            played = self._spoiled("spoil")
        elif answer is not None:
            spoiled = library.spoiled_answers(answer)
            played = self._all([(name, self._answering(text)) for name, text in spoiled.items()])
        else:
            played = self._all(self._cut_short())
        if not played:
            raise NotRun("nothing of what the expert does can be made worse")
        self._negatives += played
        return must_lose(played, "still wins", most=0.999)

    def _spoiled(self, kind: library.Family) -> list[Played]:
        """Play what spoils the expert's work; return the episodes in which it changed anything."""
        scripts = {one.name: library.spoiling_script(one) for one in library.recipes(kind)}
        played = self._all([(k, after_expert(library.START, text)) for k, text in scripts.items()])
        # What that command says comes before what handing in does.
        said = ((one, one.texts[-2].split()) for one in played if len(one.texts) > 1)
        return [one for one, words in said if library.SPOILED in words]

    def _cut_short(self) -> list[tuple[str, Moves]]:
        actions = self._experts[0].actions
        if len(actions) - bool(self._actions & {"submit", "stop"}) < 2:
            return []  # one thing is done, and handed in

        def moves(seat: Seat) -> Iterator[str | None]:
            yield from actions[: len(actions) // 2]
            yield finish(seat)

        return [("half of what the expert does", moves)]

    def parts(self) -> Evidence:
        """Have no part of the judge that could be left out unnoticed.

        A judge without one of its parts gives the least of the others. Some negative case must
        then score more than it does: else nothing shows that the part is there. What an expert has
        less or more than a 1 of is no part, but was measured beside them.
        """
        won = [one.parts for one in self._experts if one.parts]
        names = sorted(set[str]().union(*won))
        names = [name for name in names if all(parts.get(name, 1.0) == 1.0 for parts in won)]
        if len(names) < 2:
            raise NotRun("the judge does not say what its parts find")
        lost = [one.parts for one in self._negatives if one.parts]
        cases = [{name: parts[name] for name in names if name in parts} for parts in lost]
        found = {"parts": names, "negatives": len(cases)}
        for name in names:
            if all(parts.get(name, 0.0) >= 1.0 for parts in cases):
                raise Broken(f"the part {name!r} is full in every one of {len(cases)} cases that "
                             "are to lose", **found)  # fmt: skip
        idle = [
            name
            for name in names
            if not any(
                parts.get(name, 1.0) < 1.0
                and all(value >= 1.0 for other, value in parts.items() if other != name)
                for parts in cases
            )
        ]
        if idle:
            raise Doubtful(
                f"without {', '.join(idle)} the judge would find the same in every case; add a "
                "cheat that only this part catches", **found,
            )  # fmt: skip
        return found

    def damage(self) -> Evidence:
        """Take work as lost whose author broke something else on the way."""
        if "bash" not in self._actions:
            raise NotRun("there are no files to break")
        played = self._spoiled("damage")
        self._negatives += [one for one in played if not one.won]
        unnoticed = [one.name for one in played if one.won]
        found = {one.name: one.score for one in played}
        if unnoticed and _PROMISE.search(self._opening.prompt):
            raise Broken(f"the prompt forbids it, yet it wins: {'; '.join(unnoticed)}", **found)
        if unnoticed:
            raise Doubtful(f"the judge does not look at it: {'; '.join(unnoticed)}", **found)
        return found

    # Does the answer lie about?

    def prompt_leaks(self) -> Evidence:
        """Keep the answer and the expert's script out of what is seen first."""
        prompt, truth = self._opening.prompt, self._right_answer()
        if truth is not None and (place := answer_in_prompt(prompt, truth)):
            raise Broken(f"the opening holds the answer {truth!r}", place=place)
        if "bash" in self._actions:
            script = "\n".join(self._experts[0].actions)
            if place := in_prompt(prompt, script):
                raise Broken("the opening holds a line of the expert's script", place=place)
        elif truth is None:
            raise NotRun("no right answer is known")
        return {"characters": len(prompt)}

    def containment(self) -> Evidence:
        """Keep the answer out of files, variables and history that the agent can read."""
        if "bash" not in self._actions:
            raise NotRun("it has no shell to look around with")

        def moves(seat: Seat) -> Iterator[str | None]:
            yield seat.say("bash", command=hunt(self._experts, self._footprint["left"]))

        # What the expert leaves is known from its own episode; here the task is as it begins.
        seen = self._play("looking around", moves).texts
        if found := read_hunt("".join(seen), self._opening.prompt):
            raise Broken(f"the agent can read {found[0]}", found=found)
        return {"looked": "files, variables, history"}

    def cost(self) -> Evidence:
        """Report what an episode of the expert costs."""
        first, seconds = self._experts[0], median_high(one.seconds for one in self._experts)
        return {"turns": len(first.actions), "seconds": round(seconds, 3),
                "characters": sum(map(len, first.texts))}  # fmt: skip

    # Helpers.

    def _play(self, name: str, moves: Moves, *, max_turns: int = 500) -> Played:
        return self._subject.play(self._task, moves, name=name, max_turns=max_turns)

    def _all(self, moves: Sequence[tuple[str, Moves]]) -> list[Played]:
        """Play several episodes, some at a time."""
        with ThreadPoolExecutor(self._settings.parallel) as threads:
            return list(threads.map(lambda one: self._play(*one), moves))

    def _idle(self) -> Moves:
        """Return the quickest way to do nothing."""
        if self._actions & {"submit", "stop"}:
            return hand_in
        if "answer" in self._actions:
            return giving("")
        return silent

    def _right_answer(self) -> str | None:
        if "answer" not in self._actions:
            return None
        return next((one.truth for one in (self._opening, *self._experts) if one.truth), None)

    def _answering(self, text: str) -> Moves:
        """Return the expert's moves with another answer."""

        def moves(seat: Seat) -> Iterator[str | None]:
            while True:
                action = seat.expert()
                yield seat.say("answer", text=text) if seat.named(action) == "answer" else action

        return moves


def _did_nothing(played: Played) -> bool:
    return bool(played.texts) and played.texts[0].strip().startswith(library.NOTHING_TO_DO)

"""Tasks on a phone-shaped browser, judged on what its applications keep."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Unpack

from turngym.environments.core.actions import Action
from turngym.environments.desktop.actions import PHONE_KEYS, TOUCHES
from turngym.environments.desktop.device_env import DeviceOptions, ProblemEnv
from turngym.environments.desktop.phone.device import HEIGHT, WIDTH, WebPhone
from turngym.environments.desktop.phone.site import HOME, HOST, PhoneSite
from turngym.environments.desktop.phone.tasks import GENERATORS, PhoneProblem, sample_problem
from turngym.environments.web.browser import BrowserHost, require_browser
from turngym.errors import unknown_name
from turngym.tasks.base import Task

_MAX_SCROLLS = 6
"""Times in a row that the expert scrolls before it gives up."""


class PhoneEnv(ProblemEnv):
    """One kind of task on a phone with small applications.

    Args:
        kind: Which, for example ``"contact-add"``; see ``GENERATORS``.
        options: As ``DeviceEnv``.

    Action: tapping, swiping, typing and keys; see ``turngym.environments.desktop.actions``.
    Observation: the goal, the title of the screen, what happened besides, and the screen's parts.
    Reward: 1 at ``stop`` or ``answer`` when all that the applications keep, and the answer, are
        exactly as the goal wants them, else 0.
    Start: the home screen of a fresh phone.
    End: ``stop`` or ``answer``.
    """

    actions: ClassVar[tuple[str, ...]] = TOUCHES
    menu_keys: ClassVar[tuple[str, ...]] = PHONE_KEYS
    size = (WIDTH, HEIGHT)
    rules = (
        "You use a phone to reach the goal. Elements that can be acted on have a number in "
        "brackets; scroll down to see more. Dragging swipes, a right click presses long, key back "
        "and key home are the phone's buttons. Say stop when the goal is reached."
    )

    problem: PhoneProblem

    def __init__(self, *, kind: str, **options: Unpack[DeviceOptions]) -> None:
        if kind not in GENERATORS:
            raise unknown_name("kind of phone task", kind, GENERATORS)
        self.name = f"phone-{kind}"
        super().__init__(**options)
        require_browser()
        self.kind = kind
        self._host: BrowserHost | None = None
        self._site = PhoneSite({})
        self._done_steps = 0
        """Steps of the expert's script that were carried out."""
        self._scrolls = 0

    def open_device(self, task: Task) -> WebPhone:
        """Sample the problem, and return a phone that shows its home screen."""
        problem = sample_problem(self.kind, Random(task.seed), task.split)
        self._begin_problem(problem)
        self._done_steps = self._scrolls = 0
        self._site = PhoneSite(problem.start)
        if self._host is None:
            self._host = BrowserHost.lease()
        return WebPhone(self._host, {HOST: self._site}, HOME)

    def perform(self, action: Action) -> str | None:
        """Carry out ``action``, and note whether the expert would have done it."""
        step, said = self._step(), self.say(action.name, **action.arguments)
        if step is None:
            self._scrolls += 1
        elif said == self.say(step.name, **step.arguments):
            self._done_steps += 1
            self._scrolls = 0
        return super().perform(action)

    def is_done(self, answer: str | None) -> bool:
        """Compare all that the applications keep, and the answer, with what is wanted."""
        given = None if answer is None else answer.strip()
        return self._site.state == self.problem.wanted and given == self.problem.truth

    def expert_action(self) -> str:
        """Return the next step of the problem's script, or a scroll where it is not in view."""
        if self._done_steps >= len(self.problem.script):
            return self._expert_end()
        if (step := self._step()) is not None:
            return self.say(step.name, **step.arguments)
        if self._scrolls < _MAX_SCROLLS:
            return self.say("scroll", direction="down")
        return self.say("stop")

    def release(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.release()

    def _step(self) -> Action | None:
        """Return the script's next action; None when what it names is not on the screen."""
        if self._done_steps >= len(self.problem.script):
            return None
        step = self.problem.script[self._done_steps]
        try:
            return step if isinstance(step, Action) else step(self.view)
        except LookupError:
            return None

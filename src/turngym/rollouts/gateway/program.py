r"""A whole agent program, unchanged, whose model is the policy: played, evaluated and trained.

The program is the environment of its own model: what it asks next is what is seen, and the answer
is the action. So rollouts, credit, resuming and evaluation are those of every environment.

    turngym train demo --out runs/mine env.id=turngym:ProgramEnv \
        env.options.command="python agent.py" env.options.inner=text/maze
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Literal

from turngym.agents.serving.http import serving
from turngym.environments.core.actions import Action, function_tool
from turngym.environments.core.env import AsyncTurnEnv, Outcome
from turngym.environments.core.spaces import ShownText
from turngym.environments.gym.hosts import as_async
from turngym.environments.gym.registration import make
from turngym.errors import ConfigError, EnvironmentFault, require_known
from turngym.rollouts.gateway.asking import ProgramSide, program_app
from turngym.rollouts.gateway.hosted import HostedEnv
from turngym.tasks.base import Split, Task
from turngym.types import StopReason

_ENDINGS = ("fault", "end")
_TAIL_BYTES = 4096
_LONGEST_VARIABLE = 100_000
"""Letters; Linux starts no program with one of 128 KiB."""


class Words:
    """Actions that are whatever a model says."""

    def instructions(self) -> str:
        """Return nothing: the program says how to act."""
        return ""

    def parse(self, text: str) -> Action:
        """Return ``text`` as it is."""
        return Action(name="say", arguments={"text": text})

    def render(self, action: Action) -> str:
        """Return the text of ``action``."""
        return str(action.arguments["text"])

    def tools(self) -> list[dict[str, Any]]:
        """Return the one action."""
        return [function_tool("say", "Say something.", {"text": {"type": "string"}}, ["text"])]


class ProgramEnv(AsyncTurnEnv):
    """The conversation that a program has with its model; each answer of the model is a turn.

    The program is started anew for each episode and speaks OpenAI's API (chat completions or
    responses, whole or streamed, with tools) at ``OPENAI_BASE_URL``, or Anthropic's at
    ``ANTHROPIC_BASE_URL``. How answers are sampled is
    the policy's matter. ``TURNGYM_TASK`` holds the task as JSON, and so does ``TURNGYM_URL``/task.

    Action: the model's answer; a tool call in it reaches the program as such.
    Observation: what the program says since the last answer, in ``info["messages"]`` as messages.
        Where it has rewritten what was said before, the conversation begins anew.
    Reward: of the inner environment, which the program acts on at ``TURNGYM_URL``/act or
        ``TURNGYM_MCP_URL``; without one, what the program posts to ``TURNGYM_URL``/end.
    Start: the program's first question.
    End: terminated when the program ends, or asks on although the inner environment is over.

    Args:
        command: The program, as in a shell, or its words.
        inner: The environment that it acts on; "" for a program that has its own.
        inner_options: What ``inner`` is made with.
        folder: Where the program runs; here by default.
        variables: More environment variables.
        pictures: Show the images of its questions to models that see, one a message; else a
            question with one is refused.
        timeout_s: Longest time that the program takes between an answer and its next question, or
            its end.
        crash: What an exit code other than 0 is: ``"fault"``, so that the episode does not count,
            or ``"end"``, which judges what is there.
        render_mode: ``"ansi"`` or None.
    """

    name = "program"
    speaks = True
    action_format = Words()

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        inner: str = "",
        inner_options: Mapping[str, Any] | None = None,
        folder: str = "",
        variables: Mapping[str, str] | None = None,
        pictures: bool = False,
        timeout_s: float = 600.0,
        crash: Literal["fault", "end"] = "fault",
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.command = shlex.split(command) if isinstance(command, str) else list(command)
        if not self.command:
            raise ConfigError("program: command is empty; wanted how it is started")
        require_known("program: crash", crash, _ENDINGS)
        self.timeout_s, self.crash, self._pictures = timeout_s, crash, pictures
        if pictures:
            self.observation_space = ShownText()
        self._folder, self._variables = folder or None, dict(variables or {})
        self._hosted: HostedEnv | None = None
        if inner:
            env = as_async(make(inner, **(inner_options or {})))
            self._hosted = HostedEnv(env, env_id=inner, options=inner_options)
        self._server: AsyncExitStack | None = None
        self._url = ""
        self._side: ProgramSide | None = None
        self._running: _Running | None = None
        self._last_line = ""

    @property
    def instructions(self) -> str:
        """Nothing: the program says what its model should know."""
        return ""

    def count(self, split: Split) -> int | None:
        """Return the number of tasks of the inner environment, or None."""
        return None if self._hosted is None else self._hosted.env.count(split)

    def task(self, split: Split, index: int) -> Task:
        """Return a task of the inner environment; else a seed for the program."""
        if self._hosted is None:
            return super().task(split, index)
        return self._hosted.task(index, split)

    def find_task(self, task_id: str) -> Task:
        """See `EpisodeCore.find_task`."""
        return super().find_task(task_id) if self._hosted is None else self._hosted.task(task_id)

    async def begin(self, task: Task) -> Outcome:
        """Start the program and wait for its first question.

        Raises:
            ConfigError: There is no such program.
            EnvironmentFault: It ended before it asked anything, or takes too long.
        """
        await self._stop()
        given: dict[str, Any] = {"id": task.id, "split": task.split, "seed": task.seed}
        if self._hosted is not None:
            seed = int(self.np_random.integers(1 << 31))
            opening = await self._hosted.reset(task, seed=seed)
            given["instructions"] = self._hosted.instructions_in_text
            given |= {"observation": opening.text, "tools": self._hosted.tools}
        if self._server is None:
            server = AsyncExitStack()
            app = program_app(lambda: self._side)
            self._url = await server.enter_async_context(serving(app))
            self._server = server
        side = self._side = ProgramSide(self._hosted, given, shows_pictures=self._pictures)
        await self._start(side)
        outcome = await self._next(side)
        if outcome.terminated or outcome.truncated:
            raise self._fault("it ended before it asked its model anything")
        found = {**(outcome.info or {}), "max_turns": None}  # limits, too, are the program's to say
        if self._hosted is not None and self._hosted.ground_truth is not None:
            found["ground_truth"] = self._hosted.ground_truth
        outcome.info = found
        return outcome

    async def turn(self, action: Action) -> Outcome:
        """Give the program its model's answer and wait for its next question.

        Raises:
            EnvironmentFault: It broke, or takes too long.
        """
        side = self._side
        assert side is not None
        text = str(action.arguments["text"])
        side.answer(text.encode(errors="replace").decode())  # half of a unicode pair
        return await self._next(side)

    def score(self) -> float | None:
        """Return the score of the inner environment; else what the program has said."""
        if self._side is None:
            return None
        return self._side.score if self._hosted is None else self._hosted.score()

    async def end_at_limit(self) -> Outcome | None:  # type: ignore[override]  # may be one
        """End the program; what it left of the inner environment is judged."""
        await self._stop()
        if self._hosted is None or self._hosted.is_over:
            return None
        return Outcome(text="The program was ended.", reward=await self._hosted.end())

    # The rest says something of programs that act as their model says, word for word.

    def state_key(self) -> str | None:
        """Return that of the inner environment."""
        return None if self._hosted is None else self._hosted.env.state_key()

    def potential(self) -> float | None:
        """Return that of the inner environment."""
        return None if self._hosted is None else self._hosted.env.potential()

    def answer(self, ground_truth: str) -> str | None:
        """Return that of the inner environment."""
        return None if self._hosted is None else self._hosted.env.answer(ground_truth)

    def legal_actions(self) -> list[str] | None:
        """Return those of the inner environment."""
        return None if self._hosted is None else self._hosted.env.legal_actions()

    def expert_action(self) -> str:
        """Return what the expert of the inner environment would say.

        Raises:
            ConfigError: There is none.
        """
        found: str = (
            super().expert_action() if self._hosted is None else self._hosted.env.expert_action()
        )
        return found

    async def close(self) -> None:
        """End the program and the server that it speaks to."""
        await self._stop()
        server, self._server = self._server, None
        if server is not None:
            await server.aclose()
        if self._hosted is not None:
            await self._hosted.close()

    async def _start(self, side: ProgramSide) -> None:
        base, task = f"{self._url}/episodes/{side.key}", json.dumps(side.task)
        if len(task) > _LONGEST_VARIABLE:
            task = json.dumps({key: side.task[key] for key in ("id", "split", "seed")})
        variables = {
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_BASE": f"{base}/v1",
            "OPENAI_API_KEY": side.key,
            "ANTHROPIC_BASE_URL": base,
            "ANTHROPIC_API_KEY": side.key,
            "TURNGYM_URL": base,
            "TURNGYM_MCP_URL": f"{base}/mcp",
            "TURNGYM_TASK": task,
        }
        if (hosted := self._hosted) is not None:
            said = f"{hosted.instructions}\n\n{hosted.observation}"
            prompt = said.replace("\0", "?").strip()  # which no variable holds
            if len(prompt) <= _LONGEST_VARIABLE:
                variables["TURNGYM_PROMPT"] = prompt
        self._running = _Running(
            self.command, env={**os.environ, **variables, **self._variables}, cwd=self._folder
        )
        try:
            await asyncio.shield(self._running.started)
        except OSError as error:
            what = error.filename or self.command[0]
            raise ConfigError(f"program: {what!r} cannot be used: {error.strerror}") from error
        except (TypeError, ValueError) as error:
            raise ConfigError(f"program: command or variables: {error}") from error

    async def _next(self, side: ProgramSide) -> Outcome:
        """Return the next question, or the end."""
        running = self._running
        assert running is not None
        asking = asyncio.ensure_future(side.next_question())
        both: set[asyncio.Future[Any]] = {asking, running.ended}
        try:
            done, _ = await asyncio.wait(
                both, timeout=self.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not asking.done():
                asking.cancel()
        hosted, code = self._hosted, running.ended.result() if running.ended.done() else None
        if asking in done and not (hosted is not None and hosted.is_over):
            return await asyncio.to_thread(side.shown, asking.result())  # pictures take long
        if asking in done:
            side.asked = asking.result()  # which the end answers
        await self._stop()
        if not done:
            raise self._fault(f"no question and no end within {self.timeout_s:g} s")
        if asking not in done and code and self.crash == "fault":
            raise self._fault(f"exit code {code}")
        if side.error is not None:
            raise self._fault(f"it says that it broke: {side.error[:300]}")
        reward = side.take_reward()
        if hosted is not None and not hosted.is_over:
            reward += await hosted.end()
        reason = None if hosted is None else hosted.stop_reason
        is_cut = reason not in (None, StopReason.TERMINATED)
        is_judged = hosted is not None and hosted.judged_at_limit
        return Outcome(
            text="The program is over.", reward=reward, terminated=not is_cut, truncated=is_cut,
            info={"judged_at_limit": is_judged} if is_cut else None,
        )  # fmt: skip

    def _fault(self, what: str) -> EnvironmentFault:
        said = f": {self._last_line}" if self._last_line else ""
        return EnvironmentFault(f"program {shlex.join(self.command)!r}: {what}{said}")

    async def _stop(self) -> None:
        if self._side is not None:
            self._side.close()
        if self._running is not None:  # it stays, for `close`, where this is cancelled
            self._last_line = await self._running.stop()
            self._running = None


class _Running:
    """A program, and what it writes.

    A thread of its own starts it and waits for its end: to start a program blocks.

    Args:
        command: The program and its arguments.
        env: Its environment variables.
        cwd: Its folder; None for the one of this process.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[int] = self._loop.create_future()
        """Its process id, or why it cannot be started."""
        self.ended: asyncio.Future[int] = self._loop.create_future()
        """Its exit code."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the program
        threading.Thread(target=self._run, args=(command, env, cwd), daemon=True).start()

    def _run(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        try:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        except Exception as error:  # noqa: BLE001 - it is raised where the start is awaited
            return self._note(self.started.set_exception, error)
        self._note(self.started.set_result, process.pid)
        return self._note(self.ended.set_result, process.wait())

    def _note(self, act: Callable[[Any], None], found: object) -> None:
        with suppress(RuntimeError):  # the loop is over, and who waits in it
            self._loop.call_soon_threadsafe(act, found)

    async def stop(self) -> str:
        """Kill it, with what it has started, and return the last line that it wrote."""
        with suppress(Exception):  # it did not start, or is over
            os.killpg(await asyncio.shield(self.started), signal.SIGKILL)
        if self.started.exception() is None:
            await asyncio.shield(self.ended)
        with self._output as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

"""An environment that the gateway plays for an outside agent: its tools are all that the agent has.

They are offered over HTTP and MCP (Model Context Protocol), one address per episode. The agent can
neither reset nor step nor judge; the environment's rewards go to the trajectory alone.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turngym.agents.remote.images import png
from turngym.environments.core.actions import Action, ActionFormat, InvalidAction, JsonTools
from turngym.environments.gym.hosts import as_async
from turngym.errors import ConfigError, EnvironmentFault, missing_extra
from turngym.faults import Boundary
from turngym.rollouts.gateway.episodes import Episode
from turngym.tasks.base import Split, Task
from turngym.types import StopReason

if TYPE_CHECKING:
    from starlette.applications import Starlette


OVER = "The episode is over; nothing more can be done."


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """What came of one tool call."""

    text: str
    image: Any = None
    reward: float = 0.0
    invalid_action: str | None = None
    stop_reason: StopReason | None = None
    """Why the episode ended with this call; None when it goes on."""
    score: float | None = None


class HostedEnv:
    """One environment, spoken to by tool calls.

    Args:
        env: An environment of ours, limits included; its calls do not hold up the server.
        env_id: Its name in trajectories.
        split: Which tasks are played.
    """

    def __init__(self, env: Any, *, env_id: str, split: Split = "train") -> None:
        self.env_id = env_id
        self._env: Any = as_async(env)
        self._split = split
        self._over = True
        format: ActionFormat = self._env.action_format
        self._format = format
        self._checker = JsonTools(format.tools())
        self.instructions = str(self._env.rules)
        self.observation = ""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The actions as OpenAI-style function descriptions."""
        return self._format.tools()

    def task(self, chosen: int | str) -> Task:
        """Return a task by its number or its id.

        Raises:
            ConfigError: There is none of that id.
        """
        if isinstance(chosen, int):
            task: Task = self._env.task(self._split, chosen)
        else:
            task = self._env.find_task(chosen)
        return task

    async def reset(self, task: Task, *, seed: int) -> None:
        """Begin an episode; ``observation`` is then what the agent should see."""
        with Boundary("reset", EnvironmentFault, ConfigError):
            found = await self._env.reset(seed=seed, options={"task": task})
        self.observation = found[0]["text"]
        self._over = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Carry out one tool call.

        A call that is none is carried out too: the environment says what is wrong, and counts it.

        Raises:
            EnvironmentFault: The environment broke.
        """
        if self._over:
            return ToolAnswer(text=OVER)
        try:
            with Boundary("step", EnvironmentFault):
                step = await self._env.step(self._action(name, arguments))
                observation, reward, terminated, truncated, info = step
        except EnvironmentFault:
            self._over = True
            raise
        self._over = bool(terminated or truncated)
        self.observation = observation["text"]
        fallback = StopReason.TERMINATED if terminated else StopReason.TRUNCATED_ENV
        stop = StopReason(info.get("stop_reason", fallback)) if self._over else None
        score = info.get("score")
        return ToolAnswer(
            text=observation["text"],
            image=observation.get("image"),
            reward=float(reward),
            invalid_action=info.get("invalid_action"),
            stop_reason=stop,
            score=None if score is None else float(score),
        )

    async def close(self) -> None:
        """Close the environment."""
        self._over = True
        await self._env.close()

    def score(self) -> float | None:
        """Return success in [0, 1] if the episode ended now, or None.

        Raises:
            EnvironmentFault: The environment's judge broke.
        """
        with Boundary("score", EnvironmentFault):
            score = self._env.score()
            return None if score is None else float(score)

    def _action(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a call in the environment's own words."""
        as_json = self._checker.render(Action(name=name, arguments=dict(arguments)))
        parsed = self._checker.parse(as_json)
        return as_json if isinstance(parsed, InvalidAction) else self._format.render(parsed)


Find = Callable[[Any], Episode | None]
"""The HTTP request to the episode that its key opens, None when there is none."""
Call = Callable[[Episode, str, dict[str, Any]], Awaitable[ToolAnswer]]

PATH = "/episodes/{episode}/mcp"


def mcp_app(find: Find, call: Call) -> Starlette:
    """Return the ASGI application that speaks MCP at ``/episodes/KEY/mcp``.

    Args:
        find: Looks an episode up.
        call: Carries a tool call out.

    Raises:
        MissingExtraError: The extra ``mcp`` is not installed.
    """
    try:
        import mcp.types as types
        from mcp.server import Server
        from mcp.server.transport_security import TransportSecuritySettings
    except ImportError as error:
        raise missing_extra("MCP", "mcp") from error

    def episode_of(context: Any) -> Episode:
        episode = find(context.request)
        if episode is None or episode.hosted is None:
            raise ValueError("there is no such episode, or it is over")
        return episode

    async def list_tools(context: Any, params: Any) -> Any:
        episode = episode_of(context)
        assert episode.hosted is not None
        functions = [tool["function"] for tool in episode.hosted.tools]
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=function["name"],
                    description=function.get("description", ""),
                    input_schema=function["parameters"],
                )
                for function in functions
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        try:
            answer = await call(episode_of(context), params.name, dict(params.arguments or {}))
        except EnvironmentFault as fault:
            return types.CallToolResult(
                content=[types.TextContent(type="text", text=str(fault))], is_error=True
            )
        content: list[Any] = [types.TextContent(type="text", text=answer.text)]
        if answer.image is not None:
            data = base64.b64encode(png(answer.image)).decode()
            content.append(types.ImageContent(type="image", data=data, mime_type="image/png"))
        return types.CallToolResult(content=content, is_error=answer.invalid_action is not None)

    server = Server("turngym", on_list_tools=list_tools, on_call_tool=call_tool)
    return server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        json_response=True,
        # The gateway's own guard looks at Host and Origin before this application is asked.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )

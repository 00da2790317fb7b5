"""A hosted environment's tools over MCP (Model Context Protocol), one address per episode.

Only tools are offered: listed, and called. There is no tool to reset, to step or to judge.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from turngym.agents.remote.images import png
from turngym.errors import EnvironmentFault, missing_extra
from turngym.rollouts.gateway.episodes import Episode
from turngym.rollouts.gateway.hosted import ToolAnswer

if TYPE_CHECKING:
    from starlette.applications import Starlette

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

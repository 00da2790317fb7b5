"""What clients may ask of the policy server, checked before anything is sampled."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngym.agents.engine.protocol import Sampling
from turngym.agents.serving.http import BadRequest, Json, json_object, nests_too_deep
from turngym.types import Message, Role, ToolCall

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

RequestT = TypeVar("RequestT", bound=BaseModel)

_UNCHANGING: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "best_of": (0, 1),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "structured_outputs": ({},),
    "suffix": ("",),
    "top_k": (0, -1),
    "top_logprobs": (0,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""What OpenAI and vLLM do and we do not, with the values that ask for nothing."""


class SamplingRequest(BaseModel):
    """What both kinds of request share.

    Other fields are ignored, as others do, unless they would change what is sampled.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str
    temperature: float | None = Field(default=1.0, ge=0)
    top_p: float | None = Field(default=1.0, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    n: int | None = Field(default=1, ge=1, le=1)
    """One answer a request; ask again for more."""
    return_token_ids: bool = False

    def sampling(self, default_max_tokens: int) -> Sampling:
        """Return how to sample.

        Raises:
            BadRequest: A field asks for what this server does not do.
        """
        for name, asked in (self.model_extra or {}).items():
            if asked is not None and asked not in _UNCHANGING.get(name, (asked,)):
                raise BadRequest(f"{name}: this server cannot do that; leave it out")
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            max_new_tokens=self.limit or default_max_tokens,
            stop=tuple(filter(None, stop)),
        )

    @property
    def limit(self) -> int | None:
        """Most new tokens, where the client says so."""
        return self.max_tokens

    @property
    def returns_usage(self) -> bool:
        """The last chunk of a stream holds the usage."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatRequest(SamplingRequest):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    """The model calls a tool or does not; nothing here makes it."""
    logprobs: bool | None = False

    @property
    def limit(self) -> int | None:
        """Most new tokens, by either name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        """The tools that may be called.

        Raises:
            BadRequest: One is no function.
        """
        found = [] if self.tool_choice == "none" else self.tools or []
        for number, tool in enumerate(found):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                kind = repr(tool.get("type"))[:40]
                raise BadRequest(f"tools.{number}: wanted a function with a name, got type {kind}")
        return found


class CompletionRequest(SamplingRequest):
    """The body of ``POST /v1/completions``."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None

    @property
    def one_prompt(self) -> str | list[int]:
        """The prompt, which must be a single one.

        Raises:
            BadRequest: It is empty, or there are several.
        """
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise BadRequest("one prompt a request, please")
            prompt = prompt[0]
        if not prompt:
            raise BadRequest("the prompt is empty")
        return prompt  # type: ignore[return-value]  # what is left is a text or a list of ids


def parse(cls: type[RequestT], body: bytes) -> RequestT:
    """Return ``body`` as a request of ``cls``.

    Raises:
        BadRequest: It is none; the message names the first field that is wrong.
    """
    return checked(cls, json_object(body))


def checked(cls: type[RequestT], found: Json) -> RequestT:
    """Return ``found`` as a request of ``cls``, like ``parse``.

    Raises:
        BadRequest: It is none; the message names the field.
    """
    try:
        return cls.model_validate(found)
    except ValidationError as error:
        # Of a text or a list of parts both are found wrong; what is wrong in a part says more.
        deepest = max(error.errors(), key=lambda one: len(one["loc"]))
        parts = [str(part) for part in deepest["loc"]]
        where = ".".join(part for part in parts if not part.startswith("list[")) or "body"
        raise BadRequest(f"{where}: {deepest['msg']}") from None


Show = Callable[[str, Sequence[bytes]], str]
"""Returns a text with the pictures of image files before it or behind it."""


def messages_of(rows: Sequence[Mapping[str, Any]], show: Show | None = None) -> list[Message]:
    """Return ``messages`` of a request as ours.

    Args:
        rows: The messages.
        show: Puts in pictures; None for a model that sees none.

    Raises:
        BadRequest: A role or a content that this model does not take.
    """
    return [_message(row, number, show) for number, row in enumerate(rows)]


def _message(row: Mapping[str, Any], number: int, show: Show | None) -> Message:
    role = _ROLES.get(str(row.get("role")))
    if role is None:
        raise BadRequest(f"messages.{number}.role: unknown role {row.get('role')!r}")
    content, calls = _text(row.get("content"), number, show), row.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest(f"messages.{number}.tool_calls: wanted a list")
    called = tuple(_tool_call(call, number) for call in calls)
    return Message(role=role, content=content, tool_calls=called)


def _text(content: Any, number: int, show: Show | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts, images = list[str](), list[Any]()
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, Mapping) else None
        is_image = kind in ("image_url", "input_image")
        if is_image and show is not None:
            images.append(part.get("image_url"))
        elif kind in ("text", "input_text", "output_text"):
            texts.append(str(part.get("text", "")))
        else:
            reads = "text only" if show is None else "text and images"
            raise BadRequest(
                f"messages.{number}.content: this model reads {reads}, not {kind or 'this'}"
                + (" (an image)" if is_image else "")
            )
    text = "".join(texts)
    try:
        return text if show is None else show(text, [*map(_file, images)])
    except ValueError as error:
        raise BadRequest(
            f"messages.{number}.content: wanted an image as data:image/png;base64,... ({error})"
        ) from error


def _file(found: Any) -> bytes:
    """Return the image file that a part brings along; nothing is fetched for a client."""
    url = str(found.get("url") if isinstance(found, Mapping) else found)
    kind, _, data = url.partition(";base64,")
    if not kind.startswith("data:image/"):
        raise ValueError(f"it is {url[:30]!r}")
    return base64.b64decode(data, validate=True)


def _tool_call(call: Any, number: int) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise BadRequest(f"messages.{number}.tool_calls: wanted functions with name and arguments")
    raw = function.get("arguments") or "{}"
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError):
        arguments = {"arguments": raw}
    if nests_too_deep(arguments):
        arguments = str(raw)
    if not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return ToolCall(name=str(function.get("name")), arguments=arguments)

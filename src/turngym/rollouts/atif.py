"""Episodes in the Agent Trajectory Interchange Format (ATIF 1.8), written and read.

What the format has a place for is there: messages, tool calls, what the environment answered,
token ids with log-probs. The rest (rewards, score, stop reason, versions of the weights) is under
``extra.turngym``, so that a trajectory of ours comes back as it was, but for what only people read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

from turngym.errors import RecordError
from turngym.provenance import VERSION
from turngym.records import from_json
from turngym.rollouts.stop_words import STOP_WORDS
from turngym.types import (
    Message,
    Role,
    StopReason,
    TokenSpan,
    ToolCall,
    Trajectory,
    Turn,
    thought_apart,
    with_thought,
)

Json = dict[str, Any]
FOREIGN = "atif/"
"""Begins the environment's name of an episode that was not played here."""
SCHEMA = "ATIF-v1.8"
_SOURCES = {"system": "system", "assistant": "agent"}
_FACTS = (
    "reward", "player", "invalid_action", "state_key", "potential", "starts_segment",
    "segment_reason",
)  # fmt: skip
_KNOWN = ("final_potential", "ground_truth", "answer", "player")
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")


def to_atif(one: Trajectory, *, name: str) -> Json:
    """Return an episode as a document of the format; ``name`` identifies it in its run."""
    steps: list[Json] = []
    read: tuple[int, ...] = ()
    for number, turn in enumerate(one.turns):
        _add_seen(steps, turn.observation, apart=number == 0 or turn.starts_segment)
        step, read = _agent_step(turn, () if turn.starts_segment else read, number)
        steps.append(step)
    _add_seen(steps, one.final_observation, apart=not one.turns)
    if not steps:  # the format wants one
        steps = [{"source": "system", "message": one.error or "Nothing was said."}]
    for number, step in enumerate(steps, start=1):
        step["step_id"] = number
    facts = {
        "env": one.env_id, "task": one.task_id, "env_seed": one.env_seed,
        "policy_seed": one.policy_seed, "member": one.member, "score": one.score,
        "stop_reason": one.stop_reason.value, "error": one.error,
        "stop_reason_elsewhere": STOP_WORDS[one.stop_reason]._asdict(),
        "has_final_observation": bool(one.final_observation),
        **{key: getattr(one, key) for key in _KNOWN if getattr(one, key) is not None},
        **({"judged_at_limit": True} if one.judged_at_limit else {}),
    }  # fmt: skip
    return {
        "schema_version": SCHEMA,
        "trajectory_id": name,
        "session_id": name,
        "agent": {"name": "turngym", "version": VERSION},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps), "extra": {"return": one.episode_return}},
        "extra": {"turngym": facts},
    }


def _add_seen(steps: list[Json], seen: Sequence[Message], *, apart: bool) -> None:
    """Add messages: as steps of their own, or as what the last action led to."""
    for message in seen:
        if apart or not steps:
            source = _SOURCES.get(message.role, "user")
            step: Json = {"source": source, "message": message.content}
            if source == "agent":
                step |= {"is_copied_context": True, **_called(message, f"seen-{len(steps)}")}
            steps.append(step | {"extra": {"turngym": {"role": message.role}}})
        else:
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({"content": message.content, "extra": {"role": message.role}})


def _agent_step(turn: Turn, read: tuple[int, ...], number: int) -> tuple[Json, tuple[int, ...]]:
    """Return a turn's step, and all tokens of the segment after it."""
    facts = {key: getattr(turn, key) for key in _FACTS if getattr(turn, key) is not None}
    if turn.reward_parts:
        facts["reward_parts"] = dict(turn.reward_parts)
    step: Json = {"source": "agent", "message": turn.action.content, "extra": {"turngym": facts}}
    thought, said = thought_apart(turn.action.content)
    if thought and with_thought(thought, said) == turn.action.content:  # else no way back
        step |= {"message": said, "reasoning_content": thought}
    step |= _called(turn.action, f"call-{number}")
    metrics: Json = {
        key: value if key == "cost_usd" else int(value)
        for key, value in turn.usage.items()
        if key in _COUNTS
    }
    after = read + tuple(token for span in turn.spans for token in span.token_ids)
    if sampled := [span for span in turn.spans if span.sampled]:
        first = next(place for place, span in enumerate(turn.spans) if span.sampled)
        before = [token for span in turn.spans[:first] for token in span.token_ids]
        metrics |= {
            "prompt_token_ids": [*read, *before],
            "completion_token_ids": [token for span in sampled for token in span.token_ids],
            "logprobs": [value for span in sampled for value in span.logprobs],
            "extra": {"versions": [v.policy_version for v in sampled for _ in v.token_ids]},
        }
    if metrics:
        step["metrics"] = metrics
    return step, after


def _called(message: Message, prefix: str) -> Json:
    """Return the tool calls of a message, by ids with a ``prefix``, where there are any."""
    calls = [
        {"tool_call_id": f"{prefix}-{number}", "function_name": call.name,
         "arguments": dict(call.arguments)}
        for number, call in enumerate(message.tool_calls)
    ]  # fmt: skip
    return {"tool_calls": calls} if calls else {}


def from_atif(content: Mapping[str, Any], where: str) -> list[Trajectory]:
    """Return the trajectories of a document: its own, then those of its subagents.

    Where it does not say what an episode was worth there is no score, and no reward. Messages say
    ``where`` it stands.

    Raises:
        RecordError: It is of no such format.
    """
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not str(version).startswith("ATIF-v1."):
        raise RecordError(f"{where}: wanted a schema_version ATIF-v1.x, as {SCHEMA}")
    try:
        plain = json.dumps(asdict(_trajectory(content)), ensure_ascii=False)
        found = [from_json(plain.encode(errors="replace"))]  # it has what a record can have
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{where}: no valid {SCHEMA}: {type(error).__name__}: {error}") from error
    for number, inner in enumerate(content.get("subagent_trajectories") or ()):
        found += from_atif(inner, f"{where}: subagent_trajectories[{number}]")
    return found


def read_atif(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file, or of every ``.json`` of the format in a folder.

    Raises:
        RecordError: A file is of no such format.
    """
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            content = json.loads(file.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise RecordError(f"{file}: {error}") from error
        yield from from_atif(content, str(file))


def _trajectory(content: Mapping[str, Any]) -> Trajectory:
    facts = _of_ours(content)
    agent = content["agent"]
    turns: list[Turn] = []
    seen: list[Message] = []
    read: tuple[int, ...] = ()
    for step in content["steps"]:
        text = with_thought(step.get("reasoning_content") or "", _text(step["message"]))
        if step["source"] != "agent" or step.get("is_copied_context"):
            role = "assistant" if step["source"] == "agent" else step["source"]
            role = _of_ours(step).get("role", role)
            seen.append(Message(role=_role(role), content=text, tool_calls=_calls(step)))
        else:
            turn, read = _turn(step, text, tuple(seen), read)
            turns.append(turn)
            seen = []
        for result in (step.get("observation") or {}).get("results") or ():
            role = (result.get("extra") or {}).get("role", "tool")
            seen.append(Message(role=_role(role), content=_text(result.get("content"))))
    return Trajectory(
        env_id=facts.get("env", f"{FOREIGN}{agent['name']}"),
        task_id=facts.get("task", str(content.get("session_id") or "unknown")),
        env_seed=facts.get("env_seed", 0),
        policy_seed=facts.get("policy_seed", 0),
        member=facts.get("member", 0),
        turns=tuple(turns),
        stop_reason=StopReason(facts.get("stop_reason", StopReason.TERMINATED)),
        score=facts.get("score"),
        error=facts.get("error"),
        final_observation=tuple(seen) if facts.get("has_final_observation", True) else (),
        metadata={"agent": f"{agent['name']} {agent['version']}"},
        judged_at_limit=bool(facts.get("judged_at_limit")),
        **{key: facts.get(key) for key in _KNOWN},  # type: ignore[arg-type]
    )


def _turn(
    step: Mapping[str, Any], text: str, seen: tuple[Message, ...], read: tuple[int, ...]
) -> tuple[Turn, tuple[int, ...]]:
    """Return an agent's step as a turn, and all tokens of the segment after it."""
    facts = _of_ours(step)
    metrics = step.get("metrics") or {}
    prompt = tuple(metrics.get("prompt_token_ids") or ())
    if prompt and read and prompt[: len(read)] != read:
        facts = {"segment_reason": "the prompt does not go on from the call before", **facts}
        facts["starts_segment"] = True
    if facts.get("starts_segment"):
        read = ()
    spans = _spans(metrics, prompt[len(read) :])
    turn = Turn(
        observation=seen,
        action=Message(role="assistant", content=text, tool_calls=_calls(step)),
        spans=spans,
        usage={key: float(metrics[key]) for key in _COUNTS if metrics.get(key) is not None},
        **facts,
    )
    return turn, read + tuple(token for span in spans for token in span.token_ids)


def _of_ours(content: Mapping[str, Any]) -> Json:
    return dict((content.get("extra") or {}).get("turngym") or {})


def _calls(step: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(name=call["function_name"], arguments=call["arguments"])
        for call in step.get("tool_calls") or ()
    )


def _spans(metrics: Mapping[str, Any], new: tuple[int, ...]) -> tuple[TokenSpan, ...]:
    """Return the tokens of one call; none where their log-probs are not known."""
    ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
    if not ids or not logprobs or len(ids) != len(logprobs):
        return ()
    versions = (metrics.get("extra") or {}).get("versions") or [0] * len(ids)
    spans = [TokenSpan(token_ids=new, sampled=False)] if new else []
    for version, group in groupby(range(len(ids)), key=lambda place: versions[place]):
        places = list(group)
        spans.append(
            TokenSpan(
                token_ids=tuple(ids[place] for place in places), sampled=True,
                logprobs=tuple(logprobs[place] for place in places), policy_version=version,
            )
        )  # fmt: skip
    return tuple(spans)


def _role(name: Any) -> Role:
    if name not in get_args(Role):
        raise ValueError(f"source {name!r}")
    role: Role = name
    return role


def _text(content: Any) -> str:
    """Return the text of a message; a picture or a sound is named."""
    if isinstance(content, str):
        return content
    parts = content or ()  # some write null where nothing was said
    return "\n".join(part.get("text") or f"[{part['type']}]" for part in parts)

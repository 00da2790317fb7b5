"""The state in which a limit ended an episode, as the policy would have been shown it."""

from __future__ import annotations

from turngym.agents.rendering import Renderer
from turngym.types import Trajectory


def final_prompt(trajectory: Trajectory, renderer: Renderer, *, context: int) -> tuple[int, ...]:
    """Return the tokens that would have followed the last action, up to where the agent speaks.

    They are what the environment answered to it. None when the episode terminated, when nothing was
    answered, or when there is no room for them in ``context`` tokens; then the text just after the
    last action stands for the last state.

    Args:
        trajectory: A whole episode.
        renderer: Of the policy that played it.
        context: Longest text in tokens.
    """
    if not trajectory.stop_reason.is_truncated or not trajectory.final_observation:
        return ()
    starts = [n for n, turn in enumerate(trajectory.turns) if turn.starts_segment or n == 0]
    spans = [span for turn in trajectory.turns[starts[-1] :] for span in turn.spans]
    length = sum(len(span.token_ids) for span in spans)
    ended = spans[-1].token_ids[-1] in renderer.end_ids
    new = renderer.continuation(trajectory.final_observation, hit_eos=ended)
    return new if length + len(new) <= context else ()

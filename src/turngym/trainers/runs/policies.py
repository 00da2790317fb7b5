"""Policies that are not being trained: those of checkpoints, and opponents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from turngym.agents.build import with_parts
from turngym.agents.chat.agent import ChatAgent, EngineModel
from turngym.agents.engine.protocol import Sampling
from turngym.agents.policy import Policy
from turngym.agents.rendering import Renderer
from turngym.agents.scripted import ExpertPolicy, RandomPolicy
from turngym.config import load_config
from turngym.errors import CheckpointError, ConfigError
from turngym.rollouts.players import SELF, OneOf, Versus
from turngym.trainers.settings.train import TrainConfig

if TYPE_CHECKING:
    from turngym.agents.engine.local import LocalEngine


def load_policy(
    path: Path, *, greedy: bool = True, context: int | None = None
) -> ChatAgent[EngineModel[LocalEngine]]:
    """Return the policy of a run's newest checkpoint, or of one checkpoint.

    Args:
        path: Folder of a run or of a checkpoint.
        greedy: Take the likeliest token; otherwise sample as in training.
        context: Longest conversation in tokens, at most what the model was made for; as in
            training by default.

    Raises:
        CheckpointError: There is none, or it is broken.
    """
    from turngym.agents.engine.local import LocalEngine  # these load torch
    from turngym.agents.engine.models import load_model_dir, positions
    from turngym.trainers.runs.checkpoints import find_model, load_checkpoint

    model_dir = find_model(path)
    checkpoint = load_checkpoint(model_dir.parent)
    config = load_config(TrainConfig, [checkpoint.state["config"]])
    model, tokenizer = load_model_dir(model_dir, images=config.model.images)
    wanted = context or config.model.context
    context = min(positions(model) or wanted, wanted)
    engine = LocalEngine(model, tokenizer, context=context)
    sampling = Sampling(
        temperature=0.0 if greedy else config.rollout.temperature,
        max_new_tokens=config.rollout.max_new_tokens,
    )
    renderer = Renderer(tokenizer, tool_calls=config.agent.tool_calls)
    return with_parts(EngineModel(engine, renderer, sampling=sampling), config.agent)


def against(policy: Policy, opponent: str) -> Policy:
    """Return ``policy`` as it plays against an opponent, where several play.

    Args:
        policy: Who is trained or measured.
        opponent: As ``RolloutConfig.opponent``. A run or a checkpoint is sampled as it was in
            training.

    Raises:
        ConfigError: There is no such folder.
    """
    if opponent == SELF:
        return policy
    others = [_opponent(policy, name.strip()) for name in opponent.split(",")]
    return Versus(policy, others[0] if len(others) == 1 else OneOf(tuple(others)))


def _opponent(policy: Policy, opponent: str) -> Policy:
    if opponent == SELF:
        return policy
    scripted: dict[str, type[Policy]] = {"random": RandomPolicy, "expert": ExpertPolicy}
    if opponent in scripted:
        return scripted[opponent]()
    try:
        return load_policy(Path(opponent).expanduser(), greedy=False)
    except CheckpointError as error:  # of the user's choice, not of a run in progress
        known = ", ".join([SELF, *scripted])
        raise ConfigError(f"opponent {opponent!r}: {error}; wanted {known} or a folder") from error

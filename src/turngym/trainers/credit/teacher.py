"""On-policy distillation: a teacher says of every sampled token how likely it should have been.

Axis letters: L position in a sample, A sampled token of a sample, in order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turngym.agents.config import EndpointConfig
from turngym.agents.engine.models import load_model_dir, positions
from turngym.agents.engine.protocol import vision_of
from turngym.agents.policy import ContextOverflow
from turngym.agents.remote.endpoint import Endpoint, HalfAnswer
from turngym.agents.remote.wire import first_choice
from turngym.errors import ConfigError, PolicyFault, TrainingError
from turngym.trainers.credit.base import Credit, CreditContext, CreditMethod
from turngym.trainers.credit.controls import with_samples
from turngym.trainers.samples import FloatArray, TrainingSample
from turngym.trainers.settings.algo import AlgoConfig
from turngym.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

Scores = list[NDArray[np.float32]]
"""Log-probs of the sampled tokens at temperature 1, one array [L] per sample, 0 elsewhere."""


class Teacher(Protocol):
    """Scores what the policy has sampled."""

    async def score(self, samples: Sequence[TrainingSample]) -> Scores:
        """Return the log-probs of the sampled tokens.

        Raises:
            TrainingError: None came.
        """


class TeacherCredit:
    """A ``CreditMethod`` with the advantages of another one, to which a teacher adds its own.

    With l the log-prob of a sampled token it adds ``coefficient * (l_teacher - l_policy)``, of the
    token itself or summed up to the end of ``horizon``, to every token that the method trains on.

    Args:
        method: Whose advantages are added to.
        algo: Its settings, with those of the teacher.
        context: The policy, which the teacher computes beside.

    Source:
        Lu and Thinking Machines Lab 2025, On-Policy Distillation (horizon ``token``); the same as a
        term beside a reward: Agarwal et al. 2024, arXiv:2306.13649, section 3.
    """

    def __init__(
        self, method: CreditMethod, algo: AlgoConfig, context: CreditContext | None
    ) -> None:
        if algo.teacher is None or context is None:
            raise ValueError("TeacherCredit: wanted algo.teacher and a CreditContext")
        self._method, self._config, self._across = method, algo.teacher, algo.advantage.replays
        self._teacher: Teacher = (
            _LocalTeacher(algo.teacher.model, context)
            if algo.teacher.server is None
            else _ServedTeacher(algo.teacher.server)
        )

    async def assign(self, groups: Sequence[TrajectoryGroup]) -> Credit:
        """Return the credit of both.

        Raises:
            TrainingError: As the method does; or the teacher did not answer.
        """
        credit = await self._method.assign(groups)
        samples = credit.samples
        if not samples:
            return credit
        found = await self._teacher.score(samples)
        # Samples of a replay buffer are of other episodes than the batch.
        whose = () if self._across else credit.trajectories
        ratios = [_log_ratios(s, own_L, whose) for s, own_L in zip(samples, found, strict=True)]
        most = self._config.clip or np.inf
        sums = to_go(samples, [np.clip(r, -most, most) for r in ratios], self._config.horizon)
        taught = tuple(
            _with_added(sample, self._config.coefficient * sums_A)
            for sample, sums_A in zip(samples, sums, strict=True)
        )
        kl = -float(np.concatenate(ratios).mean())
        both = with_samples(credit, taught, across=self._across)
        return replace(both, metrics={**both.metrics, "credit/teacher_kl": kl})

    def state(self) -> Mapping[str, Tensor]:
        """Return what the method learned; the teacher learns nothing."""
        return self._method.state()

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self._method.load_state(tensors)


def to_go(
    samples: Sequence[TrainingSample], values: Sequence[FloatArray], horizon: str
) -> list[FloatArray]:
    """Return for each sampled token the sum of values from it to the end of ``horizon``.

    Args:
        samples: A batch; those of one episode in order.
        values: One array [A] per sample.
        horizon: ``token``, ``turn`` or ``episode``.

    Returns:
        One array [A] per sample.
    """
    if horizon == "token":
        return list(values)
    later: defaultdict[int, float] = defaultdict(float)
    found = []
    for sample, values_A in zip(reversed(samples), reversed(values), strict=True):
        sums_A = np.cumsum(values_A[::-1])[::-1]
        if horizon == "turn":
            turns_A = sample.turn_ids[sample.loss_mask]
            ends_A = np.searchsorted(turns_A, turns_A, side="right")
            sums_A = sums_A - np.append(sums_A, 0.0)[ends_A]
        else:
            sums_A = sums_A + later[sample.trajectory]
            later[sample.trajectory] = float(sums_A[:1].sum())
        found.append(sums_A)
    return found[::-1]


def _log_ratios(
    sample: TrainingSample, logprobs_L: NDArray[np.float32], episodes: Sequence[Trajectory]
) -> FloatArray:
    """Return teacher less policy at the sampled tokens, shape [A]."""
    mask_L = sample.loss_mask
    ratios_A = (logprobs_L[mask_L] - sample.behaviour_logprobs[mask_L]).astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(ratios_A))
    if bad.size:
        named = f"{episodes[sample.trajectory].task_id}, " if episodes else ""
        raise TrainingError(
            f"{named}turn {sample.turn_ids[mask_L][bad[0]]}: log-prob under the teacher less that "
            f"under the policy is {ratios_A[bad[0]]}; nothing was trained on it. Look at the "
            "teacher's weights"
        )
    return ratios_A


def _with_added(sample: TrainingSample, added_A: FloatArray) -> TrainingSample:
    advantages_L = sample.advantages.copy()
    advantages_L[sample.loss_mask] += added_A.astype(np.float32)
    return replace(sample, advantages=advantages_L)


class _LocalTeacher:
    """A model beside the learner."""

    def __init__(self, path: str, context: CreditContext) -> None:
        from turngym.trainers.update.compute import place_like
        from turngym.trainers.update.forward import check_packing

        images = vision_of(context.model) is not None
        model, _ = load_model_dir(path, images=images)
        place_like(model.requires_grad_(False), context.model)
        check_packing(model)
        if (seen := vision_of(context.model)) and (sees := vision_of(model)):
            sees.pictures = seen.pictures
        self._model: PreTrainedModel = model
        self._path, self._max_tokens = path, context.max_tokens

    async def score(self, samples: Sequence[TrainingSample]) -> Scores:
        from turngym.trainers.update.forward import score

        longest = max(s.token_ids.size for s in samples)
        room = positions(self._model)
        if room is not None and longest > room:
            raise TrainingError(
                f"algo.teacher.model {self._path!r}: reads {room} tokens at most, and an episode "
                f"has {longest}; set model.context={room}"
            )
        return score(
            self._model,
            [s.token_ids for s in samples],
            [s.loss_mask for s in samples],
            max_tokens=self._max_tokens,
        )


class _ServedTeacher:
    """A server that returns the prompt with its log-probs: vLLM, SGLang and some others."""

    def __init__(self, config: EndpointConfig) -> None:
        self._endpoint = Endpoint(config)

    async def score(self, samples: Sequence[TrainingSample]) -> Scores:
        self._endpoint.enter()
        try:
            async with asyncio.TaskGroup() as asking:
                tasks = [asking.create_task(self._one(s)) for s in samples]
        except* (PolicyFault, ConfigError) as errors:
            raise TrainingError(f"algo.teacher.server: {errors.exceptions[0]}") from errors
        finally:
            await self._endpoint.leave()
        return [task.result() for task in tasks]

    async def _one(self, sample: TrainingSample) -> NDArray[np.float32]:
        ids = sample.token_ids.tolist()
        body = {"model": self._endpoint.config.model, "prompt": ids, "max_tokens": 1}
        asked = {"temperature": 0.0, "echo": True, "logprobs": 1, **self._endpoint.config.extra}
        found: list[float] = []

        def read(answer: Mapping[str, Any]) -> None:
            found[:] = _prompt_logprobs(answer, ids)

        try:
            await self._endpoint.post("/completions", {**body, **asked}, check=read)
        except ContextOverflow as error:
            raise PolicyFault(
                f"{error}: an episode has {len(ids)} tokens, and it has to read them and add one; "
                "start it with a longer --max-model-len, or lower model.context"
            ) from error
        return np.where(sample.loss_mask, np.array(found, np.float32), np.float32(0))


def _prompt_logprobs(answer: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """Return the log-prob of each token of a prompt, 0 for the first, as completions echo them.

    Raises:
        HalfAnswer: There is none of some token.
    """
    found: Any = first_choice(answer).get("logprobs")
    try:
        read = [float(logprob) for logprob in found["token_logprobs"][1 : len(ids)]]
        if len(read) + 1 < len(ids):
            raise ValueError(f"{len(read) + 1} of {len(ids)} tokens")
    except (KeyError, TypeError, ValueError) as error:
        raise HalfAnswer(
            "no log-probs of the prompt, as vLLM and SGLang give them with echo and logprobs"
        ) from error
    return [0.0, *read]

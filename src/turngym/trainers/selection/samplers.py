"""Which tasks of a pool are played next, and how hard each is for the policy as it is now.

Difficulty is a Beta distribution that forgets. Axis letters: K tasks of the pool, A arms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngym.errors import ConfigError
from turngym.trainers.samples import FloatArray
from turngym.trainers.settings.selection import Bandit, CustomSampler, SamplerConfig, Thompson


@dataclass(slots=True)
class SuccessPosterior:
    """Posterior of success at one task: Beta(alpha, beta)."""

    alpha: float = 1.0
    beta: float = 1.0
    attempts: int = 0
    """Scored attempts so far."""
    step: int = 0
    """Step of the last observation."""

    def at(self, step: int, drift: float) -> tuple[float, float]:
        """Return alpha and beta at ``step``, after ``drift`` of them was forgotten each step."""
        left = (1 - drift) ** max(0, step - self.step)
        return 1 + left * (self.alpha - 1), 1 + left * (self.beta - 1)


class Difficulty:
    """Posteriors of success at all tasks of a pool.

    A group with s successes in n attempts makes ``alpha`` into ``(1 - decay)·alpha + decay + s``
    and ``beta`` likewise with the failures, so that a task that is played again and again is known
    by its last groups, and one that is not falls back to Beta(1, 1).

    Args:
        decay: Part that a new group replaces.
        drift: Part that is forgotten with every step.

    Source:
        The update for measured tasks of Trinity-RFT's difficulty estimator; forgetting over time:
        VADE, arXiv:2511.18902.
    """

    def __init__(self, *, decay: float, drift: float) -> None:
        self._decay = decay
        self._drift = drift
        self._posteriors: dict[int, SuccessPosterior] = {}

    def observe(self, task: int, scores: Sequence[float], *, step: int) -> None:
        """Learn from one group.

        Args:
            task: Number of the task in the pool.
            scores: Success of the attempts, each in [0, 1].
            step: When.
        """
        old = self._posteriors.get(task, SuccessPosterior(step=step))
        alpha, beta = old.at(step, self._drift)
        successes, attempts = float(sum(scores)), len(scores)
        self._posteriors[task] = SuccessPosterior(
            alpha=(1 - self._decay) * alpha + self._decay + successes,
            beta=(1 - self._decay) * beta + self._decay + attempts - successes,
            attempts=old.attempts + attempts,
            step=step,
        )

    def parameters(self, tasks: Sequence[int], *, step: int) -> tuple[FloatArray, FloatArray]:
        """Return alpha and beta of tasks, each [K]."""
        unknown = SuccessPosterior(step=step)
        pairs = [self._posteriors.get(task, unknown).at(step, self._drift) for task in tasks]
        values = np.array(pairs, dtype=np.float64).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    def success(self, tasks: Sequence[int], *, step: int) -> FloatArray:
        """Return the estimated success at tasks, [K]; 0.5 for one that was never played."""
        alpha_K, beta_K = self.parameters(tasks, step=step)
        return alpha_K / (alpha_K + beta_K)

    def attempts(self, tasks: Sequence[int]) -> list[int]:
        """Return how many scored attempts at each task were seen."""
        return [b.attempts if (b := self._posteriors.get(t)) is not None else 0 for t in tasks]

    def state(self) -> dict[str, Any]:
        """Return the posteriors as JSON values."""
        return {str(t): [b.alpha, b.beta, b.attempts, b.step] for t, b in self._posteriors.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._posteriors = {int(task): SuccessPosterior(*values) for task, values in state.items()}


def informative(success_K: FloatArray, attempts: int) -> FloatArray:
    """Return the chance that n ``attempts`` at p = ``success_K`` differ, 1 - p^n - (1-p)^n."""
    value_K: FloatArray = 1 - success_K**attempts - (1 - success_K) ** attempts
    return value_K


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTasks:
    """The tasks that a sampler chooses from, and what is known of them."""

    size: int
    """Number of tasks; 0 when they never end."""
    difficulty: Difficulty
    """Posteriors of their success, owned by the caller."""
    group_size: int
    """Attempts at a task."""
    parameter: Callable[[int, str], str]
    """Value of a task's parameter, by place and name."""


class UniformSampler:
    """Chooses the tasks of one step: group number i plays task number i. Base class for others."""

    def __init__(self, config: SamplerConfig, tasks: SampledTasks) -> None:
        """Need nothing."""

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[int]:
        """Return places of tasks; those past the end of the pool come round again.

        Args:
            first: Number of the first group that plays one of them.
            count: Number of groups.
            step: Update that is next.
            rng: Decides what is left to chance.
        """
        return list(range(first, first + count))

    def observe(self, task: int, returns: Sequence[float]) -> None:
        """See the returns of one group."""

    def state(self) -> dict[str, Any]:
        """Return what was learned as JSON values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""


class ThompsonSampler(UniformSampler):
    """Takes the tasks that look most informative under one sample from the posteriors.

    Args:
        config: What counts as informative.
        tasks: To choose from.

    Source:
        VADE, arXiv:2511.18902, from its abstract.
    """

    def __init__(self, config: Thompson, tasks: SampledTasks) -> None:
        self._config = config
        self._tasks = tasks

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[int]:
        """Return the best of the pool, none twice while it lasts."""
        tasks = self._tasks
        alpha_K, beta_K = tasks.difficulty.parameters(range(tasks.size), step=step)
        sampled_K = rng.beta(alpha_K, beta_K)
        score_K = sampled_K * (1 - sampled_K)
        if self._config.score == "informative":
            score_K = informative(sampled_K, tasks.group_size)
        best = np.argsort(-score_K, kind="stable").tolist()
        return [best[i % tasks.size] for i in range(count)]


class BanditSampler(UniformSampler):
    """Draws a category, then a task in it.

    Args:
        config: Category, rate and temperature.
        tasks: To choose from.

    Source:
        SEC, arXiv:2505.14970: an arm pays the mean size of the advantages of its group.
    """

    def __init__(self, config: Bandit, tasks: SampledTasks) -> None:
        self._config = config
        self._tasks = tasks
        self.values: dict[str, float] = {}
        """Value of each arm that was ever paid."""
        self._arms: dict[int, str] = {}

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[int]:
        """Return tasks, drawing an arm for each."""
        members: dict[str, list[int]] = {}
        for task in range(self._tasks.size):
            members.setdefault(self._category(task, step), []).append(task)
        arms = sorted(members)
        weights_A = probabilities([self.values.get(arm, 0.0) for arm in arms], self._config)
        chosen = []
        for _ in range(count):
            arm = arms[int(rng.choice(len(arms), p=weights_A))]
            task = members[arm][int(rng.integers(len(members[arm])))]
            self._arms[task] = arm  # what was sampled, whatever the task's category is later
            chosen.append(task)
        return chosen

    def _category(self, task: int, step: int) -> str:
        if self._config.by != "difficulty":
            return self._tasks.parameter(task, self._config.by)
        success = float(self._tasks.difficulty.success([task], step=step)[0])
        return f"{min(self._config.parts - 1, int(success * self._config.parts))}"

    def observe(self, task: int, returns: Sequence[float]) -> None:
        """Pay the arm that the task was sampled from."""
        if task in self._arms:
            arm, rate = self._arms[task], self._config.rate
            old = self.values.get(arm, 0.0)
            self.values[arm] = rate * advantage_size(returns) + (1 - rate) * old

    def state(self) -> dict[str, Any]:
        """Return the arms' values, and which arm each task was sampled from."""
        return {"values": self.values, "arms": {str(k): v for k, v in self._arms.items()}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.values = dict(state.get("values", {}))
        self._arms = {int(task): arm for task, arm in state.get("arms", {}).items()}


class OwnSampler(UniformSampler):
    """A sampler that the user wrote; what it raises is named, and so is a wrong thing it returns.

    Args:
        config: Names it.
        tasks: To choose from.

    Raises:
        ConfigError: It is not there, or lacks a method.
    """

    def __init__(self, config: CustomSampler, tasks: SampledTasks) -> None:
        self._config = config
        self._sampler = config.made(UniformSampler, tasks)

    def choose(self, first: int, count: int, *, step: int, rng: np.random.Generator) -> list[int]:
        """Return what it chooses.

        Raises:
            ConfigError: These are not ``count`` places.
        """
        with self._config.running():
            found = list(self._sampler.choose(first, count, step=step, rng=rng))
            places = [int(place) for place in found if place == int(place) and place >= 0]
        if not len(places) == len(found) == count:
            raise ConfigError(
                f"{self._config.named}: choose gave {str(found)[:200]}, wanted {count} places of "
                "tasks, 0 or more each"
            )
        return places

    def observe(self, task: int, returns: Sequence[float]) -> None:
        """Show it the returns of one group."""
        with self._config.running():
            self._sampler.observe(task, returns)

    def state(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            ConfigError: It does not consist of JSON values.
        """
        with self._config.running():
            found: dict[str, Any] = self._config.checked(self._sampler.state(), dict, "state")
            if json.loads(json.dumps(found)) != found:
                raise ConfigError(
                    f"{self._config.named}: state is not the same after writing and reading it as "
                    "JSON: wanted lists and keys of text, no tuples and no numbers as keys"
                )
        return found

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        with self._config.running():
            self._sampler.load_state(state)


def probabilities(values_A: Sequence[float], config: Bandit) -> FloatArray:
    """Return ``softmax(value / temperature)``, [A]."""
    logits_A = np.array(values_A, dtype=np.float64) / config.temperature
    grown_A = np.exp(logits_A - logits_A.max())
    shares_A: FloatArray = grown_A / grown_A.sum()
    return shares_A


def advantage_size(returns: Sequence[float]) -> float:
    """Return the mean of ``|R - mean| / std`` of a group; 0 where all returns are the same."""
    values = np.array(returns, dtype=np.float64)
    if len(values) < 2 or np.ptp(values) < 1e-6:
        return 0.0
    return float(np.abs(values - values.mean()).mean() / values.std(ddof=1))

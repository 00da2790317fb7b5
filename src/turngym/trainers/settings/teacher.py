"""Settings of on-policy distillation: who says how likely the sampled tokens should have been."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from turngym.agents.config import EndpointConfig
from turngym.config import StrictModel


class TeacherConfig(StrictModel):
    """A model with the policy's tokenizer that scores every token which the policy samples.

    Each token's advantage grows by ``coefficient`` times the log-prob of the token under the
    teacher less the one that it was sampled with. In expectation that lowers the reverse KL
    divergence, of the policy from the teacher, where the policy itself leads.
    """

    builder: ClassVar[str] = "turngym.trainers.credit.teacher:TeacherCredit"
    bare_key: ClassVar[str | None] = "model"

    model: str = ""
    """A folder as transformers saves it, a name on the model hub, or ``package:NAME``. It
    is loaded beside the learner, in float32."""
    server: EndpointConfig | None = None
    """In place of ``model``: a server that has the teacher, for one that is large. vLLM, SGLang, or
    another one that echoes a prompt with its log-probs."""
    coefficient: float = Field(default=1.0, gt=0)
    """Weight beside the other advantages, in units of advantage per nat."""
    horizon: Literal["token", "turn", "episode"] = "token"
    """How far a token answers for what follows it: for itself alone, for the rest of its turn, or
    for the rest of the episode. Longer is closer to the gradient of the divergence of whole
    episodes, and noisier."""
    clip: float | None = Field(default=None, gt=0)
    """Most nats, up or down, that one token counts; None for no limit."""

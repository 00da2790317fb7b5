"""Routing replay: a mixture-of-experts model computes with the experts that the engine chose.

Engine and learner round differently, and where two experts are nearly as good they choose
differently: then a log-prob is off by far more than by rounding. The choice is replayed, at tokens
that were read as at those that were sampled; its weights are the learner's, with their gradient.

Axis letters: N token of a rectangle, L layer, K expert of a token, T token of a sequence.

Source:
    Ma et al. 2025, arXiv:2510.11370, rollout routing replay (R3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turngym.agents.engine.protocol import Experts
from turngym.errors import ConfigError, TrainingError
from turngym.trainers.update.compute import plain_model, plain_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROUTERS, _GIVEN = "_turngym_routers", "_turngym_experts"
_Routers = tuple[Mapping[int, str], tuple[int, int]]
"""Names of a model's routers by the numbers of their layers; layers, and experts of a token."""
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def set_routing(model: PreTrainedModel, how: Literal["own", "replay"]) -> None:
    """Have the routers of ``model`` take what ``replay`` gives them, or choose for themselves.

    Raises:
        ConfigError: It has no router that is known here.
    """
    if how == "own":
        return
    body = plain_model(model).base_model
    config = body.config.get_text_config()
    names: dict[int, str] = {}
    for name, module in body.named_modules():
        if type(module).__name__.lower().endswith("topkrouter") and (at := _LAYER.search(name)):
            names[int(at[1])] = plain_name(name)
            is_normal = _is_normal(type(module), config)
            setattr(module, _GIVEN, None)
            module.register_forward_hook(partial(_replayed, is_normal=is_normal))
    if not names:
        raise ConfigError(
            f"learner.routing='replay': {type(plain_model(model)).__name__} has no router of "
            "experts that is known here; set learner.routing=own"
        )
    shape = config.num_hidden_layers, config.num_experts_per_tok
    setattr(body, _ROUTERS, (names, shape))


def replay(body: nn.Module, given_NLK: Tensor | None) -> None:
    """Have ``body`` take these experts when it reads a rectangle, and for its gradient.

    Args:
        body: Without its head.
        given_NLK: As ``laid_out`` gives them; None for none.

    Raises:
        TrainingError: They are of another model.
    """
    routers: _Routers | None = getattr(body, _ROUTERS, None)
    if routers is None:
        return
    names, shape = routers
    if given_NLK is not None and tuple(given_NLK.shape[1:]) != shape:
        raise TrainingError(
            f"routing: the engine reports {tuple(given_NLK.shape[1:])} layers and experts of a "
            f"token, the model has {shape}"
        )
    for layer, name in names.items():
        given_NK = None if given_NLK is None else given_NLK[:, layer].long()
        router: Any = body.get_submodule(name)
        while hasattr(router, "base_layer"):  # below its adapters, which a copy may have merged
            router = router.base_layer
        setattr(router, _GIVEN, given_NK)


def laid_out(
    routing: Sequence[Experts | None],
    masks: Sequence[NDArray[np.bool_]],
    token_ids_BT: Tensor,
    *,
    is_packed: bool,
) -> Tensor | None:
    """Return the experts at each token of a rectangle, [N, L, K], -1 where they are not known.

    Args:
        routing: Of its sequences, those on the way to each token; None is returned if all are None.
        masks: Of the same, for their lengths.
        token_ids_BT: The rectangle.
        is_packed: Its sequences lie end to end in one row.
    """
    known = [experts for experts in routing if experts is not None]
    if not known:
        return None
    rows, width = token_ids_BT.shape
    given = np.full((rows * width, *known[0].shape[1:]), -1, dtype=np.int16)
    start = 0
    for row, (experts, mask) in enumerate(zip(routing, masks, strict=True)):
        if not is_packed:  # a row of its own
            start = row * width
        if experts is not None:
            given[start : start + mask.size - 1] = experts[1:]
        start += mask.size
    return torch.from_numpy(given).to(token_ids_BT.device)


def _replayed(router: nn.Module, _: Any, found: Any, *, is_normal: bool) -> Any:
    """Return what ``router`` returns, with the experts that it is given; a forward hook."""
    given_NK: Tensor | None = getattr(router, _GIVEN)
    if given_NK is None:
        return found
    logits, weights, chosen = found
    taken = torch.where(given_NK < 0, chosen, given_NK)
    return logits, _weights(logits, taken, is_normal=is_normal).to(weights.dtype), taken


def _weights(logits_NE: Tensor, chosen_NK: Tensor, *, is_normal: bool) -> Tensor:
    weights_NK = logits_NE.float().softmax(-1).gather(-1, chosen_NK)
    return weights_NK / weights_NK.sum(-1, keepdim=True) if is_normal else weights_NK


def _is_normal(kind: type[nn.Module], config: Any) -> bool:  # of transformers
    """Say whether a router scales the weights of a token's experts to 1, by trying one.

    Raises:
        ConfigError: It weighs them in another way than by the softmax of its logits.
    """
    try:
        router: Any = kind(config)
        for number, weight in enumerate(router.parameters()):
            places = torch.arange(weight.numel(), dtype=torch.float32)
            weight.data = torch.sin(places * (number + 1.7)).reshape(weight.shape)
        with torch.no_grad():
            logits, weights, chosen = router(torch.eye(config.hidden_size))
        for is_normal in (True, False):
            if torch.allclose(_weights(logits, chosen, is_normal=is_normal), weights, atol=1e-5):
                return is_normal
    except (TypeError, ValueError, RuntimeError):  # foreign code: it is another kind of router
        pass
    raise ConfigError(
        f"learner.routing='replay': {kind.__name__} weighs experts in a way that is not known "
        "here; set learner.routing=own"
    )

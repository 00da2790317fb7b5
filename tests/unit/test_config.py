"""What users type, and the line they get back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
from pydantic import Field, ValidationError

from turngym.config import StrictModel, load_config, to_toml
from turngym.errors import ConfigError, UnknownNameError


class Adam(StrictModel):
    type: Literal["adam"] = "adam"
    beta: float = Field(default=0.9, ge=0, lt=1)


class Sgd(StrictModel):
    type: Literal["sgd"]
    momentum: float = 0.0


class Part(StrictModel):
    name: str = "part"
    weight: float = 1.0


class Algo(StrictModel):
    preset_folder: ClassVar[Path | None] = None  # type: ignore[assignment]

    name: str = "custom"
    clip: float = 0.2
    sizes: tuple[int, ...] = Field(default=(1,), min_length=1)
    parts: tuple[Part, ...] = ()


class Place(StrictModel):
    bare_key: ClassVar[str | None] = "id"

    id: str = "here"
    size: int = 1


class Here(StrictModel):
    type: Literal["here"] = "here"


class There(StrictModel):
    type: Literal["there"]
    port: int = 0
    options: dict[str, int] = Field(default_factory=dict)


class Run(StrictModel):
    recipe_folder: ClassVar[Path | None] = None  # type: ignore[assignment]
    renamed: ClassVar[dict[str, str]] = {
        "rate": "lr",
        "algo.parts.*.share": "algo.parts.*.weight",
        "optimizer.type=momentum": "sgd",
    }

    steps: int = Field(default=3, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    label: str = ""
    fast: bool = False
    limit: float | None = None
    optimizer: Annotated[Adam | Sgd, Field(discriminator="type")] = Adam()
    algo: Algo = Algo()
    options: dict[str, int] = Field(default_factory=dict)


class PlacedRun(Run):
    place: Place = Place()
    server: Annotated[Here | There, Field(discriminator="type")] = Here()


class Places(StrictModel):
    places: tuple[Place, ...] = ()
    servers: tuple[Annotated[Here | There, Field(discriminator="type")], ...] = ()


@pytest.fixture
def presets(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "careful.toml").write_text('name = "careful"\nclip = 0.1\n')
    (tmp_path / "bold.toml").write_text('name = "bold"\nsizes = [1, 2]\n')
    Algo.preset_folder = tmp_path
    yield tmp_path
    Algo.preset_folder = None


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "short.toml").write_text("steps = 2\n")
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(Run, "recipe_folder", folder)
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.mark.usefixtures("recipes")
@pytest.mark.parametrize("source", ["short", "configs/short.toml", Path("short")])
def test_a_recipe_is_named_without_a_path_wherever_one_stands(source: str | Path) -> None:
    assert load_config(Run, [source, "label=x"]).steps == 2


@pytest.mark.usefixtures("recipes")
def test_a_file_that_is_there_comes_before_a_recipe() -> None:
    Path("configs").mkdir()
    Path("configs/short.toml").write_text("steps = 7\n")
    assert load_config(Run, ["configs/short.toml"]).steps == 7


@pytest.mark.usefixtures("recipes")
def test_an_unknown_recipe_names_the_nearest_or_all() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown recipe 'shrot'\. Did you mean 'short'"):
        load_config(Run, ["shrot"])
    with pytest.raises(UnknownNameError, match="Known: short; or the path of a TOML file"):
        load_config(Run, ["configs/zzzzzzzz.toml"])
    with pytest.raises(ConfigError, match=r"own/short.toml: cannot be read"):
        load_config(Run, ["own/short.toml"])


def test_a_bare_text_is_the_key_that_a_block_is_named_by() -> None:
    class Journey(StrictModel):
        place: Place = Place()

    found = load_config(Journey, ["place.size=3", "place=there"])
    assert found.place == Place(id="there", size=3)


def complaint(*sources: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(Run, sources)
    return str(caught.value)


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("steps = 5\nlabel = 'x'\n[algo]\nclip = 0.3\nname = 'a'\n")
    second.write_text("[algo]\nclip = 0.4\n")
    found = load_config(Run, [str(first), second, "steps=7"])
    assert (found.steps, found.label, found.algo) == (7, "x", Algo(clip=0.4, name="a"))


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("steps=8", "steps", 8),
        ("lr=3e-6", "lr", 3e-6),
        ("lr=1", "lr", 1.0),
        ("fast=true", "fast", True),
        ("limit=null", "limit", None),
        ("label=hello there=x", "label", "hello there=x"),
        ("label=", "label", ""),
        ('label="3"', "label", "3"),
        ("options.a=1", "options", {"a": 1}),
        ("algo.sizes=[1,2]", "algo", Algo(sizes=(1, 2))),
    ],
)
def test_the_type_of_the_field_decides_what_an_override_means(
    override: str, field: str, value: object
) -> None:
    assert getattr(load_config(Run, [override]), field) == value


@pytest.mark.parametrize("text", ["2024", "true", "1e5", "[1]", "null"])
def test_text_that_happens_to_be_json_stays_text_in_a_text_field(text: str) -> None:
    assert load_config(Run, [f"label={text}", "steps=4"]).label == text


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("stps=3", "stps: unknown key. Did you mean 'steps'?"),
        ("algo.clipp=1", "algo.clipp: unknown key. Did you mean 'clip'?"),
        ("zzzzzzz=1",
         "zzzzzzz: unknown key. Known: algo, fast, label, limit, lr, optimizer, options, steps"),
        ("optimizer.betta=0.5", "optimizer.betta: unknown key. Did you mean 'beta'?"),
        ("optimizer.type=adan", "optimizer.type: unknown type 'adan'. Did you mean 'adam'?"),
        ("optimizer.beta=1.5", "optimizer.beta: Input should be less than 1 (got 1.5)"),
        ("steps=0", "steps: Input should be greater than or equal to 1 (got 0)"),
        ("steps=x", 'steps: Input should be a valid integer (got "x")'),
        ("steps=true", "steps: Input should be a valid integer (got true)"),
        ('steps="8"', 'steps: Input should be a valid integer (got "8")'),
        ("steps=8.0", "steps: Input should be a valid integer (got 8.0)"),
        ("lr=NaN", "lr: Input should be a finite number (got NaN)"),
        ("algo=3", "algo: Input should be an object: algo.KEY=value sets a key of it (got 3)"),
        ("clip=0.1", "clip: unknown key. Did you mean 'algo.clip'?"),
        ("algo.parts.0.weight=1",
         "algo.parts.0: there is no such element to change; algo.parts=[...] sets them all"),
        ("algo.sizes=[\"a\"]", 'algo.sizes.0: Input should be a valid integer (got "a")'),
        ("algo.sizes=[]",
         "algo.sizes: Tuple should have at least 1 item after validation, not 0 (got [])"),
        ('algo.parts=[{name="a"}]',
         'algo.parts: Input should be a valid array, in key.path=value as JSON: [1, "a"], '
         '{"key": 1} (got "[{name=\\"a\\"}]")'),
        ("steps..x=3", "override 'steps..x=3': wanted key.path=value"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_path_reason_and_value(override: str, line: str) -> None:
    assert complaint(override) == line


def test_every_mistake_is_listed() -> None:
    assert complaint("steps=0", "lr=-1").splitlines() == [
        "steps: Input should be greater than or equal to 1 (got 0)",
        "lr: Input should be greater than 0 (got -1)",
    ]


def test_numbers_and_arrays_of_numpy_are_numbers() -> None:
    sizes = {"algo": {"clip": np.float64(0.5), "sizes": np.arange(1, 3)}}
    loaded = load_config(Run, [sizes, {"steps": np.int64(7)}])
    assert (loaded.algo.clip, loaded.algo.sizes, loaded.steps) == (0.5, (1, 2), 7)
    with pytest.raises(ConfigError, match=r"steps: Input should be a valid integer \(got 7.5\)"):
        load_config(Run, [{"steps": np.float32(7.5)}])


def test_part_of_a_choice_can_be_set_without_repeating_its_type() -> None:
    assert load_config(Run, ["optimizer.beta=0.5"]).optimizer == Adam(beta=0.5)


def test_another_type_replaces_the_block_instead_of_mixing(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[optimizer]\ntype = 'adam'\nbeta = 0.5\n")
    found = load_config(Run, [file, "optimizer.type=sgd", "optimizer.momentum=0.8"])
    assert found.optimizer == Sgd(type="sgd", momentum=0.8)


def test_a_type_that_comes_after_the_keys_of_its_block_drops_none_of_them(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[optimizer]\ntype = 'adam'\nbeta = 0.5\n")
    after = ["options.a=1", "optimizer.momentum=0.8", "steps=3", "optimizer.type=sgd", "label=x"]
    found = load_config(Run, [file, *after])
    assert found.optimizer == Sgd(type="sgd", momentum=0.8)
    assert (found.options, found.steps, found.label) == ({"a": 1}, 3, "x")
    assert complaint("optimizer.beta=0.5", "optimizer.type=sgd").startswith("optimizer.beta: unkn")


@pytest.mark.usefixtures("presets")
def test_a_preset_replaces_the_block_and_can_be_overridden() -> None:
    found = load_config(Run, ["algo.sizes=[9]", "algo=careful", "algo.clip=0.15"])
    assert found.algo == Algo(name="careful", clip=0.15, sizes=(1,))


@pytest.mark.usefixtures("presets")
def test_an_object_that_is_no_json_is_not_taken_for_a_preset() -> None:
    assert complaint('algo={name="a"}').endswith(
        'in key.path=value as JSON: [1, "a"], {"key": 1} (got "{name=\\"a\\"}")'
    )


@pytest.mark.usefixtures("presets")
def test_a_later_preset_leaves_nothing_of_an_earlier_one() -> None:
    assert load_config(Run, ["algo=bold", "algo=careful"]).algo == Algo(name="careful", clip=0.1)


def test_a_preset_brings_what_it_needs_of_other_blocks(presets: Path) -> None:
    (presets / "slow.toml").write_text(
        'name = "slow"\n[settings]\nsteps = 1\n[settings.options]\na = 7'
    )
    assert load_config(Run, ["steps=9", "options.b=2", "algo=slow"]).steps == 1
    assert load_config(Run, ["options.b=2", "algo=slow"]).options == {"a": 7, "b": 2}
    assert load_config(Run, ["algo=slow"]).algo == Algo(name="slow")
    assert load_config(Run, ["algo=slow", "steps=9"]).steps == 9, "later ones win"
    assert load_config(Run, [{"algo": "slow", "steps": 9}]).steps == 9, "so does what stands beside"


def test_a_preset_can_be_named_in_a_file(presets: Path) -> None:
    file = presets / "run.toml.in"
    file.write_text('algo = "bold"\n')
    assert load_config(Run, [file]).algo.sizes == (1, 2)


def test_one_element_of_a_list_can_be_overridden(presets: Path) -> None:
    (presets / "parts.toml").write_text(
        'parts = [{ name = "a" }, { name = "b", weight = 2.0 }]\nsizes = [1, 2, 3]\n'
    )
    overrides = ["algo.parts.1.weight=3", "algo.sizes.0=7", "algo.parts.0.name=2024"]
    found = load_config(Run, ["algo=parts", *overrides]).algo
    assert found.parts == (Part(name="2024"), Part(name="b", weight=3.0))
    assert found.sizes == (7, 2, 3)
    assert complaint("algo=parts", "algo.parts.2.weight=3") == (
        "algo.parts.2: there is no such element, only 2"
    )
    assert complaint("algo=parts", "algo.parts.0.wait=3") == (
        "algo.parts.0.wait: unknown key. Did you mean 'weight'?"
    )


def test_an_override_leaves_the_list_that_was_given_alone() -> None:
    given = {"algo": {"parts": [{"name": "a"}]}}
    assert load_config(Run, [given, "algo.parts.0.name=b"]).algo.parts[0].name == "b"  # type: ignore[union-attr]
    assert given == {"algo": {"parts": [{"name": "a"}]}}


@pytest.mark.usefixtures("presets")
def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'careful'"):
        load_config(Run, ["algo=carefull"])


def test_a_missing_file_names_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "demo.toml").touch()
    line = complaint(str(tmp_path / "dmo.toml"))
    assert line.startswith(f"{tmp_path / 'dmo.toml'}: cannot be read (No such file")
    assert line.endswith(f"Did you mean '{tmp_path / 'demo.toml'}'?")


def test_a_folder_is_not_proposed_in_its_own_place(tmp_path: Path) -> None:
    (tmp_path / "demo.toml").mkdir()
    assert complaint(str(tmp_path / "demo.toml")).endswith("cannot be read (Is a directory)")


def test_a_file_may_begin_with_the_mark_of_a_windows_editor(tmp_path: Path) -> None:
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbfsteps = 7\n")
    assert load_config(Run, [tmp_path / "marked.toml"]).steps == 7


def test_null_empties_a_table_of_free_keys() -> None:
    assert load_config(Run, [{"options": {"a": 1}}, "options=null"]).options == {}


def test_null_empties_such_a_table_of_a_choice_and_of_an_element_of_a_list() -> None:
    there = {"type": "there", "options": {"a": 1}}
    chosen = load_config(PlacedRun, [{"server": there}, "server.options=null"]).server
    listed = load_config(Places, [{"servers": [there]}, "servers.0.options=null"]).servers[0]
    assert chosen == listed == There(type="there")


def test_a_text_where_a_list_of_blocks_belongs_is_shown() -> None:
    with pytest.raises(ConfigError, match=r'^places: Input should be a valid array \(got "there"'):
        load_config(Places, ["places=there"])


def test_a_key_of_another_type_names_the_type() -> None:
    with pytest.raises(ConfigError, match=r"server: .*: server\.KEY=value sets a key of it"):
        load_config(PlacedRun, ["server=there"])
    with pytest.raises(ConfigError) as caught:
        load_config(PlacedRun, ["server.port=80"])
    assert str(caught.value) == (
        "server.port: unknown key of server.type='here'; server.type='there' has it"
    )


def test_a_key_without_its_block_names_every_block_that_has_it() -> None:
    with pytest.raises(ConfigError, match=r"size: unknown key\. Did you mean 'place\.size'\?"):
        load_config(PlacedRun, ["size=2"])


def test_a_name_for_which_a_block_would_be_known_says_the_block() -> None:
    with pytest.raises(ConfigError, match=r"key\.path=value, for example place=text/maze$"):
        load_config(PlacedRun, ["text/maze"])


def test_a_word_that_is_no_file_explains_overrides() -> None:
    assert complaint("steps").endswith("an override is written key.path=value")


@pytest.mark.parametrize("content", [b"steps = \n", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    assert complaint(str(file)).startswith(f"{file}: ")


def test_settings_cannot_be_changed_or_invented() -> None:
    run = Run()
    with pytest.raises(ValidationError, match="frozen"):
        run.steps = 4  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        Run(stps=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("rate=0.1", "rate: has a new name: lr"),
        ("optimizer.type=momentum", "optimizer.type=momentum: has a new name: sgd"),
        (
            {"algo": {"parts": [{"share": 1.0}]}},
            "algo.parts.0.share: has a new name: algo.parts.*.weight",
        ),
    ],
)
def test_an_old_name_of_a_setting_says_the_new_one(
    source: str | dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(Run, [source])
    assert str(error.value) == message


def test_toml_that_is_written_reads_back_the_same(tmp_path: Path) -> None:
    config = load_config(
        Run,
        ['label=a "quoted" ü\n', "limit=0.25", "optimizer.type=sgd", "algo.sizes=[1,2]",
         "lr=1e-06", {"options": {"a 🙂": 1}}],
    )  # fmt: skip
    file = tmp_path / "out.toml"
    file.write_text(to_toml(config), encoding="utf-8")
    assert load_config(Run, [file]) == config

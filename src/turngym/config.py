"""Settings: strict frozen models from TOML files and ``key.path=value``, merged once."""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from turngym.errors import ConfigError, require_known, unknown_name

ConfigT = TypeVar("ConfigT", bound="StrictModel")
Tree = dict[str, Any]

_RECIPES = Path("configs")
"""Where a checkout once had them: ``configs/demo.toml`` still names the recipe ``demo``."""
_CONTAINERS = ("model_type", "dict_type", "list_type", "tuple_type")
_OVERRIDE = re.compile(r"^(?P<key>[A-Za-z_][\w.-]*)=(?P<value>.*)$", re.DOTALL)


class StrictModel(BaseModel):
    """Base of every config: immutable, no guessing of types, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    preset_folder: ClassVar[Traversable | None] = None
    """Folder of TOML files; the bare name of one may stand for the whole block (``algo=grpo``), and
    so may the path of a TOML file of one's own (``algo=mine.toml``). Its table ``settings`` is for
    the other blocks: what the preset cannot work without. It counts as if it stood just before."""
    bare_key: ClassVar[str | None] = None
    """A bare text stands for this key alone (``env=text/maze`` for ``env.id=text/maze``), also as
    an element of a list."""
    recipe_folder: ClassVar[Traversable | None] = None
    """Folder of TOML files that may be named as a source, by name or as ``configs/NAME.toml``."""
    renamed: ClassVar[Mapping[str, str]] = {}
    """What had another name: ``{"old.path": "new.path"}``, ``{"path.key=old": "new"}``, ``*`` for
    the place in a list. Read from the class that is loaded; an error then says the new name."""


def load_config(cls: type[ConfigT], sources: Sequence[str | Path | Mapping[str, Any]]) -> ConfigT:
    """Merge ``sources`` left to right and validate once.

    A table is merged key by key; a table whose ``type`` changes, and a block that is set to the
    name of a preset, replace what was there. ``null`` empties a table whose keys are free
    (``env.options=null``). A list is replaced as a whole; ``key.0.path=value``
    changes one element of a list that an earlier source gave. Where several ``key.path=value``
    follow each other, a ``type`` counts as if it stood before the other keys of its table.

    Args:
        cls: The config type.
        sources: Each is a TOML file, the name of a recipe, a mapping, or ``key.path=value``. A
            value that is valid JSON is read as JSON, anything else is text, and the field's type
            decides what it means.

    Raises:
        ConfigError: A source is malformed, a key is unknown or a value is out of range. One line
            for each finding, ``path: message (got x)``.
    """
    merged: Tree = {}
    raw_texts: dict[tuple[str, ...], str] = {}
    for source in _types_first(sources):
        if isinstance(source, str) and (found := _OVERRIDE.match(source)):
            path = tuple(found["key"].split("."))
            if not all(path):
                raise ConfigError(f"override {source!r}: wanted key.path=value")
            tree = _nested(path, json_or_text(found["value"]))
            raw_texts[path] = found["value"]
        else:
            tree = dict(source) if isinstance(source, Mapping) else _read_source(cls, source)
        expanded = _expand(cls, tree)
        for block in expanded.values():
            if isinstance(block, _Replace):
                _merge(merged, block.pop("settings", {}))
        _merge(merged, expanded)
    _fill_types(cls, merged)
    return _validate(cls, merged, raw_texts)


def _types_first(
    sources: Sequence[str | Path | Mapping[str, Any]],
) -> list[str | Path | Mapping[str, Any]]:
    """Move ``table.type=value`` before the overrides of ``table`` that it would make forgotten."""
    ordered: list[str | Path | Mapping[str, Any]] = []
    keys: list[str] = []  # of the overrides at the end
    for source in sources:
        found = _OVERRIDE.match(source) if isinstance(source, str) else None
        key = found["key"] if found is not None else ""
        table = key.removesuffix("type") if key.endswith(".type") else None
        back = next((len(keys) - i for i, k in enumerate(keys) if table and k.startswith(table)), 0)
        ordered.insert(len(ordered) - back, source)
        if found is None:
            keys = []
        else:
            keys.insert(len(keys) - back, key)
    return ordered


def to_toml(config: BaseModel) -> str:
    """Return ``config`` as TOML that ``load_config`` reads back, without fields that are None."""
    return "\n".join(_toml_table(config.model_dump(mode="json"), "")).strip() + "\n"


class _Replace(dict[str, Any]):
    """A table that takes the place of what was there instead of being merged into it."""


def json_or_text(text: str) -> Any:
    """Return the value that ``text`` is in JSON; where it is none, the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nested(path: Sequence[str], value: Any) -> Tree:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def _read_source(cls: type[StrictModel], source: str | Path) -> Tree:
    """Return the file ``source``; where there is none, the recipe of that name."""
    path = Path(source)
    is_bare = path.parent == Path() and path.suffix != ".toml"
    if cls.recipe_folder is None or path.is_file() or not (is_bare or path.parent == _RECIPES):
        fields = cls.model_fields.items()
        bare = (key for key, field in fields for m in _models(field.annotation) if m.bare_key)
        return read_toml(path, bare=next(bare, ""))
    recipes = toml_files(cls.recipe_folder)
    if found := recipes.get(path.name.removesuffix(".toml")):
        return tomllib.loads(found.read_text(encoding="utf-8"))
    known = f"Known: {', '.join(sorted(recipes))}"
    hint = f"{known}; or the path of a TOML file, or key.path=value"
    raise unknown_name("recipe", str(source), recipes, hint=hint)


def toml_files(folder: Traversable) -> dict[str, Traversable]:
    """Return the TOML files of ``folder`` by their names without the ending."""
    names = {file.name: file for file in folder.iterdir()}
    return {n.removesuffix(".toml"): file for n, file in names.items() if n.endswith(".toml")}


def read_toml(path: Path, *, bare: str = "") -> Tree:
    """Return a TOML file; ``bare`` is a block for which a text may stand, for the message.

    Raises:
        ConfigError: It cannot be read, or is none; the message names it.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        hint = ""
        if path.suffix != ".toml":
            example = f", for example {bare}={path}" if bare else ""
            hint = f"; an override is written key.path=value{example}"
        else:
            others = [file.name for file in path.parent.glob("*.toml") if file != path]
            for near in difflib.get_close_matches(path.name, others, n=1, cutoff=0.5):
                hint = f". Did you mean {str(path.with_name(near))!r}?"
        raise ConfigError(f"{path}: cannot be read ({error.strerror}){hint}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path}: {error}") from error


def _merge(base: Tree, new: Mapping[str, Any], block: str = "") -> None:
    """Deep merge in place. A changed ``type`` replaces the block instead of mixing variants.

    ``block`` is the dotted path of both, with a dot at its end; for messages.
    """
    if "type" in new and new["type"] != base.get("type", new["type"]):
        base.clear()
    for key, value in new.items():
        old = base.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and not isinstance(value, _Replace):
            _merge(old, value, f"{block}{key}.")
        elif isinstance(old, list) and _is_places(value):
            base[key] = _with_elements(f"{block}{key}", old, value)
        elif isinstance(value, dict):
            base[key] = {}
            _merge(base[key], value, f"{block}{key}.")
        else:
            base[key] = value


def _is_places(value: Any) -> bool:
    """Return True for a table whose keys are places in a list."""
    return isinstance(value, dict) and bool(value) and all(key.isdecimal() for key in value)


def _with_elements(path: str, old: Sequence[Any], new: Tree) -> list[Any]:
    """Return ``old`` with some of its elements changed, by place."""
    items = list(old)
    for place, value in new.items():
        if int(place) >= len(items):
            raise ConfigError(f"{path}.{place}: there is no such element, only {len(items)}")
        element = {"": copy.deepcopy(items[int(place)])}
        _merge(element, {"": value}, f"{path}.{place}")
        items[int(place)] = element[""]
    return items


def _expand(cls: type[StrictModel], tree: Mapping[str, Any]) -> Tree:
    """Put presets in place of their names."""
    expanded: Tree = {}
    for key, value in tree.items():
        expanded[key] = value
        if key not in cls.model_fields:
            continue
        annotation = cls.model_fields[key].annotation
        if value is None and get_origin(annotation) is dict:
            expanded[key] = _Replace()
        is_list = get_origin(annotation) in (tuple, list)
        if is_list and _is_places(value):
            expanded[key] = {place: _expand(cls, {key: one})[key] for place, one in value.items()}
            continue
        for model in _models(annotation):
            is_name = isinstance(value, str) and not value.startswith("{")  # an object gone wrong
            if is_name and model.preset_folder:
                expanded[key] = _Replace(_preset(key, value, model.preset_folder))
            elif isinstance(value, str) and not is_list and (bare := model.bare_key):
                expanded[key] = {bare: value}
            elif isinstance(value, list) and (bare := model.bare_key):
                expanded[key] = [{bare: one} if isinstance(one, str) else one for one in value]
            elif isinstance(value, Mapping):  # of a union any member may know the keys
                expanded[key] = value = _expand(model, value)
    return expanded


def _fill_types(cls: type[BaseModel], tree: Tree) -> None:
    """Say the type of a block that is only partly set, where its default has one."""
    for key, value in tree.items():
        if key not in cls.model_fields or not isinstance(value, dict):
            continue
        default = cls.model_fields[key].get_default(call_default_factory=True, validated_data={})
        if isinstance(default, BaseModel):
            if "type" not in value and "type" in type(default).model_fields:
                value["type"] = default.type  # type: ignore[attr-defined]
            _fill_types(type(default), value)


def _preset(kind: str, name: str, folder: Traversable) -> Tree:
    if name.endswith(".toml"):
        return read_toml(Path(name))
    files = toml_files(folder)
    require_known(f"{kind} preset", name, files)
    return tomllib.loads(files[name].read_text(encoding="utf-8"))


def _validate(cls: type[ConfigT], tree: Tree, raw_texts: Mapping[tuple[str, ...], str]) -> ConfigT:
    """Validate as JSON, so that a list may fill a tuple while ``"8"`` still is no number."""
    try:
        return cls.model_validate_json(json.dumps(tree, default=_plain))
    except ValidationError as error:
        retyped = False
        for found in error.errors():
            path = _path(tree, found["loc"])
            if found["type"] == "string_type" and path in raw_texts:
                _merge(tree, _nested(path, raw_texts[path]))
                retyped = True
        if retyped:  # JSON by chance, such as a folder called 2024
            return _validate(cls, tree, {})
        # A list is not called too short for elements with findings of their own.
        findings = [e for e in error.errors() if e["type"] != "too_short" or not e["input"]]
        lines = (_explain(cls, tree, one) for one in findings)
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def _plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy or torch as Python's own; anything else is text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _explain(cls: type[StrictModel], tree: Tree, found: Mapping[str, Any]) -> str:
    """Return one finding as one line: dotted path, what is wrong, what was found."""
    path, kind = _path(tree, found["loc"]), found["type"]
    where, context = ".".join(path), found.get("ctx", {})
    tag = f".type={context['tag']}" if kind == "union_tag_invalid" else ""
    tag = f"={found['input']}" if kind == "literal_error" else tag
    pattern = ".".join("*" if part.isdigit() else part for part in path) + tag
    if (kind == "extra_forbidden" or tag) and (new := cls.renamed.get(pattern)):
        return f"{where}{tag}: has a new name: {new}"
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_hint(cls, tree, path)}"
    if kind == "union_tag_invalid":
        tags = [tag.strip().strip("'") for tag in str(context["expected_tags"]).split(",")]
        return f"{where}.type: {unknown_name('type', str(context['tag']), tags)}"
    if kind == "union_tag_not_found":
        return f"{where}.type: is missing, so it is not known which kind of {path[-1]} this is"
    message = str(found["msg"]).removeprefix("Value error, ")
    got = found["input"]
    if kind == "missing":
        return f"{where}: has to be set; it has no default"
    if kind in ("model_type", "dict_type"):
        message = f"Input should be an object: {where}.KEY=value sets a key of it"
    if kind in _CONTAINERS and isinstance(got, str) and got.startswith(("[", "{")):
        message += ', in key.path=value as JSON: [1, "a"], {"key": 1}'
    if kind in ("list_type", "tuple_type") and _is_places(got):
        place = next(iter(got))
        return f"{where}.{place}: there is no such element to change; {where}=[...] sets them all"
    if kind == "value_error" or isinstance(got, dict):
        return f"{where}: {message}" if where else message
    return f"{where}: {message} (got {json.dumps(got, default=str)})"


def _hint(cls: type[StrictModel], tree: Tree, path: Sequence[str]) -> str:
    """Return where an unknown key belongs, what it may have meant, or what there is."""
    *block, name = path
    model, members = _block(cls, tree, block)
    for other in members:
        if name in other.model_fields and (tags := _type_tags(other)):
            kind = ".".join([*block, "type"])
            return f" of {kind}={_type_tags(model)[0]!r}; {kind}={tags[0]!r} has it"
    known = sorted(model.model_fields)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    places = (
        f"{key}.{name}"
        for key, field in cls.model_fields.items()
        if any(name in part.model_fields for part in _models(field.annotation))
    )
    if found := near or list(places) or difflib.get_close_matches(name, known, n=1, cutoff=0.5):
        return f". Did you mean {' or '.join(repr(key) for key in found)}?"
    return f". Known: {', '.join(known)}"


def _path(tree: Tree, loc: Iterable[int | str]) -> tuple[str, ...]:
    """Return ``loc`` without the tags of unions, which name no key."""
    path: list[str] = []
    here: Any = tree
    parts = list(loc)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if path and not isinstance(here, dict | list):
            continue
        if isinstance(here, dict) and part not in here and (not last or part == here.get("type")):
            continue
        path.append(str(part))
        if isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part]
    return tuple(path)


def _block(
    cls: type[StrictModel], tree: Any, path: Sequence[str]
) -> tuple[type[StrictModel], list[type[StrictModel]]]:
    """Return the model of the block at ``path``, and all members of the union that it is of."""
    model, members = cls, [cls]
    for key in path:
        if isinstance(tree, list):  # the models of the list are those of its elements
            tree = tree[int(key)]
        else:
            tree = tree.get(key, {}) if isinstance(tree, dict) else {}
            field = model.model_fields.get(key)
            members = [] if field is None else _models(field.annotation)
        if not members:
            return StrictModel, []
        chosen = tree.get("type") if isinstance(tree, dict) else None
        model = next((m for m in members if chosen in _type_tags(m)), members[0])
    return model, members


def _type_tags(model: type[StrictModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("type")
    return get_args(field.annotation) if field is not None else ()


def _models(annotation: Any) -> list[type[StrictModel]]:
    """Return the models an annotation may hold: itself, members of a union, elements of a list."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple, list):
        return [model for part in get_args(annotation) for model in _models(part)]
    return []


def _toml_table(table: Mapping[str, Any], prefix: str) -> list[str]:
    given = {key: value for key, value in table.items() if value is not None}
    lines = [
        f"{_toml_key(key)} = {_toml_value(value)}"
        for key, value in given.items()
        if not isinstance(value, dict)
    ]
    for key, value in given.items():
        if isinstance(value, dict):
            name = f"{prefix}{_toml_key(key)}"
            lines += ["", f"[{name}]", *_toml_table(value, f"{name}.")]
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{', '.join(items)}}}"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)

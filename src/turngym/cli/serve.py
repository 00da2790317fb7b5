"""``turngym serve``: models and outside agents as OpenAI has it, environments as OpenEnv has it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from turngym import registry
from turngym.api.agents import make_policy, need_train_extra
from turngym.cli.arguments import EnvOptions, env_options, split_of
from turngym.cli.output import print_json, say
from turngym.config import load_config
from turngym.environments.gym.registration import done_with, make, named
from turngym.errors import ConfigError, require_known
from turngym.records import writable_folder
from turngym.reports.texts import amount

if TYPE_CHECKING:
    from turngym.agents.chat.agent import EngineModel
    from turngym.agents.engine.local import LocalEngine
    from turngym.agents.serving.http import Access
    from turngym.rollouts.gateway.hosted import HostedEnv

app = typer.Typer(help="Servers: models, outside agents, environments.", no_args_is_help=True)

_CONTROL_KEY = "TURNGYM_CONTROL_KEY"

_Host = Annotated[str, typer.Option(help="Address to listen at; anybody who reaches it is served.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")]
_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Host name by which clients call it, and whose web pages may; can be repeated. "
        "localhost and addresses need none.",
    ),
]
_MaxBody = Annotated[int, typer.Option(min=1, help="Largest request in MiB.")]


@app.command("policy")
def policy(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="hf:NAME_OR_PATH, with settings as for eval, or run:FOLDER."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Its name in requests; MODEL by default.")
    ] = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    context: Annotated[
        int | None,
        typer.Option(min=16, help="Longest conversation in tokens; 4096, or as a run was trained."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Root of seeds where none is given.")] = 0,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key that clients must send.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Folder that a run puts new weights into (engine.type=vllm)."),
    ] = None,
    allow_host: _AllowHost = None,
    max_body_mib: _MaxBody = 64,
) -> None:
    """Serve a model from the local engine: chat completions, completions, token ids, log-probs.

    With --weights a run trains with it as with vLLM.
    Those routes ask for no key: keep to 127.0.0.1 or a network of your own.
    """
    from turngym.agents.serving.http import bind, url_of
    from turngym.agents.serving.policy_server import PolicyServer

    key = None if key_env is None else os.environ.get(key_env)
    if key_env is not None and not key:
        raise ConfigError(f"--key-env {key_env}: the variable is not set")
    if weights is not None:
        _check_weights(weights, host)
    sock = bind(host, port)
    need_train_extra(f"model {model!r}")
    served = _engine_model(model, context)
    server = PolicyServer(
        served.engine,
        served.renderer,
        name=name or model,
        key=key,
        seed=seed,
        access=_access(allow_host, max_body_mib),
        weights=weights,
    )
    _serve(server.app(), sock, {"url": f"{url_of(sock)}/v1", "model": server.name})


@app.command("engine")
def engine(
    model: Annotated[Path, typer.Argument(metavar="FOLDER", help="Model, as transformers saves.")],
    weights: Annotated[
        Path | None, typer.Option(help="engine.folder of the run that trains with it.")
    ] = None,
    nccl: Annotated[
        bool, typer.Option("--nccl", help="For engine.weights=nccl; needs no folder.")
    ] = False,
    python: Annotated[str, typer.Option(help="Interpreter of vLLM's environment.")] = "python3",
    host: _Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where it listens.")] = 8000,
    context: Annotated[
        int | None,
        typer.Option(min=16, help="Longest conversation in tokens; 4096, or what the model reads."),
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs; 0 for a CPU build.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    adapter_rank: Annotated[int, typer.Option(min=0, help="engine.adapter_rank of the run.")] = 0,
    routing: Annotated[bool, typer.Option("--routing", help="engine.routing of the run.")] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the line, run nothing.")
    ] = False,
) -> None:
    """Run vLLM as a run of engine.type=vllm wants it.

    Its routes that change weights ask for no key: keep to 127.0.0.1 or a network of your own.
    """
    from turngym.agents.engine.config import VllmEngineConfig
    from turngym.agents.engine.models import check_model_path, positions_in
    from turngym.agents.engine.vllm.children import command
    from turngym.agents.serving.http import bind

    if (weights is None) != nccl:
        raise ConfigError("serve engine: wanted --weights FOLDER or --nccl, and not both")
    settings = {"type": "vllm", "python": python, "gpus": gpus, "dtype": dtype}
    settings |= {"adapter_rank": adapter_rank, "routing": routing}
    settings["weights"] = "nccl" if nccl else "files"
    config = load_config(VllmEngineConfig, [settings])
    _check_weights(weights, host)
    check_model_path(model.resolve())  # no name on the hub
    wanted = context or 4096
    reads = min(wanted, positions_in(model) or wanted)
    if context is not None:
        _note_context(context, reads)
    line, more = command(
        config, model.resolve(), context=reads, port=port,
        folder=(weights or model).resolve(), host=host,
    )  # fmt: skip
    if only_print:
        print(shlex.join(["env", *(f"{name}={value}" for name, value in more.items()), *line]))
        return
    bind(host, port).close()  # vLLM says after a while, with a traceback, that it is taken
    try:
        os.execvpe(line[0], line, {**os.environ, **more})
    except OSError as error:
        raise ConfigError(f"--python {python}: {error.strerror}") from error


@app.command("gateway")
def gateway(
    upstream: Annotated[str, typer.Option(help="Address of the server that answers, up to /v1.")],
    model: Annotated[str, typer.Option(help="Its model; it answers whatever agents ask for.")],
    out: Annotated[Path, typer.Option(help="Folder for trajectories.jsonl.")],
    env: Annotated[str | None, typer.Option(help="Environment whose tools agents get.")] = None,
    split: Annotated[
        str | None, typer.Option(help="Its tasks: train (the default) or test.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Root of its seeds; 0 by default.")
    ] = None,
    env_option: EnvOptions = None,
    tokens: Annotated[str, typer.Option(help="Ask for token ids: auto, yes or no.")] = "auto",
    host: _Host = "127.0.0.1",
    port: _Port = 8001,
    allow_host: _AllowHost = None,
    max_body_mib: _MaxBody = 64,
) -> None:
    """Record outside agents: point one at the address that is printed.

    The upstream key is read from OPENAI_API_KEY.
    The key that opens and ends episodes is read from TURNGYM_CONTROL_KEY, or a new one is printed.
    """
    from turngym.agents.config import EndpointConfig
    from turngym.agents.remote.endpoint import Endpoint
    from turngym.agents.serving.http import bind, url_of
    from turngym.rollouts.evaluation.folder import EVALUATION_FILE
    from turngym.rollouts.gateway.app import Gateway
    from turngym.rollouts.gateway.episodes import Episodes

    require_known("value of --tokens", tokens, ("auto", "yes", "no"))
    if env is None and not (split is None and seed is None and not env_option):
        raise ConfigError(
            "serve gateway: --split, --seed and --env-option are of the environment: wanted --env"
        )
    open_env = None if env is None else _env_maker(env, split or "train", env_option)
    endpoint = Endpoint(EndpointConfig(model=model, base_url=upstream), extra="serve")
    if any((out / name).exists() for name in (EVALUATION_FILE, "config.json")):
        raise ConfigError(f"--out {out}: holds an evaluation or a run; wanted a folder of its own")
    sock = bind(host, port)
    control = os.environ.get(_CONTROL_KEY)
    episodes = Episodes(
        out=writable_folder(out), scrubber=endpoint.scrubber, open_env=open_env, seed=seed or 0
    )
    found = {"url": f"{url_of(sock)}/v1", "out": str(out)}
    if control is None:
        control = found["control_key"] = secrets.token_urlsafe(18)
    served = Gateway(
        endpoint,
        episodes,
        control_key=control,
        tokens=tokens,  # type: ignore[arg-type]  # it is one of the three
        serves_tools=env is not None,
        access=_access(allow_host, max_body_mib),
    )
    _serve(served.app(), sock, found)
    say(f"{amount(episodes.num_finished, 'episode')} in {out}")


@app.command("openenv")
def openenv(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Id, file or folder to be played.")],
    env_option: EnvOptions = None,
    split: Annotated[str, typer.Option(help="Tasks of a reset that names none.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Root of seeds where none is given.")] = 0,
    sessions: Annotated[int, typer.Option(min=1, help="Most clients at a time.")] = 16,
    host: _Host = "127.0.0.1",
    port: _Port = 8000,
    allow_host: _AllowHost = None,
    max_body_mib: _MaxBody = 64,
) -> None:
    """Serve an environment to clients of OpenEnv; each has one of its own.

    There is no key, and who plays sees rewards: keep to 127.0.0.1 or a network of your own.
    """
    from turngym.agents.serving.http import bind, url_of
    from turngym.rollouts.gateway.openenv import OpenEnvServer

    open_env = _env_maker(env, split, env_option)
    sock = bind(host, port)
    served = OpenEnvServer(
        open_env, env_id=env, seed=seed, most=sessions, access=_access(allow_host, max_body_mib)
    )
    _serve(served.app(), sock, {"url": url_of(sock), "env": env})


def _check_weights(folder: Path | None, host: str) -> None:
    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--weights {folder}: there is no such folder")
    if host in ("0.0.0.0", "::"):
        raise ConfigError(f"--weights with --host {host}: would let anybody change the weights")


def _access(allow_host: list[str] | None, max_body_mib: int) -> Access:
    from turngym.agents.serving.http import Access

    return Access(allow_hosts=tuple(allow_host or ()), max_body_bytes=max_body_mib * 2**20)


def _engine_model(spec: str, context: int | None) -> EngineModel[LocalEngine]:
    from turngym.trainers.runs.policies import load_policy

    found: EngineModel[LocalEngine]
    kind, _, rest = spec.partition(":")
    if kind == "hf" and rest:
        if Path(rest).expanduser().exists():  # else what stands after a blank is a setting
            spec = f"hf:{shlex.quote(rest)}"
        longest = [] if context is None else [f"context={context}"]
        found = cast(Any, make_policy(" ".join([spec, *longest]))).model
    elif kind == "run" and rest:
        found = load_policy(Path(rest).expanduser(), context=context).model
    else:
        raise ConfigError(f"model {spec!r}: wanted hf:NAME_OR_PATH or run:FOLDER")
    if context is not None:
        _note_context(context, found.engine.context)
    return found


def _note_context(asked: int, read: int) -> None:
    if read < asked:
        say(f"--context {asked}: the model reads {read} tokens at most")


def _env_maker(name: str, split: str, settings: list[str] | None) -> Any:
    """Return what makes the environment ``name``, and make one to see that it can be had."""
    from turngym.rollouts.gateway.hosted import HostedEnv

    entry = registry.find(name)
    entry.require()
    chosen, options = split_of(split), env_options(settings)

    def open_env() -> HostedEnv:
        env = make(entry.id, **options)
        return HostedEnv(env, env_id=entry.id, split=chosen, options=options)

    with named(entry.short_name, options):
        done_with(make(entry.id, **options))
    return open_env


def _serve(application: Any, sock: socket.socket, found: dict[str, str]) -> None:
    """Print where the server is, one JSON object on stdout for scripts, and serve."""
    from turngym.agents.serving.http import serve_until_signal

    print_json(found)
    asyncio.run(serve_until_signal(application, sock))

"""What the shell offers on the tab key: environments and recipes."""

from __future__ import annotations


def complete_env(incomplete: str) -> list[str]:
    """Return the short names of environments that begin with ``incomplete``."""
    from turngym import registry

    return [e.short_name for e in registry.entries() if e.short_name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return the recipes and blocks of settings that begin with ``incomplete``."""
    from turngym.trainers.settings.train import TrainConfig, recipes

    offered = [*recipes(), *(f"{name}=" for name in TrainConfig.model_fields)]
    return [name for name in offered if name.startswith(incomplete)]

"""The Hydra side of `crosspipe run`: where configs are found, and a launcher that makes one graph of all points.

Hydra accepts plugins only from the package `hydra_plugins`, which an application cannot own: `register` puts ours there
as a module object and hands the classes to Hydra's registry (works with Hydra 1.3). A single run is a sweep of one
(`hydra.mode: MULTIRUN` in conf/config.yaml), so there is one path.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crosspipe.campaign.configs import config_dir, user_dir
from crosspipe.errors import CrosspipeError

Launch = Callable[[list[dict[str, Any]], list[list[str]]], None]
_MODULE = "hydra_plugins.crosspipe"
_UNKNOWN = re.compile(r"Could not override '([^']+)'.*is not in struct")
# Hydra's own questions; everything else is a sweep, and saying so keeps its error messages to the point
_ASKS = ("--cfg", "-c", "--info", "-i", "--shell-completion", "-sc", "--hydra-help", "--version", "-m", "--multirun")


class ConfigError(CrosspipeError):
    """Hydra or OmegaConf refused the configuration."""

    exit_code = 2


class CrosspipeLauncher(Launcher):
    """Composes every point of the sweep, then launches all of them together as one campaign."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._context, self._launch, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        configs = []
        for index, overrides in enumerate(job_overrides):
            composed = self._context.config_loader.load_sweep_config(self._config, list(overrides))
            configs.append(plain(composed))
            _count(index + 1, len(job_overrides))
        launch: Any = self._launch
        launch(configs, [[text for text in texts if not text.startswith("hydra.")] for texts in job_overrides])
        return [JobReturn(overrides=list(texts), status=JobStatus.COMPLETED) for texts in job_overrides]


class CrosspipeSweeper(Sweeper):
    """The product of all values, as Hydra's basic sweeper makes it, without its files in the working directory and
    without composing every point twice."""

    def __init__(self, params: dict[str, str] | None = None, max_batch_size: int | None = None) -> None:
        self._params, self._max_batch_size = dict(params or {}), max_batch_size

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self._loader = hydra_context.config_loader
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        # only now: Hydra's search for plugins executes this module anew
        from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

        parser = OverridesParser.create(config_loader=self._loader)
        overrides = parser.parse_overrides([*(f"{key}={value}" for key, value in self._params.items()), *arguments])
        batches = BasicSweeper.split_arguments(overrides, self._max_batch_size)
        return [self._launcher.launch(batch, initial_job_idx=0) for batch in batches]


class UserConfigs(SearchPathPlugin):
    """Puts the user's own ./conf before the one of the package."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        mine = user_dir()
        if mine is not None:
            search_path.prepend("crosspipe-user", f"file://{mine}")


def register() -> None:
    """Makes Hydra know the launcher, the sweeper and the search path; to be called before `hydra.main`."""
    module = types.ModuleType(_MODULE)
    for plugin in (CrosspipeLauncher, CrosspipeSweeper, UserConfigs):
        plugin.__module__ = _MODULE
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)
    try:
        parent = importlib.import_module("hydra_plugins")  # other plugins are installed
    except ModuleNotFoundError:
        parent = sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        parent.__path__ = []
    parent.crosspipe = sys.modules[_MODULE] = module  # type: ignore[attr-defined]
    store = ConfigStore.instance()
    launcher = {"_target_": f"{_MODULE}.CrosspipeLauncher"}
    sweeper = {"_target_": f"{_MODULE}.CrosspipeSweeper", "max_batch_size": None, "params": None}
    store.store(group="hydra/launcher", name="crosspipe", node=launcher, provider="crosspipe")
    store.store(group="hydra/sweeper", name="crosspipe", node=sweeper, provider="crosspipe")


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed configuration as resolved plain data, without Hydra's own part."""
    found = OmegaConf.to_container(_without_hydra(config), resolve=True, throw_on_missing=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key != "experiment"}


def _without_hydra(config: DictConfig) -> DictConfig:
    copy = config.copy()
    OmegaConf.set_readonly(copy, False)
    OmegaConf.set_struct(copy, False)
    copy.pop("hydra", None)
    return copy


def compose_and_launch(arguments: Sequence[str], launch: Launch) -> None:
    """Runs `launch(configs, overrides)` on all points that the command line `arguments` ask for.

    Hydra's own options (`--cfg job`, `--info`, `-m`, ...) work as everywhere. Raises ConfigError, in one line, for what
    Hydra refuses; what `launch` raises passes through.
    """
    register()
    before, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    asked = any(text in _ASKS or text.startswith(("--cfg=", "--info=")) for text in arguments)
    sys.argv = ["crosspipe run", *([] if asked else ["--multirun"]), *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # else Hydra prints and exits by itself
    try:
        application = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
        application(launch)()
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(one_line(error)) from error
    finally:
        sys.argv = before
        if full is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        else:
            os.environ["HYDRA_FULL_ERROR"] = full


def one_line(error: Exception) -> str:
    """Hydra's errors span lines, with the real cause behind: both, in one."""
    texts = [str(error)] + ([str(error.__cause__)] if error.__cause__ is not None else [])
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    noise = ("full_key:", "object_type=", "Set the environment variable", "See https://")
    said = "; ".join(dict.fromkeys(line for line in lines if not line.startswith(noise)))
    if unknown := _UNKNOWN.match(said):
        near = difflib.get_close_matches(unknown[1], known_keys(), n=1)
        remedy = f"did you mean {near[0]}?" if near else "crosspipe run --cfg job shows all keys"
        return f"{unknown[1]}: no such key; {remedy}"
    return f"override {error.override!r}: {said}" if isinstance(error, OverrideParseException) else said


def known_keys() -> list[str]:
    """Every dotted key of the default configuration, sections too."""
    with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
        config = OmegaConf.to_container(_without_hydra(hydra.compose("config")), resolve=False)

    def within(part: Any, prefix: str) -> Iterator[str]:
        for key, value in part.items() if isinstance(part, dict) else ():
            yield f"{prefix}{key}"
            yield from within(value, f"{prefix}{key}.")

    return list(within(config, ""))


def _count(done: int, total: int) -> None:
    """How far composing is, where somebody looks and it takes a while."""
    if total >= 50 and sys.stderr.isatty():
        print(f"\rcomposing {done}/{total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

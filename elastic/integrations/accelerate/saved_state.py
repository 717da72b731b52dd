"""`save_state` and `load_state`: Accelerate's files in complete directories, with the position in the data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator

from elastic.errors import ConfigError
from elastic.integrations.accelerate.training import Training
from elastic.integrations.accelerate.training_step import TrainingStep
from elastic.integrations.checkpoint_folder import CheckpointFolder
from elastic.train import report
from elastic.train.checkpoint import atomic_files
from elastic.train.process_group.topology import current_topology
from elastic.train.state import set_step
from elastic.train.statedict import rng

PLACE: Final = "elastic_place.bin"
"""The file in the directory of a saved state that holds the position in the data."""
NUMBERED: Final = re.compile(r"checkpoint_(\d+)")


class SavedStates:
    """Saves and loads the states of one training, each in its directory."""

    def __init__(self, accelerator: Accelerator, training: Training, step: TrainingStep) -> None:
        self.loaded = False
        """Whether a state was loaded, with its position in the data."""
        self._accelerator = accelerator
        self._training = training
        self._step = step
        self._folders: dict[Path, CheckpointFolder] = {}

    def save(self, output_dir: str | os.PathLike[str] | None, write: Callable[[str], Any]) -> Path:
        """Let Accelerate write a state, and publish it. A collective.

        Raises:
            CheckpointError: The state could not be written; raised on all ranks. An earlier state stays intact.
            ConfigError: No directory is set, or it holds a state of another job.
        """
        self._training.restore()
        accelerator, data, state = self._accelerator, self._training.data, self._training.state
        configuration = accelerator.project_configuration
        automatic = configuration.automatic_checkpoint_naming
        target = self._numbered() if automatic else self._given(output_dir)
        step = state.step + self._step.is_done
        data.saves = configuration.iteration + 1
        place = {"step": step, "epoch": state.epoch, "data": data.state_dict()}

        def written(folder: Path) -> None:
            write(str(folder))
            if accelerator.is_main_process:
                torch.save(place, folder / PLACE)

        configuration.automatic_checkpoint_naming = False
        try:
            saved = self._folder(target.parent).save(target.name, step, written)
        finally:
            configuration.automatic_checkpoint_naming = automatic
            configuration.iteration = data.saves
        if automatic and accelerator.is_main_process and configuration.total_limit is not None:
            _remove_oldest(target.parent, configuration.total_limit)
        return saved

    def load(self, input_dir: str | os.PathLike[str] | None, read: Callable[[str], Any]) -> None:
        """Let Accelerate read a state, and resume at its position in the data; see `ElasticAccelerator.load_state`.

        Raises `ConfigError` if no directory is set, or its state was saved with other data.
        """
        if self._training.restore() and not self._step.begun:
            self._say(
                f"ignoring accelerator.load_state(): this job resumes from its own step {self._training.state.step}"
            )
            return
        folder = self._newest() if input_dir is None else Path(input_dir).expanduser()
        read(str(folder))
        self.loaded = True
        try:
            place = torch.load(folder / PLACE, weights_only=True)
        except FileNotFoundError:
            self._say(f"{folder} has no position in the data ({PLACE}): the epoch starts at its beginning", warn=True)
            return
        self._go_on_from(place)

    def _go_on_from(self, place: dict[str, Any]) -> None:
        data = self._training.data
        data.load_state_dict(place["data"])
        set_step(self._training.state, place["step"], place["epoch"])
        self._training.number_saves()
        random = rng.capture()  # Accelerate has just read it.
        data.at_next_loop(lambda: rng.restore(random))

    def _given(self, output_dir: str | os.PathLike[str] | None) -> Path:
        if output_dir is None:
            raise ConfigError(
                "accelerator.save_state() needs a directory: save_state(output_dir), or "
                "ProjectConfiguration(automatic_checkpoint_naming=True)"
            )
        return Path(output_dir).expanduser().absolute()

    def _numbered(self) -> Path:
        target = self._project() / f"checkpoint_{self._accelerator.save_iteration}"
        if not (self._training.resumed or self.loaded or self._folders) and target.exists():
            raise ConfigError(
                f"{target} already exists, but this training starts from scratch; call accelerator.load_state() to "
                "resume from the newest saved state, or set another project_dir"
            )
        return target

    def _project(self) -> Path:
        if self._accelerator.project_dir is None:
            raise ConfigError("automatic_checkpoint_naming needs a directory: ElasticAccelerator(project_dir=...)")
        return Path(self._accelerator.project_dir).expanduser().absolute() / "checkpoints"

    def _newest(self) -> Path:
        if not self._accelerator.project_configuration.automatic_checkpoint_naming:
            raise ConfigError("accelerator.load_state() needs the directory of a saved state: load_state(input_dir)")
        found = self._folder(self._project()).newest()
        if found is None:
            raise ConfigError(f"accelerator.load_state(): {self._project()} has no saved state")
        return found.folder

    def _folder(self, parent: Path) -> CheckpointFolder:
        if parent not in self._folders:
            self._folders[parent] = CheckpointFolder(parent, current_topology(), setting="output_dir")
        return self._folders[parent]

    def _say(self, text: str, *, warn: bool = False) -> None:
        if self._accelerator.is_main_process:
            report.log_to_agent(text, warn=warn)


def _remove_oldest(parent: Path, limit: int) -> None:
    numbers = {int(found[1]): path for path in parent.iterdir() if (found := NUMBERED.fullmatch(path.name))}
    for number in sorted(numbers)[: max(len(numbers) - limit, 0)]:
        atomic_files.discard(numbers[number])

"""Fine-tuning of the core's network in a training run: where it is kept meanwhile, and what is told of it.

Its folder holds weights of core data only, which never have to be forgotten. It lies outside of the
workspace, so that a run that was killed finds it again, and goes when the workspace is made.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface.data.records import Records
from efface.errors import EffaceError
from efface.network.backbone import Backbone
from efface.network.device import device_named
from efface.network.finetuning import network_of
from efface.network.tuning_choice import NAME, TUNED, TuningChoice, TuningTrial, tuned_backbone
from efface.pipeline.config import Config
from efface.progress import Progress
from efface.workspace.founding import check_writable

SUFFIX = ".finetuning"


@dataclass(frozen=True)
class TuningFolder:
    """Where finished trials and the last epoch are kept. Nobody else's files are touched."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> TuningFolder | None:
        """The config's, or one beside the model, if it can be there; None if nothing is fine-tuned."""
        if not config.core.finetune:
            return None
        model = Path(config.output.dir)
        folder = cls(Path(config.core.finetune_folder or f"{model}{SUFFIX}"))
        if folder.path.resolve().is_relative_to(model.resolve()):
            raise EffaceError(
                f"the fine-tuning in {folder.path} would be inside the model.",
                "name a folder outside of it with --finetune-folder, or none.",
            )
        folder._check()
        return folder

    def _check(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise EffaceError(f"{self.path} is not a folder.", "name another --finetune-folder.")
        others = [] if not self.path.exists() else [p for p in self.path.iterdir() if not _ours(p)]
        if others:
            raise EffaceError(
                f"{self.path} is no folder of a fine-tuning: it has {others[0].name!r}.",
                "name another --finetune-folder: what is in this one stays as it is.",
            )
        check_writable(self.path)

    def clear(self) -> None:
        """The run is done: nothing of it is needed any more."""
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if _ours(entry):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


def _ours(entry: Path) -> bool:
    return entry.name in (NAME, TUNED) or entry.name.startswith("trial-")


def fine_tuned(
    config: Config,
    backbone: Backbone,
    records: Records,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[Backbone, TuningChoice]:
    """The backbone, fine-tuned on core records as was best on held-out ones, or as it came; on the config's
    device, and from there on the CPU."""
    network_of(
        backbone, len(records.classes), config.core.finetune_size
    )  # does it run at that size?
    device = device_named(config.core.device)
    options: dict[str, Any] = {"folder": folder, "device": device, "progress": progress}
    return tuned_backbone(backbone, records.core, config.core.tunings(), **options)


def choice_values(choice: TuningChoice) -> dict[str, Any]:
    """What was tried and chosen, for programs; the loss of a trial that diverged is None."""
    return {
        "chosen": _values(choice.best),
        "trials": [_values(trial) for trial in choice.trials],
        "held_out": choice.num_held_out,
    }


def choice_text(choice: TuningChoice) -> str:
    """What was chosen, and why, in a sentence."""
    came, best, held_out = choice.trials[0], choice.best, choice.num_held_out
    if best.settings is None:
        tuned = min(choice.trials[1:], key=lambda trial: trial.loss)
        return (
            f"fine-tuning was not chosen: on {held_out} held-out core images the network as it came has a "
            f"loss of {came.loss:.3g}, {_name(tuned)} {tuned.loss:.3g}"
        )
    return (
        f"fine-tuned on core data, {_name(best)}: on {held_out} held-out core images that had a loss of "
        f"{best.loss:.3g}, the network as it came {came.loss:.3g}"
    )


def _name(trial: TuningTrial) -> str:
    assert trial.settings is not None
    return f"rate {trial.settings.rate:g} and {trial.settings.epochs} epochs"


def _values(trial: TuningTrial) -> dict[str, Any]:
    settings = trial.settings
    return {
        "rate": None if settings is None else settings.rate,
        "epochs": 0 if settings is None else settings.epochs,
        "loss": trial.loss if trial.loss < float("inf") else None,
        "accuracy": trial.accuracy,
    }

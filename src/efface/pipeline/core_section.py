"""The core's section of a run's settings: its network, what images it reads, and how it is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from efface.device_names import check_device_name
from efface.pipeline.options import ConfigSection, Flag

if TYPE_CHECKING:
    from efface.network.backbone import Backbone
    from efface.network.core import Core
    from efface.network.finetuning import FineTuning
    from efface.network.training import Stage

SEED = Flag("Of the core split and training.")


def _numbers(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]  # numbers or not is checked with the rest


class StageConfig(ConfigSection):
    """One stage of core training; see ``efface.Stage``."""

    train: Literal["head", "tail", "all"] = "head"
    epochs: int = Field(default=30, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    batch_size: int = Field(default=64, ge=1)

    def build(self) -> Stage:
        from efface.network.training import Stage

        return Stage(**self.model_dump())


class CoreConfig(ConfigSection):
    """``leaky_slope = 0`` keeps the ReLUs, ``calibrate_to = 0`` the scale of the core's logits; no
    ``stages`` means the backbone's default ones. ``resize`` (short side) and ``crop`` (central square), if
    given, replace those of the backbone's preprocessing; 0 leaves that step out. If neither is, ``larger``
    decides (``network/larger.py``). ``finetune``: before all
    that, the whole network is fine-tuned on core data (``network/finetuning.py``), by every rate with every
    number of epochs and not at all, whichever is best on held-out core images."""

    backbone: Annotated[
        str,
        Flag(
            "cnn, hf:DIR_OR_ID, timm:NAME, open_clip:NAME:WEIGHTS or torch:module.path:callable. "
            "Default: {default}."
        ),
    ] = Field(default="cnn", min_length=1)
    linearize: Annotated[
        str,
        Flag(
            "Where the tail begins: head, last-block, last-stage, all or a step. Default: {default}."
        ),
    ] = Field(default="last-block", min_length=1)
    device: Annotated[
        str,
        AfterValidator(check_device_name),
        Flag("Where the network is computed: auto, cuda, mps or cpu. Default: {default}."),
    ] = "cpu"
    leaky_slope: float = Field(default=0.01, ge=0, lt=1)
    fold_batchnorm: bool = True
    mirror: Annotated[
        bool,
        Flag("Read every image mirrored, too, and average the features. Default: {default}."),
    ] = False
    finetune: Annotated[
        bool,
        Flag("Fine-tune the whole network on core data, if that helps held-out ones.", switch=True),
    ] = False
    finetune_rates: Annotated[
        tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...],
        Flag("Learning rates to try, separated by commas. Default: {default}.", read=_numbers),
    ] = Field(default=(0.002,), min_length=1)
    finetune_epochs: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Flag("How many epochs to try, separated by commas. Default: {default}.", read=_numbers),
    ] = Field(default=(8,), min_length=1)
    finetune_size: Annotated[
        int, Flag("The side of the images in fine-tuning; 0 is the network's own. Default: 0.")
    ] = Field(default=0, ge=0)
    finetune_precision: Annotated[
        Literal["float32", "bf16"],
        Flag("float32, or bf16: faster where the processor has it. Default: {default}."),
    ] = "float32"
    finetune_no_flip: Annotated[
        bool, Flag("Do not mirror images in fine-tuning: digits, letters, signs.", switch=True)
    ] = False
    finetune_folder: Annotated[
        str | None,
        Flag(
            "Where every epoch is kept until all is done, so that a killed run goes on. "
            "Default: OUT.finetuning.",
            path=True,
        ),
    ] = Field(default=None, min_length=1)
    calibrate_to: float = Field(default=0.0, ge=0)
    resize: Annotated[
        int | None,
        Flag("The short side of images before the crop, in pixels. Default: see --crop."),
    ] = Field(default=None, ge=0)
    crop: Annotated[
        int | None,
        Flag(
            "The side of the central square that is read. Default: the network's own; for ResNets of 224 "
            "with the compact part, 288 of 320."
        ),
    ] = Field(default=None, ge=0)
    seed: Annotated[int, SEED] = 0
    stages: tuple[StageConfig, ...] = ()

    def build(
        self, classes: Sequence[str], backbone: Backbone | None = None, *, larger: bool = False
    ) -> Core:
        """The network with an output for each class; ``backbone`` in the place of the one that is named.

        ``larger``: on larger images than it was trained on, where those are better.
        """
        from efface.network.core import Core

        return Core(
            self.network(larger=larger) if backbone is None else backbone,
            classes=classes,
            linearize=self.linearize,
            leaky_slope=self.leaky_slope or None,
            fold_batchnorm=self.fold_batchnorm,
            mirror=self.mirror,
            seed=self.seed,
        )

    def network(self, *, larger: bool) -> Backbone:
        """The backbone, with its preprocessing changed where ``resize`` or ``crop`` say so."""
        from efface.network.backbone import load_backbone

        named = self.linearize not in ("head", "last-block", "last-stage", "all")
        boundary = self.linearize if named else None
        loaded = load_backbone(self.backbone, boundary=boundary, seed=self.seed)
        return self.sized(loaded, larger=larger)

    def sized(self, backbone: Backbone, *, larger: bool) -> Backbone:
        from efface.data.preprocess import of_images
        from efface.network.larger import with_larger_images

        sizes = {"resize": self.resize, "crop": self.crop}
        given: dict[str, Any] = {k: v for k, v in sizes.items() if v is not None}
        if given:
            return replace(backbone, preprocess=replace(of_images(backbone.preprocess), **given))
        # Fine-tuning is at the network's own size, and so is what comes after it.
        return with_larger_images(backbone) if larger and not self.finetune else backbone

    def tunings(self) -> tuple[FineTuning, ...]:
        """Every way to fine-tune that is tried beside not doing it; none: it is not asked for."""
        from efface.network.finetuning import FineTuning, Precision
        from efface.network.tuning_choice import candidates_of

        settings = FineTuning(
            size=self.finetune_size,
            flip=not self.finetune_no_flip,
            precision=Precision(self.finetune_precision),
            seed=self.seed,
        )
        asked = self.finetune_rates if self.finetune else ()
        return candidates_of(settings, asked, self.finetune_epochs)

    def fit_options(self) -> dict[str, Any]:
        """What ``Core.fit`` takes beside the records."""
        stages = [stage.build() for stage in self.stages] or None
        return {"stages": stages, "calibrate_to": self.calibrate_to or None}

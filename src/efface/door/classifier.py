"""``ForgettingClassifier``: images and labels in, predictions out, and people out again when they ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import nn

from efface.data.images import Channels
from efface.data.names import newcomers
from efface.data.preparation import Preparation
from efface.data.readers.examples import examples_of
from efface.data.records import Records
from efface.data.remarks import remarks_on
from efface.door.gathering import found_in, gather, labelled
from efface.door.homes import Copy, Folder, Home, Memory, whom
from efface.door.labels import LabelKind
from efface.door.questions import Questions
from efface.door.settings import (
    PYTHON,
    backbone_of,
    params_of,
    saved_settings,
    settings_of,
    trained,
)
from efface.door.warning import warn_of
from efface.errors import EffaceError
from efface.export.hub import from_pretrained, push_to_hub
from efface.guarantee.certificates import Certificate, Guarantee
from efface.network.device import device_named
from efface.parts.table import part_named
from efface.pipeline.config import Config, to_toml
from efface.progress import Progress
from efface.workspace import Workspace


class NotFitted(EffaceError, NotFittedError):
    """The classifier has not been fitted; scikit-learn's ``NotFittedError`` as well."""


class ForgettingClassifier(Questions, ClassifierMixin, BaseEstimator):
    """An image classifier that can exactly forget people, with scikit-learn's manners.

    A pretrained network stays as it is (the *core*); what is learned from your images is a linear *user
    part* on top of it, and out of that a person can be taken again: what is left is, to the last bit, the
    classifier that had never been given their images.

    >>> import efface
    >>> data = efface.Records.digits()
    >>> clf = efface.ForgettingClassifier("cnn", features=300).fit(data)
    >>> receipt = clf.forget(owner="u07")
    >>> receipt.num_forgotten, "u07" in clf.records_.owners
    (15, False)

    Args:
        backbone: ``hf:DIR_OR_ID`` (transformers), ``timm:NAME``, ``open_clip:NAME:WEIGHTS``, an
            ``nn.Module``, or ``cnn`` (small and built-in; it knows nothing until it has seen core data).
        classes: the class list, in the order of the outputs. Default: the labels of the core data. Where
            there is no core data either, the labels that occur; then a class leaves with the last of its
            records, because a name that only one person used would remember that person.
        core_fraction: make about this share of the *owners* core data, drawn by a hash of their names.
        user: the user part: ``compact`` (forgets exactly) or ``tangent`` (the paper's; forgets up to a
            certificate's (ε, δ)).
        linearize: where the user part begins: head, last-block, last-stage, all, or the name of a module.
        mirror: read every image mirrored, too: a little better for photos, twice the time.
        features, bits: size of the compact part: how many numbers an image, of how many bits.
        mu: the ridge. Default: chosen on core data.
        arithmetic: ``integer`` (the same bits on every machine), ``float``, or ``auto``: integer if possible.
        replay_core: fit the user part on the core data as well.
        preprocess: how images are prepared, an ``efface.Preprocess``; ``efface.Tokens`` or ``efface.Vectors``
            where the network reads rows of whole numbers. Default: as the network says.
        skip_bad: set unreadable images aside instead of stopping; seed: of core split and core training.
        device: where the network is computed: ``auto`` (the fastest that is there), ``cuda`` (one of several
            is ``cuda:1``), ``mps`` or ``cpu``. In integers the outcome is the same, or it is refused.

    **Core data** (``fit(…, core=…)`` or ``core_fraction``) trains the network's head and chooses scales and
    ridge. It makes the model better, and it is *never forgotten*: a request of somebody who is in it is
    refused, unless ``user_part_only``. So give public images, or those of people who agreed to that. Without
    core data everything you give is user data, and the pretrained network alone is the core.

    Where this differs from scikit-learn: X are images (an array (n, h, w[, channels]) of uint8, or a list of
    Pillow images, paths, …), not a table of floats, so estimators that compute on X cannot come before it;
    every image has an *owner*; a fitted classifier is not pickled, since nobody could be forgotten in the
    copy: :meth:`save` it; there are no sample weights; ``classes_`` has the order of ``classes=`` if given.
    """

    def __init__(
        self,
        backbone: str | nn.Module = "cnn",
        *,
        classes: Any = None,
        core_fraction: float | None = None,
        user: str = "compact",
        linearize: str = "last-block",
        mirror: bool = False,
        features: int = 4096,
        bits: int = 8,
        mu: float | None = None,
        arithmetic: str = "auto",
        replay_core: bool = True,
        preprocess: Preparation | None = None,
        skip_bad: bool = False,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self.backbone = backbone
        self.classes = classes
        self.core_fraction = core_fraction
        self.user = user
        self.linearize = linearize
        self.mirror = mirror
        self.features = features
        self.bits = bits
        self.mu = mu
        self.arithmetic = arithmetic
        self.replay_core = replay_core
        self.preprocess = preprocess
        self.skip_bad = skip_bad
        self.seed = seed
        self.device = device

    # --- training ---------------------------------------------------------------------------------

    def fit(
        self,
        images: Any,
        labels: Any = None,
        *,
        owners: Any = None,
        cohorts: Any = None,
        ids: Any = None,
        core: Any = None,
        progress: Progress | None = None,
    ) -> ForgettingClassifier:
        """Train on these images; what was fitted before is dropped (a saved folder stays as it is).

        ``images``: an array of uint8 (n, h, w) or (n, h, w, channels), or of whole numbers (n, length) for a
        network of ``Tokens`` or ``Vectors``; a list of arrays, tensors, Pillow images, encoded bytes, paths,
        or rows of numbers; or, labels included, ``Records``, a torch ``Dataset``, a
        ``datasets.Dataset``, or a DataFrame with columns ``path`` and ``label`` (and ``owner``, … if any).
        ``labels`` are names or whole numbers. ``owners`` says whose each image is (default: every image has
        an owner of its own), ``cohorts`` names groups that may be forgotten together, ``ids`` names the
        images. ``core`` is core data: ``(images, labels)``, ``(images, labels, owners)`` or ``Records``.
        """
        settings = self._config
        backbone = backbone_of(self.backbone, settings, self.preprocess)
        columns = {"labels": labels, "owners": owners, "cohorts": cohorts, "ids": ids}
        gathered = gather(
            images,
            columns,
            core=core,
            classes=self.classes,
            channels=backbone.preprocess.reads,
            core_fraction=self.core_fraction,
            seed=self.seed,
            skip_bad=self.skip_bad,
        )
        warn_of(remarks_on(gathered.records))
        if gathered.from_labels and part_named(self.user).noisy:
            names = gathered.kind.classes(gathered.records.classes).tolist()
            fix = f"list them, if the list is yours to choose: classes={names!r:.200}."
            raise EffaceError("the tangent part needs a class list that is not people's.", fix)
        model = trained(settings, backbone, gathered.records, progress)
        self._home: Home = Memory(model, gathered.from_labels)
        self._kind, self._settings = gathered.kind, settings
        return self

    def partial_fit(self, images: Any, labels: Any = None, **given: Any) -> ForgettingClassifier:
        """:meth:`fit` the first time, :meth:`add` from then on; the class list is that of the first time."""
        if not self.__sklearn_is_fitted__():
            return self.fit(images, labels, **given)
        self.add(images, labels, **given)
        return self

    def add(
        self,
        images: Any,
        labels: Any = None,
        *,
        owners: Any = None,
        cohorts: Any = None,
        ids: Any = None,
        allow_reingest: bool = False,
        progress: Progress | None = None,
    ) -> Certificate | None:
        """Take more user images in: afterwards it is the classifier fitted on all of them at once.

        Images that were forgotten before are refused, unless ``allow_reingest``.
        """
        home, columns = self._fitted, {"owners": owners, "cohorts": cohorts, "ids": ids}
        found, kind = found_in(images, labels=labels, **columns)
        self._kind.check(kind)
        options = {"channels": self._channels, "skip_bad": self.skip_bad}
        names = sorted({row.label for row in found.rows})
        records = Records.assembled(found, classes=names, **options)  # type: ignore[arg-type]
        warn_of([*remarks_on(records), *newcomers(records.owners, home.records.owners)])
        return home.add(records, allow_reingest=allow_reingest, progress=progress)

    def forget(
        self,
        *,
        owner: Any = None,
        ids: Any = None,
        cohort: Any = None,
        label: Any = None,
        everything: bool = False,
        user_part_only: bool = False,
        guarantee: Guarantee | None = None,
        progress: Progress | None = None,
    ) -> Certificate:
        """Forget a person, some images, a group, a class or everything: exactly one of them.

        Returns the certificate: its digests are those of a classifier that never had these images. On an
        error nothing has changed. Somebody with core images is refused, since these stay;
        ``user_part_only`` forgets the others, and the certificate says how many stay.
        """
        home = self._fitted
        asked = {"owner": owner, "ids": ids, "cohort": cohort, "label": label}
        request = whom(**asked, everything=everything)
        return home.forget(
            request, user_part_only=user_part_only, guarantee=guarantee, progress=progress
        )

    # --- predictions ------------------------------------------------------------------------------

    def decision_function(self, images: Any) -> np.ndarray:
        """The outputs themselves, (n, c) float32, a column each of ``classes_``."""
        return self._fitted.model.logits(images).numpy()

    def predict_proba(self, images: Any) -> np.ndarray:
        """Softmax of the outputs, (n, c): scores that sum to one, not calibrated probabilities."""
        return self._fitted.model.predict_proba(images)

    def predict(self, images: Any) -> np.ndarray:
        """The labels, (n,), of the kind that ``fit`` was given. Images as for :meth:`fit`, without labels."""
        model = self._fitted.model
        return self._kind.classes(model.classes)[model.logits(images).argmax(1).numpy()]

    def score(self, images: Any, labels: Any = None) -> float:
        """The share of right predictions; ``labels`` may be left out where the images come with them."""
        _ = self._fitted
        shown, known = labelled(images, labels)
        predicted, right = self.predict(shown), self._kind.array(known)
        if predicted.shape != right.shape:
            message = f"{len(right)} labels for {len(predicted)} images."
            raise EffaceError(message, "give one label an image.")
        if not len(right):
            raise EffaceError("no images to score on.", "give at least one.")
        return float(np.mean(predicted == right))

    @property
    def classes_(self) -> np.ndarray:
        """The class list, in the order of the outputs; whole numbers if the labels were."""
        home = self._fitted
        return self._kind.classes(home.model.classes)

    @property
    def records_(self) -> Records:
        """The user records that are in the model now: ids, owners, labels, digests."""
        return self._fitted.records

    # --- on disk ----------------------------------------------------------------------------------

    def save(
        self, path: Path | str, *, overwrite: bool = False, allow_reingest: bool = False
    ) -> ForgettingClassifier:
        """Write a workspace; from now on the classifier lives there.

        :meth:`forget` and :meth:`add` then change the folder, and have done so when they return, whatever
        crashes; ``efface verify PATH`` and the other commands work on it. No images are in it.
        """
        home = self._fitted
        if isinstance(home, Folder):
            fix = "copy that folder while no request is running."
            raise EffaceError(f"this classifier lives in {home.workspace.path} already.", fix)
        module = self.backbone if isinstance(self.backbone, nn.Module) else None
        workspace = Workspace.create(
            path,
            home.model,
            config=to_toml(self._to_save(home)),
            module=module,
            overwrite=overwrite,
            allow_reingest=allow_reingest,
            forgotten=sorted(home.forgotten),
        )
        self._home = Folder(workspace, home.from_labels, str(self.device))
        return self

    def _to_save(self, home: Home) -> Config:
        """The settings with the class list, unless that is read off the labels, and the kind of labels."""
        known = {
            "classes": None if home.from_labels else home.model.classes,
            "label_type": "integer" if self._kind.integer else None,
        }
        data = self._settings.data.model_copy(update=known)
        return self._settings.model_copy(update={"data": data})

    @classmethod
    def load(
        cls, path: Path | str, *, module: nn.Module | None = None, device: str = "auto"
    ) -> ForgettingClassifier:
        """The classifier that lives in this folder, written by :meth:`save` or by ``efface train``.

        ``module`` is needed only if the backbone was an ``nn.Module``, or code. A request that was cut
        short by a crash is finished first. ``device`` is where its network is computed from now on.
        """
        device_named(device)
        workspace = Workspace.open(path, module=module)
        config = saved_settings(workspace.inventory.base)
        if config is None:  # made with Workspace.create
            self, from_labels, integer = cls(device=device), False, False
        else:
            self = cls(**params_of(config), device=device)
            integer = config.data.label_type == "integer"
            from_labels = config.data.spec == PYTHON and config.data.classes is None
        self.backbone = self.backbone if module is None else module
        self._kind = LabelKind(integer)
        self._home = Folder(workspace, from_labels, str(device))
        names = self.classes_.tolist()  # reads the model: what is wrong with it is said now
        self.classes = None if from_labels else names
        self._settings = self._config if config is None else config
        return self

    def push_to_hub(
        self, repo_id: str, *, private: bool = True, license: str = "", api: Any = None
    ) -> str:
        """Put the published release on a hub, in place of all earlier ones: :func:`efface.push_to_hub`."""
        options: dict[str, Any] = {"private": private, "license": license, "api": api}
        module = self._folder.inventory.module
        return push_to_hub(self._folder.path, repo_id, module=module, **options)

    @classmethod
    def from_pretrained(
        cls,
        name: Path | str,
        *,
        revision: str | None = None,
        module: nn.Module | None = None,
        device: str = "auto",
    ) -> ForgettingClassifier:
        """A copy that predicts, from a folder or a hub (OWNER/NAME): it cannot forget, its workspace can."""
        options: dict[str, Any] = {"module": module, "device": device}
        self, model = cls(device=device), from_pretrained(name, revision=revision, **options)
        self.backbone = self.backbone if module is None else module
        self._kind, self._home, self._settings = LabelKind(False), Copy(model), self._config
        self.classes = list(model.classes)
        return self

    @property
    def _config(self) -> Config:
        return settings_of(self.get_params(deep=False))

    # --- within -----------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_home")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.input_tags.string = True
        tags.no_validation = True  # scikit-learn's own is for tables of floats
        return tags

    def __getstate__(self) -> Any:
        if self.__sklearn_is_fitted__():
            fix = 'clf.save("model") and ForgettingClassifier.load("model"), or sklearn.base.clone(clf).'
            raise EffaceError("in a copy of a fitted classifier nobody could be forgotten.", fix)
        return super().__getstate__()

    @property
    def _fitted(self) -> Home:
        if not self.__sklearn_is_fitted__():
            raise NotFitted("this classifier is not fitted yet.", "call fit(images, labels).")
        return self._home

    @property
    def _folder(self) -> Workspace:
        home = self._fitted
        if not isinstance(home, Folder):
            raise EffaceError("this classifier lives in memory only.", 'clf.save("model") first.')
        return home.workspace

    @property
    def _channels(self) -> Channels | None:
        return self._fitted.model.core.backbone.preprocess.reads

    def _named(self, images: Any) -> Records:
        """Records of images whose labels do not matter."""
        if isinstance(images, Records):
            return images
        found, first = examples_of(images), str(self._fitted.model.classes[0])
        labels = [first] * len(found)
        return Records.assembled_examples(found, labels=labels, channels=self._channels)

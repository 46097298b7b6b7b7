"""Where a fitted classifier lives: in memory, or in a folder that keeps every promise across crashes.

Both know the same few things. A folder is a workspace: each change is on disk before it returns, and other
processes, the command line among them, may use it at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from efface.data.readers.examples import label_name, name_of, values_of
from efface.data.record import Split
from efface.data.records import Records
from efface.door.classes import classes_left, only_with
from efface.door.warning import warn, warn_of
from efface.errors import EffaceError, RecordError
from efface.guarantee.certificates import Certificate, ExactCertificate, Guarantee
from efface.model.mixed_linear import MixedLinear
from efface.model.request import Request, meant
from efface.parts.part import require_training_data
from efface.progress import Progress
from efface.workspace import Workspace
from efface.workspace.published import Current, load


class Home(ABC):
    """What the classifier asks of it; ``from_labels`` says that classes leave with their last record."""

    from_labels: bool
    forgotten: frozenset[str] = frozenset()  # digests of images, where no folder knows them

    @property
    @abstractmethod
    def model(self) -> MixedLinear:
        """To predict with: what is published now."""

    @property
    @abstractmethod
    def records(self) -> Records:
        """The user records that are in the model."""

    @abstractmethod
    def forget(
        self,
        request: Request,
        *,
        user_part_only: bool,
        guarantee: Guarantee | None,
        progress: Progress | None,
    ) -> Certificate:
        """Take the records out, and with them the classes that nobody has any more."""

    @abstractmethod
    def add(
        self, records: Records, *, allow_reingest: bool, progress: Progress | None
    ) -> Certificate | None:
        """Take more user records in; all of them, or on any error none."""


class Memory(Home):
    """A model in memory, its images with it. It is gone with the program.

    Images that it has forgotten are refused when they come again, as in a folder.
    """

    def __init__(self, model: MixedLinear, from_labels: bool) -> None:
        self._model, self.from_labels = model, from_labels

    @property
    def model(self) -> MixedLinear:
        return self._model

    @property
    def records(self) -> Records:
        return require_training_data(self._model.data).records

    def forget(
        self,
        request: Request,
        *,
        user_part_only: bool,
        guarantee: Guarantee | None,
        progress: Progress | None,
    ) -> Certificate:
        request, notes = meant(request, self.records.owners)
        warn_of(notes)
        before = self.records
        certificate = self._model.forget(
            request,
            user_part_only=user_part_only,
            guarantee=guarantee,
            progress=progress,
        )
        kept = set(self.records.ids)
        self.forgotten |= {record.digest for record in before if record.id not in kept}
        smaller = without_empty(self._model) if self.from_labels else None
        if smaller is None:
            return certificate
        self._model = smaller
        return about(first_of(smaller), certificate)

    def add(
        self, records: Records, *, allow_reingest: bool, progress: Progress | None
    ) -> Certificate | None:
        check_new(records, self._model, set(self.records.ids) | self._model.core_index.ids)
        again = [record for record in records if record.digest in self.forgotten]
        if again and not allow_reingest:
            raise RecordError(
                again[0].id,
                f"this image was forgotten here, as were {len(again) - 1} more of these.",
                "leave them out; if their owners want them in again, allow_reingest=True.",
            )
        added = self._model.add(Records(records, self._model.classes), progress=progress)
        self.forgotten -= {record.digest for record in again}
        return added


class Folder(Home):
    """A workspace. The model for predictions is read anew when somebody has published another release.

    ``device`` is where its network is computed.
    """

    def __init__(self, workspace: Workspace, from_labels: bool, device: str = "cpu") -> None:
        self.workspace, self.from_labels, self.device = workspace, from_labels, device
        self._served: tuple[Current, MixedLinear] | None = None
        if from_labels:  # by `efface forget`, or by a process that was cut short
            self._drop_empty()

    @property
    def model(self) -> MixedLinear:
        published = self.workspace.inventory.current
        if self._served is None or self._served[0] != published:
            module = self.workspace.inventory.module
            model = load(self.workspace.path, module=module, device=self.device)
            self._served = published, model
        return self._served[1]

    @property
    def records(self) -> Records:
        return self.workspace.records

    def forget(
        self,
        request: Request,
        *,
        user_part_only: bool,
        guarantee: Guarantee | None,
        progress: Progress | None,
    ) -> Certificate:
        result = self.workspace.forget(
            request,
            user_part_only=user_part_only,
            guarantee=guarantee,
            progress=progress,
        )
        warn_of(result.notes)
        assert result.certificate is not None  # forgetting always has one
        smaller = self._drop_empty() if self.from_labels else None
        return result.certificate if smaller is None else about(smaller, result.certificate)

    def _drop_empty(self) -> ExactCertificate | None:
        """Publish the model without classes that nobody has, by one rename as a new training is.

        Returns its certificate, None if there are no such classes. If somebody else changes the model
        meanwhile, it begins anew with theirs.
        """
        while True:
            before = self.workspace.number
            try:
                return self._drop_empty_of(before)
            except (EffaceError, OSError):
                if self.workspace.number == before:
                    raise

    def _drop_empty_of(self, release: int) -> ExactCertificate | None:
        workspace = self.workspace
        if set(workspace.records.column("label")) >= set(workspace.settings["classes"]):
            return None
        smaller = without_empty(workspace.model())
        if smaller is None:
            return None
        certificate, last = first_of(smaller), workspace.certificate
        certificate = certificate if last is None else about(certificate, last)
        self.workspace = Workspace.create(
            workspace.path,
            smaller,
            config=(workspace.inventory.base / "config.toml").read_text(encoding="utf-8"),
            module=workspace.inventory.module,
            overwrite=True,
            certificate=certificate,
            instead_of=release,
        )
        return certificate

    def add(
        self, records: Records, *, allow_reingest: bool, progress: Progress | None
    ) -> Certificate | None:
        options: dict[str, Any] = {"device": self.device, "progress": progress}
        result = self.workspace.add(records, allow_reingest=allow_reingest, **options)
        return result.certificate


class Copy(Home):
    """A model that somebody exported: it predicts. Nobody's rows came with it, so that is all it can."""

    from_labels = False

    def __init__(self, model: MixedLinear) -> None:
        self._model = model

    @property
    def model(self) -> MixedLinear:
        return self._model

    @property
    def records(self) -> Records:
        return Records([], self._model.classes)

    def forget(self, request: Request, **_: Any) -> Certificate:
        raise self._refusal()

    def add(self, records: Records, **_: Any) -> Certificate | None:
        raise self._refusal()

    def _refusal(self) -> EffaceError:
        fix = "ask whoever has its workspace; then fetch the next release, and delete this one."
        return EffaceError("this classifier is a copy: it can predict, and nothing else.", fix)


def check_new(records: Records, model: MixedLinear, known: set[str]) -> None:
    """In memory what a workspace checks by itself."""
    for record in records:
        if record.split is not Split.USER:
            fix = "add user records only; core data is fixed when the core is trained."
            raise RecordError(record.id, f"is a {record.split} record.", fix)
        if record.id in known:
            fix = "leave it out, or give it another id (ids=)."
            raise RecordError(record.id, "is in the model already.", fix)
        if record.label not in model.classes:
            fix = "fit a new classifier with this class among classes=."
            raise RecordError(record.id, f"label {record.label!r} is none of the classes.", fix)


def without_empty(model: MixedLinear) -> MixedLinear | None:
    """The model without classes that nobody has; None if there are none, or if that cannot be."""
    left = classes_left(model)
    if left == model.classes:
        return None
    if len(left) < 2 or model.guarantee is not None:
        why = "a classifier needs two" if len(left) < 2 else "releases have noise (plan)"
        gone = ", ".join(repr(name) for name in model.classes if name not in left)
        text = f"no record is left of {gone}, but the name stays in classes_: {why}"
        warn(text)
        return None
    return only_with(model, left)


def first_of(model: MixedLinear) -> ExactCertificate:
    """The certificate of a model that has forgotten nothing; such a one drops classes only if it is exact."""
    made = model.user.first_certificate(require_training_data(model.data), model.solution)
    assert made is not None
    return made


def about(made: ExactCertificate, request: Certificate) -> ExactCertificate:
    """The same certificate, about the records of this request."""
    people = getattr(request, "num_people", 0)
    return replace(made, num_forgotten=request.num_forgotten, num_people=people)


def whom(**asked: Any) -> Request:
    """The request, from names as the caller has them: owners and ids may be whole numbers."""
    values = dict(asked)
    for name in ("owner", "cohort"):
        if values[name] is not None:
            values[name] = name_of(values[name], f"{name}s")
    if values["label"] is not None:
        values["label"] = label_name(values["label"])
    ids = values["ids"]
    if ids is not None:
        listed = [ids] if isinstance(ids, str) else values_of(ids)
        values["ids"] = [str(name_of(value, "ids")) for value in listed]
    return Request.of(**values)

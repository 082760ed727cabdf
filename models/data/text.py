"""20 Newsgroups, and words as numbers: hashed bags for a small network, token ids for a transformer.

Neither needs anything that silos would have to agree on first, such as a vocabulary or how rare a word is among all
silos' texts: a hash is the same everywhere.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from silomix.models.data.catalogue import Array, Data, DataError, Rows

CLASSES = 20
PAD, UNKNOWN, BEGIN, END = 0, 100, 101, 102
"""Token ids with a meaning, where DistilBERT's vocabulary has them; hashed words come after."""

Tokenise = Callable[[str], list[int]]


def newsgroups(directory: Path, seed: int) -> Data:
    """Open 20 Newsgroups: inputs are the texts themselves."""
    texts, names = read_tab(directory / "20newsgroups-train.tab")
    test_texts, test_names = read_tab(directory / "20newsgroups-test.tab")
    groups = sorted(set(names))
    number = {name: i for i, name in enumerate(groups)}
    if unknown := set(test_names) - set(groups):
        raise DataError(f"{directory}: the test set has groups that the training set lacks: {sorted(unknown)}")
    y, test_y = (np.array([number[name] for name in part], np.int64) for part in (names, test_names))
    return Data("newsgroups", Rows.of(texts), y, Rows.of(test_texts), test_y, classes=len(groups))


def read_tab(path: Path) -> tuple[Array, list[str]]:
    """Read Orange's tab file: a name, a type and a role for each column, then a group and a text in each line."""
    with open(path, encoding="utf-8", errors="replace") as file:
        head = [next(file, "").rstrip("\n").split("\t") for _ in range(3)]
        if head[0][:2] != ["Category", "Text"]:
            raise DataError(f"{path} does not begin with the columns Category and Text: fetch it again")
        rows = [line.rstrip("\n").partition("\t") for line in file if line.strip()]
    texts = np.empty(len(rows), object)
    texts[:] = [text.strip('"') for _, _, text in rows]
    return texts, [group for group, _, _ in rows]


def bag(texts: Iterable[str], width: int) -> Array:
    """Count each text's words in `width` places by hash, take the logarithm, and scale the row to length 1.

    A sign from the hash lets words that share a place cancel in the mean instead of adding up.
    """
    rows = list(texts)
    out = np.zeros((len(rows), width), np.float32)
    for row, text in zip(out, rows, strict=True):
        for word, count in Counter(text.split()).items():
            code = _hash(word)
            row[code % width] += (1 if code & 0x8000_0000 else -1) * (1 + np.log(count))
    out /= np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-12)
    return out


def token_ids(texts: Iterable[str], length: int, tokenise: Tokenise) -> Array:
    """Cut each text to `length` tokens, with a mark at both ends and padding behind: (n, length) of int64."""
    rows = list(texts)
    out = np.full((len(rows), length), PAD, np.int64)
    for row, text in zip(out, rows, strict=True):
        ids = [BEGIN, *tokenise(text)[: length - 2], END]
        row[: len(ids)] = ids
    return out


def hashed(vocabulary: int) -> Tokenise:
    """Make a tokeniser that numbers words by hash, for a transformer that is trained from scratch."""
    first = END + 1
    return lambda text: [first + _hash(word) % (vocabulary - first) for word in text.split()]


def word_pieces(path: Path) -> Tokenise:
    """Make DistilBERT's tokeniser from its vocab.txt: each word as the longest pieces that the vocabulary has."""
    try:
        pieces = {piece: i for i, piece in enumerate(path.read_text(encoding="utf-8").splitlines())}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the vocabulary {path} cannot be read ({error}): give DistilBERT's vocab.txt") from None
    if pieces.get("[CLS]") != BEGIN or pieces.get("[SEP]") != END:
        raise DataError(f"{path} is not DistilBERT's vocab.txt: it lacks [CLS] at {BEGIN} and [SEP] at {END}")

    @lru_cache(maxsize=100_000)
    def split_up(word: str) -> tuple[int, ...]:
        found, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in pieces:
                    found.append(pieces[piece])
                    start = end
                    break
            else:
                return (UNKNOWN,)
        return tuple(found)

    return lambda text: [piece for word in text.lower().split() for piece in split_up(word)]


def _hash(word: str) -> int:
    return zlib.crc32(word.encode())

"""A transformer of DistilBERT's shape, for 20 Newsgroups: 66,968,852 parameters in full size.

Names are those of DistilBERT's published files, so that its weights can be loaded from a local safetensors file, and
`trainable` can leave all but the head alone.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, Unpack

import numpy.typing as npt
import safetensors
import torch
from torch import Tensor, nn
from torch.nn import functional

from silomix.models.built_in import Options, Prepare, make
from silomix.models.data.catalogue import Data
from silomix.models.data.text import PAD, hashed, token_ids, word_pieces
from silomix.models.torch_task import TorchTask
from silomix.runtime.task import TaskError

SIZES = {
    "distilbert": {"vocabulary": 30_522, "positions": 512, "width": 768, "heads": 12, "layers": 6, "inner": 3072},
    "tiny": {"vocabulary": 8_192, "positions": 128, "width": 64, "heads": 4, "layers": 2, "inner": 256},
}
"""Shapes by the name that the option `size` has: the paper's, and one that a laptop trains in minutes."""
_OTHER_HEADS = ("vocab_transform.", "vocab_layer_norm.", "vocab_projector.")  # of the published pretraining


class Embeddings(nn.Module):
    """Words and where they stand, as vectors."""

    def __init__(self, vocabulary: int, positions: int, width: int, dropout: float) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(positions, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, length) -> (n, length, width)."""
        places = torch.arange(ids.shape[1], device=ids.device)
        found: Tensor = self.dropout(self.LayerNorm(self.word_embeddings(ids) + self.position_embeddings(places)))
        return found


class Attention(nn.Module):
    """Each word looks at all that are not padding."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.q_lin = nn.Linear(width, width)
        self.k_lin = nn.Linear(width, width)
        self.v_lin = nn.Linear(width, width)
        self.out_lin = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """`seen` is (n, 1, 1, length): whom one may look at."""
        n, length, width = x.shape
        q, k, v = (
            lin(x).view(n, length, self.heads, width // self.heads).transpose(1, 2)  # (n, heads, length, width/heads)
            for lin in (self.q_lin, self.k_lin, self.v_lin)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        out: Tensor = self.out_lin(mixed.transpose(1, 2).reshape(n, length, width))
        return out


class FeedForward(nn.Module):
    """Two dense layers for each word by itself."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.lin1 = nn.Linear(width, inner)
        self.lin2 = nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(n, length, width) -> the same."""
        out: Tensor = self.dropout(self.lin2(functional.gelu(self.lin1(x))))
        return out


class Layer(nn.Module):
    """Attention, then the dense layers, each with a short cut and a norm behind it."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.sa_layer_norm = nn.LayerNorm(width, eps=1e-12)
        self.ffn = FeedForward(width, inner, dropout)
        self.output_layer_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """(n, length, width) -> the same."""
        x = self.sa_layer_norm(self.attention(x, seen) + x)
        out: Tensor = self.output_layer_norm(self.ffn(x) + x)
        return out


class Body(nn.Module):
    """Embeddings and layers."""

    def __init__(self, size: dict[str, int], dropout: float) -> None:
        super().__init__()
        self.embeddings = Embeddings(size["vocabulary"], size["positions"], size["width"], dropout)
        layers = [Layer(size["width"], size["heads"], size["inner"], dropout) for _ in range(size["layers"])]
        self.transformer = nn.ModuleDict({"layer": nn.ModuleList(layers)})

    def forward(self, ids: Tensor) -> Tensor:
        """(n, length) -> (n, length, width)."""
        seen = (ids != PAD)[:, None, None, :]
        x = self.embeddings(ids)
        layers: Any = self.transformer["layer"]
        for layer in layers:
            x = layer(x, seen)
        out: Tensor = x
        return out


class Classifier(nn.Module):
    """Scores the classes of a text from what its first token has gathered."""

    def __init__(self, classes: int, size: str = "distilbert", dropout: float = 0.1) -> None:
        super().__init__()
        width = SIZES[size]["width"]
        self.distilbert = Body(SIZES[size], dropout)
        self.pre_classifier = nn.Linear(width, width)
        self.dropout = nn.Dropout(2 * dropout)
        self.classifier = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(
                module, nn.Linear
            ):  # wider than BERT's 0.02, with which plain SGD learns nothing from scratch
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """(n, length) -> (n, classes)."""
        first = self.distilbert(ids)[:, 0]
        scores: Tensor = self.classifier(self.dropout(functional.relu(self.pre_classifier(first))))
        return scores


def load_pretrained(net: nn.Module, path: Path) -> list[str]:
    """Put the tensors of a safetensors file into the network, and return the names that it did not have.

    Names may lack the prefix "distilbert.". The head for guessing words is left out; all else must fit.
    """
    own = net.state_dict()
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    except (OSError, safetensors.SafetensorError) as error:
        raise TaskError(f"weights = {str(path)!r}: this is no safetensors file that can be read ({error})") from None
    fitting = {}
    for name, tensor in found.items():
        target = name if name in own else f"distilbert.{name}"
        if name.startswith(_OTHER_HEADS):
            continue
        if target not in own:
            raise TaskError(f"weights = {str(path)!r}: {name} is not in this network; is `size` the right one?")
        if tensor.shape != own[target].shape:
            shapes = f"{tuple(tensor.shape)}, here {tuple(own[target].shape)}"
            raise TaskError(f"weights = {str(path)!r}: {name} has shape {shapes}; set the option `size`")
        fitting[target] = tensor.to(own[target].dtype)
    net.load_state_dict({**own, **fitting})
    return [name for name in own if name not in fitting]


@lru_cache(maxsize=2)
def _prepare(length: int, size: str, vocabulary: str) -> Prepare:
    tokenise = word_pieces(Path(vocabulary)) if vocabulary else hashed(SIZES[size]["vocabulary"])

    def prepare(texts: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(token_ids(texts, length, tokenise))

    return prepare


def task(
    silos: int = 10,
    silo: int = -1,
    alpha: float = 0.1,
    seed: int = 1,
    size: str = "tiny",
    length: int = 64,
    dropout: float = 0.1,
    weights: str = "",
    vocabulary: str = "",
    **options: Unpack[Options],
) -> TorchTask:
    """Make the task of one silo. Texts are cut to `length` tokens; SGD is the paper's: lr 0.01, momentum 0.9, batch 64.

    weights: a local safetensors file of DistilBERT, and vocabulary: its vocab.txt; without one, words are numbered by
    hash. size: "distilbert", or "tiny" for a network of 0.64 million parameters.
    """
    if size not in SIZES:
        raise ValueError(f"size = {size!r}: it is one of {', '.join(SIZES)}")
    if not 3 <= length <= SIZES[size]["positions"]:
        raise ValueError(f"length = {length}: a text of this size has 3 to {SIZES[size]['positions']} tokens")
    if not 0 <= dropout < 0.5:
        raise ValueError(f"dropout = {dropout}: it must be from 0 to below 0.5")

    def net(data: Data) -> nn.Module:
        made = Classifier(data.classes, size, dropout)
        if weights:
            load_pretrained(made, Path(weights))
        return made

    prepare = _prepare(length, size, vocabulary)
    return make("newsgroups", net, prepare, {}, options, silos=silos, silo=silo, alpha=alpha, seed=seed)

"""What of a torch module travels, what stays where it is, and why.

The wire carries floating-point tensors by name. A state dict holds more: counters, weights under two names, parameters
that nobody trains. Each of these either travels or is named in `ModuleState.local` with the reason.
"""

import hashlib
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.task import TaskError

DTYPES = {torch.float64: Dtype.F64, torch.float32: Dtype.F32, torch.float16: Dtype.F16, torch.bfloat16: Dtype.BF16}
"""The types that travel."""
TORCH = {dtype: kind for kind, dtype in DTYPES.items()}
DIGITS = {Dtype.BF16: 8, Dtype.F16: 11}
"""Binary digits that short types hold of a value."""
FROZEN = "frozen."
"""How the mark of the frozen tensors begins: an empty tensor whose name has their digest."""

Array = npt.NDArray[Any]


def freeze_all_but(net: nn.Module, trainable: str) -> None:
    """Freeze every parameter that matches none of the patterns ("head.*", or several with commas between them).

    A tied weight matches by any of its names. What was frozen before stays frozen.
    """
    patterns = [pattern.strip() for pattern in trainable.split(",") if pattern.strip()]
    named = list(net.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            near = get_close_matches(pattern, [name for name, _ in named], n=3, cutoff=0.1)
            raise TaskError(
                f"trainable = {trainable!r}: no parameter's name matches {pattern!r}; there are {', '.join(near)}"
                if near
                else f"trainable = {trainable!r}: the model has no parameters"
            )
    kept = {id(p) for name, p in named if any(fnmatchcase(name, pattern) for pattern in patterns)}
    for _, parameter in named:
        if id(parameter) not in kept:
            parameter.requires_grad_(False)


class ModuleState:
    """A module's tensors, sorted once into those that travel and those that stay local."""

    def __init__(self, net: nn.Module) -> None:
        """Sort them. A module that has nothing to send, or something that cannot be sent, is refused."""
        self.net = net
        self.local: dict[str, str] = {}
        """What does not travel, with the reason."""
        self._specs: list[TensorSpec] = []
        self._sort()
        if frozen := [name for name, why in self.local.items() if why.startswith("frozen")]:
            # Two nodes with different frozen tensors train different models under one name. An empty tensor that is
            # called by their digest makes the schemas differ, and every node checks the schema before it trains.
            self._specs.append(TensorSpec(FROZEN + self._digest(frozen), (0,), buffer=True))
        self.schema = Schema(tuple(self._specs))
        if not any(spec.size for spec in self._specs if not spec.buffer):
            raise TaskError(
                f"{type(net).__name__} has no parameter that is trained, so there is nothing to send; "
                "let some have requires_grad = True, and let the option trainable match them"
            )
        state = net.state_dict()
        sent = {_place(state[spec.name]) for spec in self._specs if not _is_mark(spec)}
        self._restored = {n: b.detach().clone() for n, b in net.named_buffers() if _place(b) not in sent}

    def read(self) -> dict[str, Array]:
        """Copy out what travels, in the schema's order."""
        state = self.net.state_dict()
        return {
            spec.name: np.zeros(0, np.float32) if _is_mark(spec) else _to_numpy(state[spec.name])
            for spec in self._specs
        }

    def write(self, tensors: Mapping[str, Array]) -> None:
        """Copy a model in, and put every buffer that stays local back to how it was: no state outlives a round."""
        if problem := _mismatch(self._specs, tensors):
            raise TaskError(f"this is not a model for {type(self.net).__name__}: {problem}")
        state = self.net.state_dict()
        buffers = dict(self.net.named_buffers())
        with torch.no_grad():
            for spec in self._specs:
                if not _is_mark(spec):
                    state[spec.name].copy_(to_torch(tensors[spec.name], spec.dtype))
            for name, kept in self._restored.items():
                buffers[name].copy_(kept)

    def frozen_modules(self) -> list[nn.Module]:
        """List the modules that have parameters, all of them frozen: in training they stay as in evaluation."""
        found = []
        for module in self.net.modules():
            own = list(module.parameters(recurse=False))
            if own and not any(p.requires_grad for p in own):
                found.append(module)
        return found

    def short(self) -> str:
        """Say which tensors have too few digits of their own to learn in small steps, or nothing."""
        short = [spec for spec in self._specs if spec.dtype in DIGITS and not spec.buffer]
        if not short:
            return ""
        names = short[0].name + (f" and {len(short) - 1} more" if len(short) > 1 else "")
        return (
            f"{names}: {_word(TORCH[short[0].dtype])} holds {DIGITS[short[0].dtype]} bits of a value, so a mean change "
            f"below 1/{2 ** DIGITS[short[0].dtype]} of it is lost; keep the parameters in float32, and compute in "
            f"{_word(TORCH[short[0].dtype])} within torch.autocast"
        )

    def not_finite(self) -> str | None:
        """Name the first tensor that holds a NaN or an infinity."""
        state = self.net.state_dict()
        for spec in self._specs:
            if not _is_mark(spec) and not torch.isfinite(state[spec.name]).all():
                return spec.name
        return None

    def largest(self) -> tuple[str, float]:
        """Name the tensor with the largest value, and that value."""
        state = self.net.state_dict()
        sizes = {s.name: float(state[s.name].abs().max()) for s in self._specs if s.size and not _is_mark(s)}
        name = max(sizes, key=sizes.__getitem__)
        return name, sizes[name]

    def _sort(self) -> None:
        parameters = dict(self.net.named_parameters(remove_duplicate=False))
        frozen = {id(b) for module in self.frozen_modules() for b in module.buffers(recurse=False)}
        first: dict[object, str] = {}
        for name, tensor in self.net.state_dict(keep_vars=True).items():
            if not isinstance(tensor, Tensor):
                self.local[name] = f"it is not a tensor but {type(tensor).__name__}"
                continue
            if nn.parameter.is_lazy(tensor):
                raise TaskError(f"{name} has no shape yet: call the model once on a record before it becomes a task")
            if tensor.is_meta:
                raise TaskError(f"{name} has no values, it is on the meta device: load or initialise the model first")
            same = first.setdefault(_place(tensor), name)
            if same != name:
                self.local[name] = f"tied: it travels as {same}"
            elif name in parameters and not tensor.requires_grad:
                self.local[name] = "frozen: its requires_grad is False, and every node has the same"
            elif id(tensor) in frozen:
                self.local[name] = "frozen, as its module is"
            elif tensor.dtype in DTYPES:
                spec = TensorSpec(name, tuple(tensor.shape), DTYPES[tensor.dtype], buffer=name not in parameters)
                self._specs.append(spec)
            elif name in parameters:
                raise TaskError(
                    f"{name} is {_word(tensor.dtype)}, which does not travel: make it one of "
                    f"{', '.join(_word(t) for t in DTYPES)}, or freeze it with requires_grad_(False)"
                )
            else:
                self.local[name] = f"a {_word(tensor.dtype)} has no mean: every round starts it at its first value"
        self.local |= {
            name: "not persistent: it is not in the state dict, and every round starts it at its first value"
            for name, _ in self.net.named_buffers()
            if name not in self.net.state_dict()
        }

    def _digest(self, names: list[str]) -> str:
        state = self.net.state_dict()
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name} {state[name].dtype} {tuple(state[name].shape)};".encode())
            digest.update(_to_numpy(state[name]).tobytes())
        return digest.hexdigest()[:24]


def _place(tensor: Tensor) -> object:
    """Two names with one place are one tensor. Empty tensors have no place, so each is its own."""
    if not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _is_mark(spec: TensorSpec) -> bool:
    return spec.name.startswith(FROZEN) and spec.shape == (0,)


def _mismatch(specs: list[TensorSpec], tensors: Mapping[str, Array]) -> str:
    for name in sorted({spec.name for spec in specs} ^ set(tensors)):
        return f"{name} is {'not in the model' if name in tensors else 'missing'}"
    for spec in specs:
        if tuple(tensors[spec.name].shape) != spec.shape:
            return f"{spec.name} has shape {tuple(tensors[spec.name].shape)}, not {spec.shape}"
    return ""


def _to_numpy(tensor: Tensor) -> Array:
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16).copy()
    return tensor.numpy().copy()


def to_torch(array: Array, dtype: Dtype) -> Tensor:
    """Make a tensor of an array as the schema holds it."""
    # np.array copies: what arrives from the wire may be read-only, which torch does not know.
    if dtype is Dtype.BF16:
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

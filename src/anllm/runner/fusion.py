"""Fewer and larger operations for the common kind of layer: q/k/v and gate/up as one product each, and what stands
between the products as one kernel each. On a GPU a step is as long as the host needs to submit it, so each operation
less counts.

Attention and MLP modules are recognised by their code: one whose call reads as that of mlx-lm's Llama (or, with norms
of q and k, Qwen 3) computes the same. The merged weights take the place of the single ones, which become views of them,
so that nothing is stored twice and the module itself can still be called.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol, runtime_checkable

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama, qwen3
from mlx_lm.models.rope_utils import Llama3RoPE

from anllm.core.step import Slot
from anllm.runner.attention import FlatCache
from anllm.runner.kv_store import LayerSlabs
from anllm.runner.ragged import RaggedKernels, RaggedRows


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms of each head's q and k, before the rotation. weights: [head_dim]"""

    q_weight: mx.array
    k_weight: mx.array
    eps: float


@dataclass(frozen=True, slots=True)
class RotationShape:
    """Numbers of a Rotation. The first 2 * num_pairs elements of a head turn; pairs are neighbours if is_traditional,
    else num_pairs apart."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_pairs: int
    is_traditional: bool
    has_norm: bool


@dataclass(frozen=True, slots=True)
class Rotation:
    """What happens between the q/k/v product and attention: heads, norms, and rotary positions (arXiv:2104.09864).

    frequencies: float32 [num_pairs], the angle that each pair of elements turns by for each position.
    """

    shape: RotationShape
    frequencies: mx.array
    norm: HeadNorm | None


@runtime_checkable
class FusedKernels(RaggedKernels, Protocol):
    """What a backend has besides ragged attention, if fusing is to pay there."""

    def attend_rotated(
        self, projected: mx.array, layer: LayerSlabs, rows: RaggedRows, rotation: Rotation, *, scale: float
    ) -> tuple[mx.array, mx.array]:
        """projected: [n, 1, (num_heads + 2 * num_kv_heads) * head_dim], of the tokens in rows: q, k and v.

        Turns q and k, writes k and v into the slots, and attends as ragged() does. Returns that, [n, num_heads, 1,
        head_dim], and what must be evaluated for the writes to happen. Raises ValueError for heads that the kernel
        can't take.
        """
        ...

    def swiglu(self, projected: mx.array) -> mx.array:
        """projected: [..., 2 * width], gate and up. silu(gate) * up, [..., width]."""
        ...


@runtime_checkable
class RecordableKernels(FusedKernels, Protocol):
    """Those of a backend whose steps can be recorded (replay.py).

    writes_in_place: attend_rotated leaves the slabs the arrays that they are. resize_bytes: see KVStore.
    """

    writes_in_place: bool
    resize_bytes: int

    def copy_rows(self, layer: LayerSlabs, source: Slot, targets: Sequence[Slot], num_tokens: int) -> mx.array:
        """CopyRows (kv_store.py)."""
        ...


class FusedAttention(nn.Module):
    """In the place of a model's attention. Where it can't take the short way, it calls that."""

    def __init__(self, stock: Any, kernels: FusedKernels, rotation: Rotation) -> None:
        super().__init__()
        self.stock = stock
        self.qkv_proj = merge([stock.q_proj, stock.k_proj, stock.v_proj])
        self.o_proj = stock.o_proj
        self._kernels = kernels
        self._rotation = rotation
        self._scale = float(stock.scale)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        """x: [n, 1, hidden] -> the same shape"""
        rows = cache.layout.ragged_rows if isinstance(cache, FlatCache) else None
        if rows is None:
            return self.stock(x, mask, cache)
        out, cache.layout.written = self._kernels.attend_rotated(
            self.qkv_proj(x), cache.layer, rows, self._rotation, scale=self._scale
        )
        return self.o_proj(out.reshape(x.shape[0], 1, -1))


class FusedMLP(nn.Module):
    """In the place of a model's gated MLP."""

    def __init__(self, stock: Any, kernels: FusedKernels) -> None:
        super().__init__()
        self.gate_up_proj = merge([stock.gate_proj, stock.up_proj])
        self.down_proj = stock.down_proj
        self._kernels = kernels

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(self._kernels.swiglu(self.gate_up_proj(x)))


@dataclass(slots=True)
class Fusion:
    """What was put in the place of what."""

    replaced: list[tuple[nn.Module, str, nn.Module]] = field(default_factory=list)

    @property
    def num_attentions(self) -> int:
        return sum(isinstance(getattr(parent, name), FusedAttention) for parent, name, _ in self.replaced)

    def undo(self) -> None:
        """The model as it was. Its weights stay merged in memory, which changes nothing about them."""
        for parent, name, stock in self.replaced:
            setattr(parent, name, stock)
        self.replaced.clear()


def fuse(model: nn.Module, kernels: FusedKernels) -> Fusion:
    """Replace what is recognised, layer by layer, so that only one layer's weights are there twice for a moment."""
    fusion = Fusion()
    for parent, name, child in list(_children(model)):
        fused: nn.Module | None = None
        if _can_merge(child, ("q_proj", "k_proj", "v_proj")) and (rotation := find_rotation(child)) is not None:
            fused = FusedAttention(child, kernels, rotation)
        elif _can_merge(child, ("gate_proj", "up_proj")) and _reads_like(child.__class__, llama.MLP):
            fused = FusedMLP(child, kernels)
        if fused is not None:
            fusion.replaced.append((parent, name, child))
            setattr(parent, name, fused)
    return fusion


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Each module's parent, name and itself, but for those that are fused already."""
    for module in model.modules():
        if isinstance(module, FusedAttention | FusedMLP):
            continue
        for name, child in module.children().items():
            if isinstance(child, nn.Module):
                yield module, name, child


# -- recognising -------------------------------------------------------------------------------------------------------


def find_rotation(attention: Any) -> Rotation | None:
    """Of an attention module that computes as Llama's or Qwen 3's does; None for any other."""
    has_norms = _reads_like(attention.__class__, qwen3.Attention)
    if not has_norms and not _reads_like(attention.__class__, llama.Attention):
        return None
    frequencies = _frequencies(attention.rope)
    if frequencies is None:
        return None
    norm = None
    if has_norms:
        q_norm, k_norm = attention.q_norm, attention.k_norm
        if not all(isinstance(norm, nn.RMSNorm) for norm in (q_norm, k_norm)) or q_norm.eps != k_norm.eps:
            return None
        norm = HeadNorm(q_norm.weight, k_norm.weight, q_norm.eps)
    num_heads, num_kv_heads = attention.n_heads, attention.n_kv_heads
    head_dim = _height(attention.q_proj) // num_heads
    if _height(attention.k_proj) != num_kv_heads * head_dim or _height(attention.v_proj) != num_kv_heads * head_dim:
        return None
    shape = RotationShape(
        num_heads, num_kv_heads, head_dim, frequencies.size, attention.rope.traditional, norm is not None
    )
    return Rotation(shape, frequencies, norm)


def _frequencies(rope: Any) -> mx.array | None:
    """Radians for each position, float32 [dims / 2]; None for a kind of rotary embedding that does more than that."""
    if isinstance(rope, nn.RoPE):  # or a backend's own, which computes the same
        half = rope.dims // 2
        return mx.array((rope.scale * rope.base ** (-np.arange(half) / half)).astype(np.float32))
    if type(rope) is Llama3RoPE:
        frequencies = 1 / rope._freqs.astype(mx.float32)
        mx.eval(frequencies)  # once, not with every step
        return frequencies
    return None


@cache
def _reads_like(kind: Any, known: Any) -> bool:
    """Whether both classes have the same __call__: the same code, with the same functions behind its names."""
    if kind is known:
        return True
    mine, theirs = vars(kind).get("__call__"), vars(known)["__call__"]
    if not inspect.isfunction(mine) or _code_of(mine) != _code_of(theirs):
        return False
    names = set(theirs.__code__.co_names) & theirs.__globals__.keys()
    return all(_plain(mine.__globals__.get(name)) is _plain(theirs.__globals__[name]) for name in names)


def _code_of(function: Any) -> str:
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, SyntaxError):  # no source at hand
        return repr(function)


def _plain(value: Any) -> Any:
    """mlx-lm's own function, also where a hook (hook.py) stands in its place."""
    return getattr(value, "stock", value)


# -- merging -----------------------------------------------------------------------------------------------------------


@runtime_checkable
class MergeableLinear(Protocol):
    """A backend's own linear layer, which knows how several of it become one."""

    def can_merge(self, parts: list[Any]) -> bool: ...

    def merge(self, parts: list[Any]) -> Any: ...


def _height(linear: Any) -> int:
    return int(linear.weight.shape[0])


def _can_merge(module: nn.Module, names: tuple[str, ...]) -> bool:
    """Whether these children are linear layers of one form: width, type, quantisation, bias."""
    parts: list[Any] = [module.get(name) for name in names]
    if all(isinstance(part, MergeableLinear) for part in parts):
        return bool(parts[0].can_merge(parts))
    if any(type(part) not in (nn.Linear, nn.QuantizedLinear) or type(part) is not type(parts[0]) for part in parts):
        return False
    return len({_form(part) for part in parts}) == 1


def _form(linear: Any) -> tuple[Any, ...]:
    settings = [getattr(linear, name, None) for name in ("bits", "group_size", "mode")]
    arrays = [(name, linear[name].dtype, *linear[name].shape[1:]) for name in sorted(_arrays(linear))]
    return (*settings, *arrays)


def merge(parts: list[Any]) -> Any:
    """One linear layer that computes all of `parts`, one behind the other; they must be of one form (_can_merge)."""
    if isinstance(parts[0], MergeableLinear):
        return parts[0].merge(parts)
    merged = copy.copy(parts[0])
    ends = np.cumsum([_height(part) for part in parts]).tolist()
    for name in _arrays(merged):
        whole = mx.concatenate([part[name] for part in parts])
        views = [whole[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        mx.eval(whole, views)
        merged[name] = whole
        for part, view in zip(parts, views, strict=True):
            part[name] = view
    return merged


def _arrays(module: Any) -> list[str]:
    return [name for name, value in module.items() if isinstance(value, mx.array)]

"""Transformers as CTranslate2 models: with random weights of any size, or converted from a model folder of ours.

Both ways meet in plain arrays, so what the peer is measured with and what its converted translations are tested with
is written by the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capsnmt.bench.peer_tokens import token_of
from capsnmt.errors import CapsNMTError

if TYPE_CHECKING:
    from torch import nn

    from capsnmt.models.layers import Attention
    from capsnmt.models.transformer import Transformer

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b."""

    weight: Floats  # (outputs, inputs)
    bias: Floats


@dataclass(frozen=True)
class Norm:
    """Layer normalisation."""

    gamma: Floats
    beta: Floats


@dataclass(frozen=True)
class AttentionBlock:
    """One attention and its norm."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm: Norm


@dataclass(frozen=True)
class FeedForwardBlock:
    """Two linear layers with a ReLU between them, and their norm."""

    inner: Linear
    outer: Linear
    norm: Norm


@dataclass(frozen=True)
class Layer:
    """An encoder layer, or with `source` a decoder layer."""

    attention: AttentionBlock
    feed_forward: FeedForwardBlock
    source: AttentionBlock | None = None


@dataclass(frozen=True)
class TransformerArrays:
    """A whole Transformer. `norms`: of encoder and decoder after the last layer; None in a post-norm model."""

    num_heads: int
    encoder: Sequence[Layer]
    decoder: Sequence[Layer]
    source_embedding: Floats  # (vocabulary, width), scaled by √width when they are read
    target_embedding: Floats
    projection: Floats
    positions: Floats  # (positions, width)
    norms: tuple[Norm, Norm] | None


def random_transformer(
    *, layers: tuple[int, int], width: int, num_heads: int, vocabulary: int, num_positions: int, seed: int
) -> TransformerArrays:
    """Pre-norm, as CTranslate2's own converters mostly find it; the time does not depend on the values."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Floats:
        values: Floats = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)
        return values

    def linear(outputs: int, inputs: int) -> Linear:
        return Linear(matrix(outputs, inputs), np.zeros(outputs, np.float32))

    def norm() -> Norm:
        return Norm(np.ones(width, np.float32), np.zeros(width, np.float32))

    def attention() -> AttentionBlock:
        query, key, value, output = (linear(width, width) for _ in range(4))
        return AttentionBlock(query, key, value, output, norm())

    def layer(*, decoder: bool) -> Layer:
        feed_forward = FeedForwardBlock(linear(4 * width, width), linear(width, 4 * width), norm())
        return Layer(attention(), feed_forward, attention() if decoder else None)

    embedding = matrix(vocabulary, width)
    return TransformerArrays(
        num_heads=num_heads,
        encoder=[layer(decoder=False) for _ in range(layers[0])],
        decoder=[layer(decoder=True) for _ in range(layers[1])],
        source_embedding=embedding,
        target_embedding=embedding,
        projection=embedding,
        positions=sinusoids(num_positions, width),
        norms=(norm(), norm()),
    )


def sinusoids(num_positions: int, width: int) -> Floats:
    """Sines and cosines in turn: what `models/layers.sinusoidal_positions` computes, as a table."""
    frequencies = np.exp(np.arange(0, width, 2) * (-np.log(10_000.0) / width))
    angles = np.arange(num_positions)[:, None] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(num_positions, width).astype(np.float32)


def transformer_arrays(model: Transformer, *, num_positions: int) -> TransformerArrays:
    """The arrays of our own Transformer, post-norm or pre-norm."""
    from torch import nn

    encoder = [
        Layer(
            _attention_of(layer.attention, layer.attention_sublayer.norm),
            _feed_forward_of(layer.feed_forward, layer.feed_forward_sublayer.norm),
        )
        for layer in _modules(model.encoder)
    ]
    decoder = [
        Layer(
            _attention_of(layer.attention, layer.attention_sublayer.norm),
            _feed_forward_of(layer.feed_forward, layer.feed_forward_sublayer.norm),
            _attention_of(layer.source_attention, layer.source_sublayer.norm),
        )
        for layer in _modules(model.decoder)
    ]
    ends = model.encoder_norm, model.decoder_norm
    pre = isinstance(ends[0], nn.LayerNorm) and isinstance(ends[1], nn.LayerNorm)
    return TransformerArrays(
        num_heads=model.config.num_heads,
        encoder=encoder,
        decoder=decoder,
        source_embedding=_array(model.source_embedding.weight),
        target_embedding=_array(model.target_embedding.weight),
        projection=_array(model.output.weight),
        positions=sinusoids(num_positions, model.config.width),
        norms=(_norm_of(ends[0]), _norm_of(ends[1])) if pre else None,
    )


def convert_folder(folder: Path, target: Path, *, num_positions: int, int8: bool = True) -> None:
    """Writes a trained Transformer of ours as a CTranslate2 model."""
    from capsnmt.models.transformer import Transformer
    from capsnmt.runtime.torch_engine import TorchEngine

    model = TorchEngine.load(folder, device="cpu").model
    if not isinstance(model, Transformer):
        raise CapsNMTError(f"{folder} holds a {type(model).__name__}: CTranslate2 runs Transformers alone")
    write_peer(transformer_arrays(model, num_positions=num_positions), target, int8=int8)


def write_peer(
    arrays: TransformerArrays, folder: Path, *, int8: bool = True, vocabulary_map: Path | None = None
) -> None:
    """Writes a CTranslate2 model folder. Ids keep their numbers; their tokens are `token_of` them."""
    from ctranslate2.specs import transformer_spec

    spec: Any = transformer_spec.TransformerSpec.from_config(
        (len(arrays.encoder), len(arrays.decoder)), arrays.num_heads, pre_norm=arrays.norms is not None
    )
    for side, layers in ((spec.encoder, arrays.encoder), (spec.decoder, arrays.decoder)):
        for place, layer in zip(side.layer, layers, strict=True):
            _put_self_attention(place.self_attention, layer.attention)
            if layer.source is not None:
                _put_source_attention(place.attention, layer.source)
            _put_linear(place.ffn.linear_0, layer.feed_forward.inner)
            _put_linear(place.ffn.linear_1, layer.feed_forward.outer)
            _put_norm(place.ffn.layer_norm, layer.feed_forward.norm)
        side.position_encodings.encodings = arrays.positions
    if arrays.norms is not None:
        _put_norm(spec.encoder.layer_norm, arrays.norms[0])
        _put_norm(spec.decoder.layer_norm, arrays.norms[1])
    spec.encoder.embeddings[0].weight = arrays.source_embedding
    spec.decoder.embeddings.weight = arrays.target_embedding
    spec.decoder.projection.weight = arrays.projection
    spec.register_source_vocabulary([token_of(id_) for id_ in range(len(arrays.source_embedding))])
    spec.register_target_vocabulary([token_of(id_) for id_ in range(len(arrays.target_embedding))])
    if vocabulary_map is not None:
        spec.register_vocabulary_mapping(str(vocabulary_map))
    spec.validate()
    spec.optimize(quantization="int8" if int8 else None)
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _put_linear(place: Any, *parts: Linear) -> None:
    """CTranslate2 keeps projections that read the same input as one: their rows below each other."""
    place.weight = np.concatenate([part.weight for part in parts])
    place.bias = np.concatenate([part.bias for part in parts])


def _put_norm(place: Any, norm: Norm) -> None:
    place.gamma, place.beta = norm.gamma, norm.beta


def _put_self_attention(place: Any, block: AttentionBlock) -> None:
    _put_linear(place.linear[0], block.query, block.key, block.value)
    _put_linear(place.linear[1], block.output)
    _put_norm(place.layer_norm, block.norm)


def _put_source_attention(place: Any, block: AttentionBlock) -> None:
    _put_linear(place.linear[0], block.query)
    _put_linear(place.linear[1], block.key, block.value)
    _put_linear(place.linear[2], block.output)
    _put_norm(place.layer_norm, block.norm)


def _modules(modules: nn.ModuleList) -> list[Any]:
    return list(modules)


def _array(tensor: Any) -> Floats:
    array: Floats = tensor.detach().float().numpy()
    return array


def _linear_of(linear: Any) -> Linear:
    return Linear(_array(linear.weight), _array(linear.bias))


def _norm_of(norm: Any) -> Norm:
    return Norm(_array(norm.weight), _array(norm.bias))


def _attention_of(attention: Attention, norm: nn.LayerNorm) -> AttentionBlock:
    parts = (attention.query, attention.key, attention.value, attention.output)
    query, key, value, output = (_linear_of(part) for part in parts)
    return AttentionBlock(query, key, value, output, _norm_of(norm))


def _feed_forward_of(feed_forward: Any, norm: nn.LayerNorm) -> FeedForwardBlock:
    return FeedForwardBlock(_linear_of(feed_forward[0]), _linear_of(feed_forward[2]), _norm_of(norm))

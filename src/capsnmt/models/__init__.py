"""The systems, one file each, on one contract. Import this room only where torch is needed anyway."""

from __future__ import annotations

from typing import Any, NamedTuple

from capsnmt.config import StrictModel, parse
from capsnmt.errors import CapsNMTError
from capsnmt.models.bytenet import ByteNet, ByteNetConfig
from capsnmt.models.capsnmt import CapsNMT, CapsNMTConfig
from capsnmt.models.contract import TranslationModel
from capsnmt.models.convs2s import ConvS2S, ConvS2SConfig
from capsnmt.models.deep_encdec import DeepEncDec, DeepEncDecConfig
from capsnmt.models.encdec import EncDec, EncDecConfig
from capsnmt.models.gnmt import GNMT, GNMTConfig
from capsnmt.models.hybrid import Hybrid, HybridConfig
from capsnmt.models.pooling import AttentionPooling, AttentionPoolingConfig
from capsnmt.models.rnmt import RNMT, RNMTConfig
from capsnmt.models.rnnsearch import RNNSearch, RNNSearchConfig
from capsnmt.models.simple import SimpleAggregation, SimpleAggregationConfig
from capsnmt.models.transformer import Transformer, TransformerConfig


class System(NamedTuple):
    """A system's settings and its class."""

    config: type[StrictModel]
    model: type[Any]  # its constructor takes (config, *, source_size, target_size)


MODELS: dict[str, System] = {
    "capsnmt": System(CapsNMTConfig, CapsNMT),
    "simple": System(SimpleAggregationConfig, SimpleAggregation),
    "pooling": System(AttentionPoolingConfig, AttentionPooling),
    "transformer": System(TransformerConfig, Transformer),
    "encdec": System(EncDecConfig, EncDec),
    "deep_encdec": System(DeepEncDecConfig, DeepEncDec),
    "rnnsearch": System(RNNSearchConfig, RNNSearch),
    "gnmt": System(GNMTConfig, GNMT),
    "bytenet": System(ByteNetConfig, ByteNet),
    "convs2s": System(ConvS2SConfig, ConvS2S),
    "rnmt": System(RNMTConfig, RNMT),
    "hybrid": System(HybridConfig, Hybrid),
}


def parse_model_config(values: dict[str, Any]) -> StrictModel:
    """Validates the `model` section of a recipe against its system's own config."""
    name = values.get("system")
    if name not in MODELS:
        raise CapsNMTError(f"model.system: {name!r} is unknown; known systems: {', '.join(MODELS)}")
    return parse(MODELS[name].config, values, "model")


def whole_model_section(values: dict[str, Any]) -> dict[str, Any]:
    """The `model` section with its system's defaults spelt out, as plain values."""
    return parse_model_config(values).model_dump(mode="json")


def build_model(values: dict[str, Any], *, source_size: int, target_size: int) -> TranslationModel:
    """Builds the system that the `model` section names."""
    config = parse_model_config(values)
    try:
        model: TranslationModel = MODELS[values["system"]].model(
            config, source_size=source_size, target_size=target_size
        )
    except ValueError as error:
        raise CapsNMTError(f"model: {error}") from None
    return model

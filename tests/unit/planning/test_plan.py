import math
from pathlib import Path
from typing import Any

import pytest

from capsnmt.config import RunConfig, load_recipe
from capsnmt.distillation import TEACHER_BEAM
from capsnmt.errors import CapsNMTError
from capsnmt.planning import figures
from capsnmt.planning.plan import corpus_figures, hours, model_costs, plan, share_of_peak

RECIPES = Path(__file__).parents[3] / "recipes"
V, WIDTH, INNER = 1000, 32, 64


def transformer(**training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "languages": {"source": "en", "target": "de"},
            "data": {"train": {"tsv": "a"}, "valid": {"tsv": "b"}, "store": "nowhere/store"},
            "text": {"subwords": {"vocabulary": V}},
            "model": {
                "system": "transformer",
                "width": WIDTH,
                "inner_width": INNER,
                "num_heads": 4,
                "encoder_layers": 2,
                "decoder_layers": 1,
            },
            "training": {"steps": 100, "learning_rate": 0.1, "batch_tokens": 512, **training},
            "output": "nowhere/model",
        }
    )


def test_operations_are_those_of_the_matrices() -> None:
    """Counted by hand: 2 operations for each weight and token, and attention's two products over 8 positions."""
    costs = model_costs(transformer())
    attention, over_positions = 4 * WIDTH * WIDTH, 2 * 8 * WIDTH
    feed_forward = 2 * WIDTH * INNER
    encoder = 2 * (attention + feed_forward + over_positions)
    source_keys = 2 * WIDTH * WIDTH  # of the decoder, made once for each source token
    decoder = 2 * attention + feed_forward + 2 * over_positions - source_keys
    assert costs.encoder_flops == pytest.approx(2 * (encoder + source_keys), rel=0.01)
    assert costs.decoder_flops == pytest.approx(2 * (decoder + V * WIDTH), rel=0.01)
    assert costs.training_flops == pytest.approx(3 * (costs.encoder_flops + costs.decoder_flops))
    assert costs.saved_bytes > 4 * V  # the log-probabilities, at least


def test_published_models_take_two_operations_for_each_parameter() -> None:
    costs = model_costs(load_recipe(RECIPES / "wmt14-en-de" / "transformer-base.yaml"))
    # One table of embeddings, which is a product for the target only; so each parameter counts once a pair of tokens.
    assert (costs.encoder_flops + costs.decoder_flops) / (2 * costs.parameters) == pytest.approx(1.0, abs=0.03)


def test_characters_are_counted_in_sentences_that_are_longer_than_what_they_are_padded_to() -> None:
    recipe = load_recipe(RECIPES / "wmt14-en-de" / "bytenet.yaml")
    costs = model_costs(recipe)
    width, blocks = 800, 30
    block = 2 * (2 * width * width + 3 * width * width + 2 * width * width)
    assert costs.encoder_flops == pytest.approx(150 * 1.2 / 140 * blocks * block)  # padded to 150, then unfolded
    found = corpus_figures(recipe, None)
    assert found.source_tokens == found.target_tokens == 141


def test_the_arithmetic_of_training() -> None:
    config = transformer(accumulate=8)
    costs = model_costs(config)
    one, eight = (plan(config, f"{count}xM40", pairs=1_000_000) for count in (1, 8))
    compute_s = 100 * 8 * 512 * costs.training_flops / (7.0e12 * figures.GPU_TRAINING_SHARE)
    exchange_s = 100 * 2 * 4 * costs.parameters * 7 / 8 / 10e9
    assert one.training_s == pytest.approx(compute_s)
    assert eight.training_s == pytest.approx(compute_s / 8 + exchange_s)
    assert plan(config, "3xM40", pairs=10).training_s == pytest.approx(
        compute_s * 3 / 8 + 100 * 2 * 4 * costs.parameters * 2 / 3 / 10e9  # the busiest of three has three of eight
    )
    assert eight.distilling_s == pytest.approx(one.distilling_s / 8)
    assert one.store_bytes == pytest.approx(1_000_000 * (280 + 4 * 54 + 17))
    assert one.model_bytes == pytest.approx(4 * costs.parameters * 17)


def test_distilling_is_costed_with_the_beam_of_distill_and_serving_with_the_recipe_s() -> None:
    config, pairs = transformer(), 1_000_000
    found, costs = plan(config, "1xM40", pairs=pairs), model_costs(config)

    def sentence_s(beam: int) -> float:
        return 27 * (costs.encoder_flops + beam * costs.decoder_flops) / (7.0e12 * figures.GPU_DECODING_SHARE)

    assert config.decoding.beam != TEACHER_BEAM
    assert found.distilling_s == pytest.approx(pairs * sentence_s(TEACHER_BEAM))
    assert any(f"beam {TEACHER_BEAM} of `distill`" in line for line in found.lines)
    served = 1e9 / 140 / 86_400 * sentence_s(config.decoding.beam) / figures.SERVING_LOAD
    assert found.devices_to_serve == math.ceil(served)
    assert found.journal_bytes == pytest.approx(pairs * (140 + 28))


def test_memory_and_disk_by_hand() -> None:
    config = transformer(accumulate=8)
    costs = model_costs(config)
    one, eight = (plan(config, f"{count}xM40", pairs=10) for count in (1, 8))
    assert eight.training_bytes - one.training_bytes == pytest.approx(4 * costs.parameters)  # gradient buckets
    assert one.runtime_bytes == pytest.approx(1.05 * costs.parameters)
    assert one.serving_bytes == pytest.approx(0.3e9 + 2 * one.runtime_bytes)


def test_systems_without_recurrence_keep_a_gpu_as_busy_as_the_transformer() -> None:
    names = ["transformer-base", "convs2s", "bytenet", "capsnmt-base"]
    shares = [
        share_of_peak(load_recipe(RECIPES / "wmt14-en-de" / f"{name}.yaml"), figures.DEVICES["p100"]) for name in names
    ]
    assert shares[:3] == [figures.GPU_TRAINING_SHARE] * 3
    assert shares[3] == figures.GPU_RECURRENT_TRAINING_SHARE


def test_bf16_is_planned_where_the_recipe_asks_for_it() -> None:
    plain, mixed = transformer(), transformer(bf16_modules=["encoder"])
    ratio = plan(plain, "1xA100", pairs=10).training_s / plan(mixed, "1xA100", pairs=10).training_s
    assert ratio == pytest.approx(312 / 19.5 * figures.GPU_BF16_SHARE)


def test_what_does_not_fit_is_said() -> None:
    assert not any("MORE" in line for line in plan(transformer(), "1xM40", pairs=10).lines)
    assert any("MORE than the 24 GB" in line for line in plan(transformer(batch_tokens=10**8), "1xM40", pairs=10).lines)


def test_the_size_of_the_corpus_must_come_from_somewhere() -> None:
    with pytest.raises(CapsNMTError, match="add --pairs N"):
        plan(transformer(), "1xM40")
    named = load_recipe(RECIPES / "wmt14-en-fr" / "capsnmt-base.yaml")
    assert corpus_figures(named, None).pairs == 36_000_000
    assert corpus_figures(named, 7).pairs == 7


def test_lines_of_a_corpus_that_is_not_prepared_are_counted(tmp_path) -> None:
    config = transformer()
    for name, line in (("train.en", "four words are here\n"), ("train.de", "vier\n")):
        (tmp_path / name).write_text(line * 5, encoding="utf-8")
    train = config.data.train.model_copy(update={"source": "train.en", "target": "train.de", "tsv": None})
    data = config.data.model_copy(update={"root": str(tmp_path), "train": train, "store": str(tmp_path / "store")})
    found = corpus_figures(config.model_copy(update={"data": data}), None)
    assert (found.pairs, found.text_bytes) == (5, 25.0)
    assert found.source_tokens == pytest.approx(27 * 25 / 280)


@pytest.mark.parametrize("text", ["8xM41", "0xM40", "x", "M40x8", ""])
def test_devices_that_are_not_known(text: str) -> None:
    with pytest.raises(CapsNMTError, match="known devices: M40"):
        figures.parse_devices(text)


def test_devices() -> None:
    assert figures.parse_devices("8xm40") == (8, figures.DEVICES["m40"])
    assert figures.parse_devices("H100")[0] == 1
    count, core = figures.parse_devices("2xcpu")
    assert count == 2
    assert core.is_cpu
    assert core.fp32_flops > 1e8


def test_durations_are_readable() -> None:
    assert [hours(s) for s in (3.21, 600, 10_000, 1_000_000)] == ["3.2 s", "10.0 min", "2.8 h", "11.6 days"]

"""Every recipe loads, builds, and has the number of parameters that the papers' equations give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from capsnmt.config import RunConfig, load_recipe
from capsnmt.models import MODELS, build_model, parse_model_config

ROOT = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(ROOT.glob("**/*.yaml"))
WMT14 = [path for path in RECIPES if path.parent.name.startswith("wmt14")]


def name(path):
    return str(path.relative_to(ROOT))


# ---------------------------------------------------------------- counted by hand


def lstm(x, h):
    """Four gates, each with weights for the input and the state, and torch's two bias vectors."""
    return 4 * (h * (x + h) + 2 * h)


def linear(inputs, outputs):
    return inputs * outputs + outputs


def embeddings(config, V):
    tables = {"all": 1, "target": 2, "none": 3}[config.tie_embeddings]  # with a vocabulary of V words on each side
    return tables * V * config.width


def recurrent_frame(config, V, M):
    """What CapsNMT and simple aggregation share: Eq. 1, W_c of Eq. 5 for M vectors, Eq. 5 and Eq. 6."""
    d = config.width
    layer_norm = 2 * d
    attention = 0 if config.attention == "none" else 4 * linear(d, d) + layer_norm
    encoder = config.encoder_layers * (2 * lstm(d, d // 2) + layer_norm)
    W_c = M * d * d
    decoder = config.decoder_layers * (lstm(d, d) + layer_norm)
    return embeddings(config, V) + encoder + W_c + decoder + attention


def capsnmt(config, V):
    d = config.width
    total = recurrent_frame(config, V, config.num_capsules[-1])
    for M in config.num_capsules:
        thetas = 1 if config.share_iteration_weights else config.num_iterations
        one_theta = {"per_parent": M * d * d, "shared": d * d, "low_rank": 2 * M * d * config.rank}
        total += thetas * one_theta[config.transform]  # W_j^t of Eq. 8
        total += linear(d, M) if config.position_prior else 0
        scores = config.separable_scoring and config.num_iterations > 1  # one iteration never scores
        total += 2 * linear(d, d) if scores else 0  # g of Eq. 14
        total += 2 * d if config.capsule_norm else 0
    if config.start_state == "capsules":
        total += 2 * linear(d, config.decoder_layers * d)
    return total


def simple(config, V):
    d, inner = config.width, config.projection_width
    total = recurrent_frame(config, V, 4)  # [max, avg, first, last] has no parameters
    total += 0 if inner is None else linear(d, inner) + linear(inner, d)
    return total + (2 * d if config.vector_norm else 0)


def pooling(config, V):
    d, M = config.width, config.num_queries
    return recurrent_frame(config, V, M) + M * d * d + linear(d, d) + M * d + 2 * d  # W, keys, queries, layer norm


def transformer(config, V):
    """Vaswani et al. 2017, section 3."""
    d, inner = config.width, config.inner_width
    attention, layer_norm = 4 * linear(d, d), 2 * d
    feed_forward = linear(d, inner) + linear(inner, d)
    encoder = config.encoder_layers * (attention + feed_forward + 2 * layer_norm)
    decoder = config.decoder_layers * (2 * attention + feed_forward + 3 * layer_norm)
    last_norms = 2 * layer_norm if config.norm == "pre" else 0
    return embeddings(config, V) + encoder + decoder + last_norms


COUNTS = {"capsnmt": capsnmt, "simple": simple, "pooling": pooling, "transformer": transformer}


def count_parameters(values, V):
    with torch.device("meta"):
        model = build_model(values, source_size=V, target_size=V)
    return sum(parameter.numel() for parameter in model.parameters())


def test_every_system_is_counted(system):
    assert system in COUNTS, f"write the parameter count of {system!r} as a formula into COUNTS"


def test_the_formulas_hold_for_every_tiny_variant(variant, tiny_config):
    values = tiny_config(*variant)
    config = parse_model_config(values)
    assert count_parameters(values, 40) == COUNTS[variant[0]](config, 40)


def test_the_formula_gives_the_published_transformer():
    """65M and 213M in table 3 of Vaswani et al., with about 37,000 subwords; the last per cent depends on them."""
    base, big = MODELS["transformer"].config(), MODELS["transformer"].config(width=1024, inner_width=4096, num_heads=16)
    assert transformer(base, 37_000) / 65e6 == pytest.approx(1.0, abs=0.04)
    assert transformer(big, 37_000) / 213e6 == pytest.approx(1.0, abs=0.04)


# ---------------------------------------------------------------- the recipes


def test_there_are_recipes():
    published = set(MODELS) - {"pooling"}  # a control of ours: it has no paper
    assert {load_recipe(path).model["system"] for path in WMT14} == published
    assert len(WMT14) >= 2 * len(published)
    assert {load_recipe(path).model["system"] for path in RECIPES} == set(MODELS)


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_loads_and_has_its_parameter_count(path):
    recipe = load_recipe(path)
    config = parse_model_config(recipe.model)
    V = recipe.text.subwords.vocabulary
    assert recipe.text.subwords.joint or recipe.model["tie_embeddings"] != "all"
    assert count_parameters(recipe.model, V) == COUNTS[config.system](config, V)


def given_keys(values, prefix=""):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from given_keys(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_is_complete(path):
    """No inheritance: what a run does must not change when a default does."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    recipe = load_recipe(path)
    given = set(given_keys(values))
    model = {f"model.{key}" for key in parse_model_config(recipe.model).model_dump()}
    every = set(given_keys(recipe.model_dump(exclude={"model"}))) | model
    # Ways to get a corpus, not settings of a run.
    optional = {"data.generate", "data.fetch", "data.subwords_from", "data.train.mix", "data.train.temperature"}
    either = {f"data.{part}.{side}" for part in ("train", "valid", "test") for side in ("source", "target", "tsv")}
    assert every - given - optional - either == set()


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_folders_follow_the_recipes_name(path):
    recipe = load_recipe(path)
    corpus = path.parent.name
    assert recipe.output == f"runs/{corpus}/{path.stem}"
    assert recipe.data.store == f"runs/{corpus}/store"  # shared, so that systems share their vocabulary
    assert path.stem.split("-")[0] == recipe.model["system"]
    pair = f"{recipe.languages.source}-{recipe.languages.target}"
    assert corpus == "demo" or corpus.endswith(pair)


def test_recipes_of_a_corpus_share_their_data_and_text():
    """Otherwise the second to run would find a store of other settings."""
    shared: dict[str, RunConfig] = {}
    for path in RECIPES:
        recipe = load_recipe(path)
        first = shared.setdefault(path.parent.name, recipe)
        assert recipe.data == first.data, name(path)
        assert recipe.text == first.text, name(path)


# ---------------------------------------------------------------- the paper's values (section 4)


@pytest.mark.parametrize("path", WMT14, ids=name)
def test_wmt14_recipes_train_as_the_paper_says(path):
    recipe = load_recipe(path)
    training, decoding, model = recipe.training, recipe.decoding, recipe.model
    assert recipe.text.subwords.type == "bpe"
    assert recipe.text.subwords.vocabulary == 50_000
    assert training.batch_tokens == 4096
    assert training.accumulate == 8  # for 8 GPUs
    assert training.steps == 300_000
    assert training.checkpoint_minutes == 30
    assert training.checkpoint_every is None
    assert training.average_last == 50
    assert training.keep_last == 50
    assert training.label_smoothing == 0.1
    assert (decoding.beam, decoding.length_penalty, decoding.length_penalty_type) == (8, 0.8, "wu")
    # "similar to those used by Vaswani et al."
    assert training.adam_betas == (0.9, 0.98)
    assert training.adam_epsilon == 1e-9
    assert (training.schedule, training.warmup_steps) == ("inverse_sqrt", 4000)
    assert training.learning_rate == pytest.approx(model["width"] ** -0.5 * 4000**-0.5, rel=1e-3)
    assert model["width"] == (1024 if path.stem.endswith("big") else 512)
    # newstest2012 + 2013 to validate, newstest2014 to test
    assert "2012" in recipe.data.valid.source
    assert "2013" in recipe.data.valid.source
    assert "newstest2014" in recipe.data.test.source


@pytest.mark.parametrize("path", [path for path in WMT14 if not path.stem.startswith("transformer")], ids=name)
def test_wmt14_recipes_of_the_papers_own_systems(path):
    recipe = load_recipe(path)
    config = parse_model_config(recipe.model)
    assert (config.encoder_layers, config.decoder_layers) == (4, 3)
    assert config.dropout == {"de": 0.3, "fr": 0.1}[recipe.languages.target]


@pytest.mark.parametrize("path", [path for path in WMT14 if path.stem.startswith("capsnmt")], ids=name)
def test_wmt14_recipes_of_capsnmt(path):
    config = parse_model_config(load_recipe(path).model)
    assert config.num_capsules == (6,)  # M
    assert config.num_iterations == 3
    assert config.position_aware  # the three strategies
    assert not config.share_iteration_weights
    assert config.separable_scoring


@pytest.mark.parametrize("path", [path for path in WMT14 if path.stem.startswith("transformer")], ids=name)
def test_wmt14_recipes_of_the_transformer(path):
    """Vaswani et al., table 3."""
    recipe = load_recipe(path)
    config, big = parse_model_config(recipe.model), path.stem.endswith("big")
    assert (config.inner_width, config.num_heads) == ((4096, 16) if big else (2048, 8))
    assert (config.encoder_layers, config.decoder_layers, config.norm) == (6, 6, "post")
    assert config.dropout == (0.3 if big and recipe.languages.target == "de" else 0.1)


def test_the_papers_rows_are_there():
    rows = {f"{system}-{size}" for system in ("capsnmt", "simple", "transformer") for size in ("base", "big")}
    for corpus in ("wmt14-en-de", "wmt14-en-fr"):
        assert {path.stem for path in WMT14 if path.parent.name == corpus} >= rows

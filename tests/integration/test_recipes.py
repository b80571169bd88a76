"""Every recipe loads, builds, and has the number of parameters that the papers' equations give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from counts import COUNTS, encdec, gnmt, rnmt, transformer

from capsnmt.analysis.records import fingerprint, settings_of
from capsnmt.analysis.suite import read_suite, runs_of
from capsnmt.config import RunConfig, load_recipe
from capsnmt.models import MODELS, build_model, parse_model_config

ROOT = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(ROOT.glob("**/*.yaml"))
WMT14 = [path for path in RECIPES if path.parent.name.startswith("wmt14")]
# The systems that the paper trained itself, or trained like Vaswani et al.; all others have papers of their own.
TRAINED_AS_IN_THE_PAPER = {"capsnmt", "simple", "transformer", "hybrid"}
PAPERS_OWN = [path for path in WMT14 if path.stem.split("-")[0] in TRAINED_AS_IN_THE_PAPER]


def name(path):
    return str(path.relative_to(ROOT))


def count_parameters(values, V):
    source, target = V if isinstance(V, tuple) else (V, V)
    with torch.device("meta"):
        model = build_model(values, source_size=source, target_size=target)
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


def test_the_formulas_give_the_published_recurrent_systems():
    """Sutskever et al., section 3.4: 384M parameters, 64M of them in the LSTMs; GNMT: 278M (Shazeer et al. 2017)."""
    config = MODELS["encdec"].config(dropout=0.0)
    assert encdec(config, (160_000, 80_000)) / 384e6 == pytest.approx(1.0, abs=0.001)
    assert encdec(config, (0, 0)) / 64e6 == pytest.approx(1.0, abs=0.002)
    assert gnmt(MODELS["gnmt"].config(), 32_000) / 278e6 == pytest.approx(1.0, abs=0.02)


def test_the_formulas_give_the_published_rnmt():
    """378.9M with 32K pieces (Chen et al., the table of sizes and speeds)."""
    assert rnmt(MODELS["rnmt"].config(), 32_000) / 378.9e6 == pytest.approx(1.0, abs=0.002)


def test_the_context_of_deep_encdec_has_the_published_size():
    """Zhou et al., section 4.2: c_t has 5120 dimensions."""
    config = MODELS["deep_encdec"].config()
    with torch.device("meta"):
        model = build_model({"system": "deep_encdec"}, source_size=40, target_size=40)
    assert model.decoder[0].lstm.input_size - config.embedding_width == 5120


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
    V = recipe.text.subwords.vocabulary  # a number, or (source, target)
    # docs/ROUTING.md: tied to the softmax, the word just written drowns the others. The Transformer's paper ties.
    assert recipe.model["tie_embeddings"] == ("all" if config.system == "transformer" else "none")
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
    # Shared, so that systems share their vocabulary; other words or pieces have a store of their own.
    assert re.fullmatch(rf"runs/{corpus}/store(-chars|-(words|bpe)(-\d+k)+)?", recipe.data.store)
    assert path.stem.split("-")[0] == recipe.model["system"]
    pair = f"{recipe.languages.source}-{recipe.languages.target}"
    assert corpus == "demo" or corpus.endswith(pair)


def test_recipes_of_a_store_share_their_data_and_text():
    """Otherwise the second to run would find a store of other settings."""
    shared: dict[str, RunConfig] = {}
    for path in RECIPES:
        recipe = load_recipe(path)
        first = shared.setdefault(recipe.data.store, recipe)
        assert recipe.data == first.data, name(path)
        assert recipe.text == first.text, name(path)


# ---------------------------------------------------------------- the paper's values (section 4)


@pytest.mark.parametrize("path", PAPERS_OWN, ids=name)
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


@pytest.mark.parametrize("path", WMT14, ids=name)
def test_wmt14_recipes_validate_and_test_as_the_paper_says(path):
    recipe = load_recipe(path)
    assert "newstest2012+2013" in recipe.data.valid.source
    assert "newstest2014" in recipe.data.test.source


@pytest.mark.parametrize("path", WMT14, ids=name)
def test_eight_devices_make_the_updates_of_wmt14_recipes(path):
    """With fewer batches than devices an update would be larger than its paper's."""
    assert load_recipe(path).training.accumulate % 8 == 0


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_wmt14_suites_train_on_eight_gpus_and_score_all_rows_on_one_plain_text(pair, monkeypatch):
    monkeypatch.chdir(ROOT.parent)  # where recipes are named from
    suite = read_suite(f"suites/wmt14-{pair}.yaml")
    assert suite.processes == 8
    test_sets = set()
    for run in runs_of(suite):
        recipe = run.config()
        assert recipe.training.accumulate % suite.processes == 0, "the recipe's updates, as much of them on each GPU"
        for command in run.evaluating():
            assert ("--moses" in command.words) == (recipe.text.subwords.type == "word")
            test_sets.add((command.words[2], command.words[4]))
    assert test_sets == {tuple(f"data/wmt14_{pair}/newstest2014.{side}" for side in pair.split("-"))}


@pytest.mark.parametrize("path", [path for path in PAPERS_OWN if not path.stem.startswith("transformer")], ids=name)
def test_wmt14_recipes_of_the_papers_own_systems(path):
    recipe = load_recipe(path)
    config = parse_model_config(recipe.model)
    assert (config.encoder_layers, config.decoder_layers) == (4, 3)
    assert config.dropout == {"de": 0.3, "fr": 0.1}[recipe.languages.target]


def test_hybrids_attend_over_what_their_name_says():
    for path in RECIPES:
        if path.stem.startswith("hybrid"):
            attend = "capsules" if path.stem.startswith("hybrid-capsules") else "states"
            assert load_recipe(path).model["attend"] == attend, name(path)


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


# ---------------------------------------------------------------- the values of the other papers

OTHER_PAPERS = {
    "encdec-luong": {
        "model": {"width": 1000, "num_layers": 4, "reverse_source": True, "dropout": 0.2, "tie_embeddings": "none"},
        "subwords": {"type": "word", "vocabulary": 50_000, "joint": False},
        "max_words": 50,
        "update_tokens": 4096,  # 128 sentences
    },
    "encdec-sutskever": {
        "model": {"width": 1000, "num_layers": 4, "reverse_source": True, "dropout": 0.0, "tie_embeddings": "none"},
        "subwords": {"type": "word", "vocabulary": (160_000, 80_000), "joint": False},
        "max_words": None,
        "update_tokens": 4096,  # 128 sentences
    },
    "deep_encdec": {
        "model": {"width": 512, "embedding_width": 256, "encoder_layers": 9, "decoder_layers": 7, "dropout": 0.1},
        "subwords": {"type": "word", "joint": False},
        "max_words": None,
        "update_tokens": 4 * 4096,  # 500 to 800 sentences
    },
    "rnnsearch": {
        "model": {"width": 1000, "embedding_width": 620, "attention_width": 1000, "maxout_width": 500, "dropout": 0.0},
        "subwords": {"type": "word", "vocabulary": 30_000, "joint": False},
        "max_words": 50,
        "update_tokens": 2560,  # 80 sentences
    },
    "gnmt": {
        "model": {"width": 1024, "encoder_layers": 8, "decoder_layers": 8, "tie_embeddings": "none"},
        "subwords": {"vocabulary": 32_000, "joint": True},
        "max_words": None,
        "update_tokens": 4096,  # 128 sentences
    },
    "bytenet": {
        "model": {"width": 800, "dilations": (1, 2, 4, 8, 16), "encoder_sets": 6, "decoder_sets": 6, "kernel": 3},
        "subwords": {"type": "char", "vocabulary": (296 + 20, 323 + 20), "joint": False},
        "max_words": None,
        "update_tokens": 8192,  # ours: about 60 sentences
    },
    "rnmt": {
        "model": {"width": 1024, "encoder_layers": 6, "decoder_layers": 8, "num_heads": 4, "tie_embeddings": "none"},
        "subwords": {"vocabulary": 32_000, "joint": True},
        "max_words": None,
        "label_smoothing": 0.1,
        "update_tokens": 32 * 4096,  # 32 replicas, 128 sentences each
    },
}


@pytest.mark.parametrize("path", [path for path in WMT14 if path.stem in OTHER_PAPERS], ids=name)
def test_wmt14_recipes_of_other_papers(path):
    recipe, expected = load_recipe(path), OTHER_PAPERS[path.stem]
    config, subwords = parse_model_config(recipe.model), recipe.text.subwords
    assert {key: getattr(config, key) for key in expected["model"]} == expected["model"]
    assert {key: getattr(subwords, key) for key in expected["subwords"]} == expected["subwords"]
    assert recipe.data.filters.max_words == expected["max_words"]
    # Words are tokens, so they need a tokenised corpus, whole numbers and no pieces of bytes.
    words = subwords.type == "word"
    assert (".tok." in recipe.data.train.source) == words
    assert ".tok." not in recipe.data.test.source + recipe.data.test.target, "all rows are scored on one plain text"
    assert words != subwords.split_digits
    assert subwords.byte_fallback == (subwords.type == "bpe")
    assert recipe.training.label_smoothing == expected.get("label_smoothing", 0.0)
    assert recipe.training.accumulate * recipe.training.batch_tokens == expected["update_tokens"]


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem == "gnmt"], ids=name)
def test_gnmts_search(path):
    """Wu et al., section 7: α = β = 0.2."""
    decoding = load_recipe(path).decoding
    assert (decoding.length_penalty, decoding.length_penalty_type, decoding.coverage_penalty) == (0.2, "wu", 0.2)


def test_dropout_of_gnmt():
    for target, dropout in (("de", 0.3), ("fr", 0.2)):
        assert load_recipe(ROOT / f"wmt14-en-{target}" / "gnmt.yaml").model["dropout"] == dropout


def test_rnmt_trains_until_its_rate_has_fallen():
    """Chen et al.: until 1.2M (en-de) and 3.6M (en-fr) steps of 32 replicas; en-de has 2,500 updates more."""
    for target, steps in (("de", 1_200_000 // 32 + 2_500), ("fr", 3_600_000 // 32)):
        assert load_recipe(ROOT / f"wmt14-en-{target}" / "rnmt.yaml").training.steps == steps


def test_bytenets_output_may_go_on_after_its_columns():
    """Section 3.2: unfolding may "freely proceed beyond the estimated length"; a = 1.20 and b = 0 in section 6."""
    for path in RECIPES:
        if path.stem == "bytenet":
            recipe = load_recipe(path)
            assert recipe.decoding.max_length_ratio >= recipe.model["unfold_ratio"]
            assert recipe.decoding.max_length_extra >= recipe.model["unfold_extra"] + 1  # </s>
    recipe = load_recipe(ROOT / "wmt14-en-de" / "bytenet.yaml")
    unfolding = {key: value for key, value in recipe.model.items() if key.startswith("unfold")}
    assert unfolding == {"unfold_multiple": 50, "unfold_ratio": 1.2, "unfold_extra": 0}
    assert (recipe.decoding.beam, recipe.decoding.length_penalty) == (12, 0.0)


@pytest.mark.parametrize("target", ["de", "fr"])
def test_wmt14_recipes_of_convs2s(target):
    """Gehring et al., section 5.1: 15 layers; 40,000 BPE types, beam 5."""
    recipe = load_recipe(ROOT / f"wmt14-en-{target}" / "convs2s.yaml")
    config = parse_model_config(recipe.model)
    widths = {"de": [512] * 10 + [768] * 3 + [2048] * 2, "fr": [512] * 6 + [768] * 4 + [1024] * 3 + [2048, 4096]}
    for layers in (config.encoder_layers, config.decoder_layers):
        assert [d for number, d, _ in layers for _ in range(number)] == widths[target]
        assert [k for number, _, k in layers for _ in range(number)] == [3] * 13 + [1] * 2
    assert config.embedding_width == 512
    assert (recipe.text.subwords.type, recipe.text.subwords.vocabulary) == ("bpe", 40_000)
    assert (recipe.decoding.beam, recipe.training.clip_norm, recipe.training.label_smoothing) == (5, 0.1, 0.0)
    assert recipe.data.filters.max_words == {"de": None, "fr": 175}[target]
    tokens = {"de": 48 * 32, "fr": 8 * 32 * 32}[target]  # 48 sentences; 32 on each of 8 GPUs; about 32 tokens each
    assert recipe.training.accumulate * recipe.training.batch_tokens == tokens


@pytest.mark.parametrize(
    ("stem", "depth"),
    [
        ("capsnmt", {"encoder_layers": 4, "decoder_layers": 3}),
        ("simple", {"encoder_layers": 4, "decoder_layers": 3}),
        ("pooling", {"encoder_layers": 4, "decoder_layers": 3}),  # a control of the two above
        ("rnmt", {"encoder_layers": 6, "decoder_layers": 8}),
        # A third of it: a cut that its comment states.
        ("bytenet", {"dilations": [1, 2, 4, 8, 16], "encoder_sets": 2, "decoder_sets": 2}),
        ("convs2s", {side: [[10, 256, 3], [3, 384, 3], [2, 1024, 1]] for side in ("encoder_layers", "decoder_layers")}),
        ("hybrid", {"encoder_layers": 4, "decoder_layers": 3}),
        ("hybrid-capsules", {"encoder_layers": 4, "decoder_layers": 3}),
        ("encdec", {"num_layers": 4}),
        ("deep_encdec", {"encoder_layers": 9, "decoder_layers": 7}),
        ("gnmt", {"encoder_layers": 8, "decoder_layers": 8}),
        ("rnnsearch", {}),
    ],
)
def test_small_recipes_keep_the_published_depth(stem, depth):
    model = load_recipe(ROOT / "multi30k-en-de" / f"{stem}.yaml").model
    assert model["embedding_width" if stem == "convs2s" else "width"] == 256
    assert {key: model[key] for key in depth} == depth


def test_the_papers_rows_are_there():
    systems = {*TRAINED_AS_IN_THE_PAPER, "hybrid-capsules"}
    rows = {f"{system}-{size}" for system in systems for size in ("base", "big")}
    for corpus in ("wmt14-en-de", "wmt14-en-fr"):
        assert {path.stem for path in WMT14 if path.parent.name == corpus} >= rows
    # Rows of other papers, on the corpora for which Table 1 has their numbers.
    others = {
        "wmt14-en-de": {"encdec-luong", "deep_encdec", "gnmt", "convs2s", "bytenet"},
        "wmt14-en-fr": {"encdec-sutskever", "deep_encdec", "gnmt", "convs2s"},
    }
    for corpus, rows in others.items():
        assert {path.stem for path in WMT14 if path.parent.name == corpus} >= rows


@pytest.mark.parametrize("path", sorted((ROOT.parent / "suites").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_suite_names_what_exists(path, monkeypatch):
    monkeypatch.chdir(ROOT.parent)  # where its recipes are named from
    runs = runs_of(read_suite(path))
    for run in runs:
        parse_model_config(run.config().model)
    assert len({run.folder for run in runs}) == len(runs)
    trained = [run for run in runs if run.outside is None]
    trainings = {(fingerprint(settings_of(run.config())), run.taught_by) for run in trained}
    assert len(trainings) == len(trained), "two runs are the same training"

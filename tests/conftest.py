"""One thread for every test, and tiny models of every registered system for those that ask for them.

A test with a `system` argument runs once for every entry of MODELS; one with a `variant` argument once for every tiny
config of every system (see MORE). A new system is tested by being registered in MODELS and given a tiny config here.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: the cores are shared

import pytest

VOCABULARY = 40

# One config per interesting shape of a system; the first is the one that tests with a `system` argument take.
TINY = {
    "capsnmt": {
        "paper": {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "num_capsules": [3], "dropout": 0.1},
        "plain": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_capsules": [2],
            "share_iteration_weights": True,
            "position_aware": False,
            "separable_scoring": False,
            "scaled_scores": False,
            "capsule_norm": False,
            "tie_embeddings": "target",
        },
        "stacked": {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_capsules": [5, 3], "num_iterations": 2},
        "variants": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_capsules": [4],
            "transform": "low_rank",
            "rank": 4,
            "nonlinearity": "unit",
            "mean_of_children": True,
            "balanced": True,
            "position_prior": True,
            "windows": 1.0,
            "capsule_residual": True,
            "attention": "capsules",
            "attending": "all",
            "start_state": "capsules",
        },
        "found": {  # as recipes/multi30k-en-de/capsnmt.yaml
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_capsules": [4],
            "transform": "shared",
            "nonlinearity": "squash",
            "capsule_residual": True,
            "windows": 1.0,
            "attention": "capsules",
            "tie_embeddings": "none",
        },
        "states": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_capsules": [3],
            "attention": "states",
            "num_heads": 2,
            "attending": "all",
        },
        "shared": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_capsules": [3],
            "transform": "shared",
            "nonlinearity": "none",
            "num_iterations": 2,
        },
        "uniform": {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "num_capsules": [3], "num_iterations": 1},
        "no-agreement": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_capsules": [3],
            "agreement": False,
        },
    },
    "simple": {
        "paper": {"width": 16, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1},
        "tied": {"width": 16, "encoder_layers": 1, "decoder_layers": 1, "tie_embeddings": "all"},
        "control": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "projection_width": 20,
            "projection_residual": True,
            "vector_norm": True,
            "attention": "vectors",
            "attending": "all",
        },
    },
    "pooling": {
        "sum": {"width": 16, "encoder_layers": 1, "decoder_layers": 2, "num_queries": 3},
        "attention": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "windows": 1.0,
            "num_queries": 5,
            "position_aware": False,
            "attention": "vectors",
        },
        "shared": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_queries": 3,
            "transform": "shared",
            "parent_positions": True,
            "residual": True,
        },
    },
    "transformer": {
        "post": {"width": 16, "inner_width": 32, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2},
        "pre": {
            "width": 16,
            "inner_width": 24,
            "num_heads": 4,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "norm": "pre",
            "tie_embeddings": "target",
        },
    },
    "encdec": {"reverse": {"width": 16, "num_layers": 2}},
    "deep_encdec": {"odd": {"width": 16, "embedding_width": 16, "encoder_layers": 3, "decoder_layers": 2}},
    "rnnsearch": {"paper": {"width": 12, "embedding_width": 10, "attention_width": 14, "maxout_width": 10}},
    "gnmt": {"paper": {"width": 12, "encoder_layers": 4, "decoder_layers": 4}},
    "bytenet": {
        "paper": {"width": 16, "dilations": [1, 2], "encoder_sets": 1, "decoder_sets": 2, "unfold_multiple": 5},
    },
    "convs2s": {
        "paper": {
            "embedding_width": 12,
            "encoder_layers": [[2, 16, 3], [1, 22, 3], [1, 24, 1]],
            "decoder_layers": [[2, 16, 3], [1, 22, 3], [1, 24, 1]],
        },
    },
    "rnmt": {"paper": {"width": 12, "encoder_layers": 3, "decoder_layers": 3, "num_heads": 4}},
    "hybrid": {
        "states": {"width": 16, "encoder_layers": 1, "decoder_layers": 3, "num_capsules": 3},
        "capsules": {
            "width": 16,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "num_capsules": 4,
            "num_iterations": 2,
            "attend": "capsules",
            "num_heads": 2,
            "tie_embeddings": "all",
        },
        "found": {"width": 16, "encoder_layers": 1, "decoder_layers": 2, "num_capsules": 3, "capsule_form": "found"},
    },
}

# More shapes for all tests but those that export, which takes seconds each.
MORE = {
    "encdec": {
        "forward": {"width": 12, "num_layers": 1, "reverse_source": False, "dropout": 0.0, "tie_embeddings": "all"},
    },
    "deep_encdec": {
        "even": {
            "width": 12,
            "embedding_width": 12,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "dropout": 0.0,
            "tie_embeddings": "all",
        },
    },
    "rnnsearch": {
        "tied": {
            "width": 8,
            "embedding_width": 10,
            "attention_width": 6,
            "maxout_width": 10,
            "dropout": 0.1,
            "tie_embeddings": "all",
        },
    },
    "gnmt": {"shallow": {"width": 16, "encoder_layers": 2, "decoder_layers": 1, "tie_embeddings": "target"}},
    "bytenet": {
        "even": {  # a kernel of even width, a ratio that needs rounding, a constant b
            "width": 12,
            "dilations": [1, 3],
            "encoder_sets": 2,
            "decoder_sets": 1,
            "kernel": 4,
            "unfold_ratio": 1.4,
            "unfold_extra": 2,
            "tie_embeddings": "all",
        },
    },
    "convs2s": {
        "short": {  # kernels of even width, fewer positions than tokens
            "embedding_width": 16,
            "encoder_layers": [[2, 16, 2]],
            "decoder_layers": [[2, 16, 4]],
            "max_positions": 4,
            "tie_embeddings": "all",
        },
    },
    "rnmt": {
        "tied": {"width": 12, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2, "tie_embeddings": "all"},
    },
}


def tiny_variants(system: str) -> dict[str, dict]:
    assert system in TINY, f"the system {system!r} of MODELS has no tiny config: add one to TINY in {__file__}"
    shapes = TINY[system] | MORE.get(system, {})
    return {name: {"system": system, **values} for name, values in shapes.items()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first: a training that begins last keeps one core busy while the others wait for it.

    A plain `pytest` leaves out what is marked `long`; `pytest -m system` runs that, too.
    """
    items.sort(key=lambda item: item.get_closest_marker("system") is None)
    if not config.getoption("markexpr"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    wanted = {"system", "variant"} & set(metafunc.fixturenames)
    if not wanted:
        return
    from capsnmt.models import MODELS

    if "system" in wanted:
        metafunc.parametrize("system", list(MODELS))
    if "variant" in wanted:
        # A system without tiny configs still gets a test, which then fails and says what is missing.
        more = {} if "parity" in metafunc.definition.path.parts else MORE
        shapes = {system: TINY.get(system, {"missing": {}}) | more.get(system, {}) for system in MODELS}
        pairs = [(system, name) for system, names in shapes.items() for name in names]
        metafunc.parametrize("variant", pairs, ids=["-".join(pair) for pair in pairs])


@pytest.fixture
def tiny_config():
    """tiny_config(system) → the values of a `model` section."""

    def config(system: str, name: str | None = None, **changes: object) -> dict:
        variants = tiny_variants(system)
        return {**(variants[name] if name else next(iter(variants.values()))), **changes}

    return config


@pytest.fixture
def tiny_model(tiny_config):
    """tiny_model(system) → a model in evaluation mode."""

    def build(system: str, name: str | None = None, **changes: object):
        import torch

        from capsnmt.models import build_model

        torch.manual_seed(5)
        values = tiny_config(system, name, **changes)
        return build_model(values, source_size=VOCABULARY, target_size=VOCABULARY).eval()

    return build


@pytest.fixture
def model(variant, tiny_model):
    """The tiny model of a `variant`, in evaluation mode."""
    return tiny_model(*variant)

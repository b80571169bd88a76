"""The number of parameters of every system, worked out by hand from its paper's equations.

A formula takes a system's config and the size V of its vocabulary, or (source, target) of them. Matrices and their
shapes are the papers'; where a bias or a norm stands is often left open, and then it is ours: torch's two biases of an
LSTM, Enc-Dec's one, layer norms of ByteNet's head and CapsNMT's capsules, RNMT+'s biased keys.

Four of them are checked against published totals (test_recipes.py): the Transformer's (Vaswani et al., table 3),
Sutskever et al.'s Enc-Dec, RNMT+'s, and GNMT's, which Shazeer et al. counted. For the others we know of no such
total: they follow from the architecture as their papers describe it (of Deep-ED the size of the context is published
and checked), and what a paper leaves open is counted as docs/SYSTEMS.md reads it. CapsNMT, simple aggregation, pooling
and the hybrid are counted from CapsNMT's equations and our own descriptions.
"""

from __future__ import annotations


def lstm(x, h):
    """Four gates, each with weights for the input and the state, and torch's two bias vectors."""
    return 4 * (h * (x + h) + 2 * h)


def linear(inputs, outputs):
    return inputs * outputs + outputs


def embeddings(config, V, m=None, output=None):
    """Words m wide on both sides and a softmax without bias; V words a side, or (source, target) of them."""
    source, target = V if isinstance(V, tuple) else (V, V)
    m = config.width if m is None else m
    softmax = target * (m if output is None else output)
    return {"all": target * m, "target": (source + target) * m, "none": (source + target) * m + softmax}[
        config.tie_embeddings
    ]


def recurrent_frame(config, V, M):
    """What CapsNMT and simple aggregation share: Eq. 1, W_c of Eq. 5 for M vectors, Eq. 5 and Eq. 6."""
    d = config.width
    layer_norm = 2 * d
    attending = {"first": 1, "all": config.decoder_layers}[config.attending]
    attention = 0 if config.attention == "none" else attending * (4 * linear(d, d) + layer_norm)
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
        iterations = config.num_iterations if config.agreement else 1
        scores = config.separable_scoring and iterations > 1  # one iteration never scores
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
    W = d * d if config.transform == "shared" else M * d * d
    return recurrent_frame(config, V, M) + W + linear(d, d) + M * d + 2 * d  # keys, queries, layer norm


def transformer(config, V):
    """Vaswani et al. 2017, section 3."""
    d, inner = config.width, config.inner_width
    attention, layer_norm = 4 * linear(d, d), 2 * d
    feed_forward = linear(d, inner) + linear(inner, d)
    encoder = config.encoder_layers * (attention + feed_forward + 2 * layer_norm)
    decoder = config.decoder_layers * (2 * attention + feed_forward + 3 * layer_norm)
    last_norms = 2 * layer_norm if config.norm == "pre" else 0
    return embeddings(config, V) + encoder + decoder + last_norms


def encdec(config, V):
    """Sutskever et al. 2014, section 2 and 3.4: four gates of [x, h] a layer; the encoder's have one bias each."""
    d = config.width
    encoder, decoder = 4 * (d * (d + d) + d), lstm(d, d)
    return embeddings(config, V) + config.num_layers * (encoder + decoder)


def deep_encdec(config, V):
    """Zhou et al. 2016, section 3: f has 4d values, Half(f) 2d, and the context c 2 (d + 4d)."""
    d, m = config.width, config.embedding_width
    f = 4 * d
    column = lstm(m, d) + (config.encoder_layers - 1) * lstm(f // 2 + d, d)
    decoder = lstm(2 * (d + f) + m, d) + (config.decoder_layers - 1) * lstm(f // 2 + d, d)
    return embeddings(config, V, m, d) + 2 * column + decoder


def rnnsearch(config, V):
    """Bahdanau et al. 2015, appendix A.2; the matrices of the decoder and the output in the order of the text."""
    n, m, align, l = config.width, config.embedding_width, config.attention_width, config.maxout_width  # noqa: E741
    encoder = 2 * 3 * (n * m + n * n + 2 * n)  # W, U and torch's two biases, of three gates, twice
    W_s = linear(n, n)
    decoder = 3 * (n * m + n * n + n * 2 * n) + 3 * n  # W, U, C of three gates, and a bias
    alignment = align + align * n + align * 2 * n  # v_a, W_a, U_a
    maxout = 2 * l * (n + m + 2 * n)  # U_o, V_o, C_o
    return embeddings(config, V, m, l) + encoder + W_s + decoder + alignment + maxout


def gnmt(config, V):
    """Wu et al. 2016, section 3: one bidirectional layer, the context in front of every decoder layer."""
    d = config.width
    encoder = 2 * lstm(d, d) + lstm(2 * d, d) + (config.encoder_layers - 2) * lstm(d, d)
    decoder = config.decoder_layers * lstm(2 * d, d)
    attention = d + 2 * d * d  # one hidden layer
    return embeddings(config, V) + encoder + decoder + attention


def bytenet(config, V):
    """Kalchbrenner et al. 2016, Figure 3 and section 3: a stream of 2d, 1×1 to d, 1×k, 1×1 back, each after a norm."""
    d, k = config.width, config.kernel
    block = linear(2 * d, d) + linear(k * d, d) + linear(d, 2 * d) + 2 * (2 * d + d + d)  # and three layer norms
    blocks = len(config.dilations) * (config.encoder_sets + config.decoder_sets)
    head = 2 * (2 * d) + linear(2 * d, 2 * d)  # our layer norm, and the first of the two last 1×1
    return embeddings(config, V, 2 * d) + blocks * block + head


def convs2s(config, V):
    """Gehring et al. 2017, section 3; weight normalisation gives every output of a layer a length g of its own."""
    f = config.embedding_width
    tables = embeddings(config, V, f, 0) + 2 * config.max_positions * f  # words and positions
    target = V[1] if isinstance(V, tuple) else V

    def layer(inputs, outputs):
        return inputs * outputs + outputs + outputs  # v, b and g

    def stack(groups):
        widths = [(d, k) for number, d, k in groups for _ in range(number)]
        total, below = layer(f, widths[0][0]) + layer(widths[-1][0], f), widths[0][0]  # from and to the embeddings
        for d, k in widths:
            total += layer(k * below, 2 * d) + (layer(below, d) if below != d else 0)
            below = d
        return total

    attention = sum(number * (layer(d, f) + layer(f, d)) for number, d, _ in config.decoder_layers)
    softmax = layer(f, target) if config.tie_embeddings == "none" else 0
    return tables + stack(config.encoder_layers) + stack(config.decoder_layers) + attention + softmax


def rnmt(config, V):
    """Chen et al. 2018, section 3.1; a gate has weights for input and state, and a scale and a bias of its norm."""
    d = config.width

    def cell(inputs):
        return 4 * (d * (inputs + d) + 2 * d)

    encoder = 2 * cell(d) + (config.encoder_layers - 1) * 2 * cell(2 * d) + linear(2 * d, d)
    attention = d * d + linear(d, d) + d  # query, key, v of all heads
    decoder = config.decoder_layers * cell(2 * d)
    tied = config.tie_embeddings != "none"
    softmax = embeddings(config, V) + linear(2 * d, d) if tied else embeddings(config, V, d, 2 * d)
    return softmax + encoder + attention + decoder


def hybrid(config, V):
    """CapsNMT's encoder, capsules and W_c; RNMT+'s attention; decoder layers that read [x; context] but the first."""
    d, M = config.width, config.num_capsules
    encoder = config.encoder_layers * (2 * lstm(d, d // 2) + 2 * d)
    g = 2 * linear(d, d) if config.num_iterations > 1 else 0
    matrices = 1 if config.capsule_form == "found" else M  # one W for all capsules, or W_j
    capsules = config.num_iterations * matrices * d * d + g + 2 * d + M * d * d
    attention = d * d + linear(d, d) + d
    decoder = lstm(d, d) + (config.decoder_layers - 1) * lstm(2 * d, d) + config.decoder_layers * 2 * d
    return embeddings(config, V) + encoder + capsules + attention + decoder + linear(2 * d, d)


COUNTS = {
    "capsnmt": capsnmt,
    "simple": simple,
    "pooling": pooling,
    "transformer": transformer,
    "encdec": encdec,
    "deep_encdec": deep_encdec,
    "rnnsearch": rnnsearch,
    "gnmt": gnmt,
    "bytenet": bytenet,
    "convs2s": convs2s,
    "rnmt": rnmt,
    "hybrid": hybrid,
}

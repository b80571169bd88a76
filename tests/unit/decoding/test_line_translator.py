import itertools

import numpy as np
import pytest
from decoding_engines import WrittenEngine, copy_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from capsnmt.config import DecodingConfig
from capsnmt.decoding.line_batch import one_line
from capsnmt.decoding.translation import SamplingOptions, TranslateOptions
from capsnmt.decoding.translator import LineTranslator
from capsnmt.errors import CapsNMTError
from capsnmt.text.spans import mask
from capsnmt.text.subwords import EOS

DECODING = DecodingConfig(beam=2, max_length_ratio=1.0, max_length_extra=3)
INVISIBLE = "\u200b"


class Characters:
    """ASCII as ids; the invisible character vanishes, as normalising would make it."""

    def source_ids(self, text):
        return [ord(c) + 10 for c in text.strip().replace(INVISIBLE, "")] + [EOS]

    def __init__(self, kinds=(), num_symbols=0):
        self.kinds, self.num_symbols = kinds, num_symbols

    def mask(self, text, terms):
        return mask(text, self.kinds, terms)

    def starts_word(self, source_id):
        return source_id == ord(" ") + 10

    def target_text(self, ids):
        return "".join(chr(token - 10) if token >= 10 else "?" for token in ids)

    def target_prefix_ids(self, text):
        return self.source_ids(text)[:-1]


def make(engine=None, **changes):
    parts = {"engine": engine or copy_engine(), "text": Characters(), "decoding": DECODING, "language": "en"}
    return LineTranslator(**(parts | changes))


def test_order_and_count_with_empty_lines_between():
    lines = ["one", "", "a longer line", "  ", "x", "three", "", INVISIBLE, "\t"]
    found = make(batch_tokens=24).translate_batch(lines)
    assert [translation.source for translation in found] == lines
    assert [translation.text for translation in found] == lines
    assert [translation.status for translation in found] == [
        "ok" if line.strip() not in ("", INVISIBLE) else "empty" for line in lines
    ]
    assert [translation.score is None for translation in found] == [t.status == "empty" for t in found]
    assert [len(translation.hypotheses) for translation in found] == [int(t.status == "ok") for t in found]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_line_never_becomes_nothing(beam):
    def distribution(source, prefix):
        row = np.full(300, -np.inf)
        row[[EOS, ord("x") + 10]] = np.log([0.999, 0.001])  # the end is what the model wants at once
        return row

    translator = make(engine=WrittenEngine(distribution), decoding=DECODING.model_copy(update={"beam": beam}))
    assert [found.text for found in translator.translate_batch(["one", "", "two"])] == ["x", "", "x"]


def test_blank_lines_never_reach_the_model():
    engine = copy_engine()
    assert [t.text for t in make(engine).translate_batch(["", " ", INVISIBLE])] == ["", " ", INVISIBLE]
    assert make(engine).translate("") == ""
    assert make(engine).translate_batch([]) == []
    assert engine.batches == []


@settings(deadline=None, max_examples=25)
@given(
    lines=st.lists(st.text(alphabet="ab c", max_size=9), max_size=12),
    batch_tokens=st.integers(1, 80),
    chunk_lines=st.integers(1, 5),
)
def test_results_do_not_depend_on_batches(lines, batch_tokens, chunk_lines):
    translator = make(batch_tokens=batch_tokens)
    for options in (TranslateOptions(num_best=2), TranslateOptions(num_best=2, sampling=SamplingOptions(seed=4))):
        found = list(translator.translate_lines(lines, options=options, chunk_lines=chunk_lines))
        alone = [make().translate_batch([line], options, first_line=n)[0] for n, line in enumerate(lines)]
        assert found == alone


def test_batches_hold_similar_lengths_within_the_budget():
    engine = copy_engine()
    lines = [("a" * length) for length in (3, 30, 4, 29, 3, 60, 5)]
    make(engine, batch_tokens=140).translate_batch(lines)  # beam 2: 70 padded source tokens
    sizes = [[len(source) - 1 for source in batch] for batch in engine.batches]
    assert sizes == [[60], [30, 29], [5, 4, 3, 3]]


def test_a_line_longer_than_the_budget_goes_alone():
    engine = copy_engine()
    assert [t.text for t in make(engine, batch_tokens=1).translate_batch(["abc", "abcd"])] == ["abc", "abcd"]
    assert [len(batch) for batch in engine.batches] == [1, 1]


def test_lines_are_taken_lazily():
    taken = itertools.count()
    lines = (f"line {next(taken)}" for _ in itertools.repeat(None))  # without an end
    found = make().translate_lines(lines, chunk_lines=3)
    assert next(taken) == 0
    assert [next(found).text for _ in range(3)] == ["line 1", "line 2", "line 3"]
    assert next(taken) == 4
    assert next(found).text == "line 5"


def test_max_length_is_ratio_and_extra():
    def endless(source, prefix):
        return copy_engine(0.999).distribution(tuple(range(50, 149)), prefix)

    text = make(WrittenEngine(endless, 300)).translate("abcd")
    assert len(text) == 5 + 3 - 1  # 1.0 x 5 source tokens + 3, of which one is </s>


def test_options_replace_the_models_settings():
    translator = make()
    assert len(translator.translate_batch(["ab"], TranslateOptions(num_best=3, beam=4))[0].hypotheses) == 3
    plain = translator.translate_batch(["ab"], TranslateOptions(length_penalty=0.0))[0].score
    by_wu = translator.translate_batch(["ab"], TranslateOptions(length_penalty=1.0))[0].score
    by_len = translator.translate_batch(["ab"], TranslateOptions(length_penalty=1.0, length_penalty_type="len"))[
        0
    ].score
    assert by_wu == pytest.approx(plain / (8 / 6))
    assert by_len == pytest.approx(plain / 3)
    n_best = translator.translate_batch(["ab"], TranslateOptions(num_best=2))[0]
    assert n_best.hypotheses[0] == (n_best.text, n_best.score)
    assert n_best.hypotheses[0][1] > n_best.hypotheses[1][1]


def test_prefixes_go_with_their_lines():
    translator = make()
    assert translator.translate("abc", prefix="xy") == "xyc"
    found = translator.translate_lines(["abc", "", "def"], prefixes=["x", "y", ""], chunk_lines=2)
    assert [translation.text for translation in found] == ["xbc", "", "def"]
    with pytest.raises(CapsNMTError, match="2 lines with 1 prefixes"):
        translator.translate_batch(["a", "b"], prefixes=["x"])


def test_sampling_is_repeatable_and_every_line_draws_its_own():
    translator = make(copy_engine(0.3))
    options = TranslateOptions(num_best=2, sampling=SamplingOptions(seed=9))
    lines = ["abcabcabc"] * 6
    first = list(translator.translate_lines(lines, options=options, chunk_lines=2))
    assert first == list(translator.translate_lines(lines, options=options, chunk_lines=6))
    assert len({translation.text for translation in first}) == 6
    assert all(len(translation.hypotheses) == 2 for translation in first)


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n", "\u2028", "\x85", "\x0b"])
def test_output_is_one_line(break_):
    class Breaking(Characters):
        def target_text(self, ids):
            return f"one{break_}two"

    assert make(text=Breaking()).translate("abc") == "one two"
    assert len(one_line(f"{break_}x{break_}").splitlines()) == 1


def test_line_ends_of_the_input_are_not_translated():
    assert [t.text for t in make().translate_lines(["ab\n", "\n", "cd\r\n"])] == ["ab", "", "cd"]


def test_wrong_options_fail_before_the_first_line():
    lines = iter(["a"])
    for options, message in [
        (TranslateOptions(num_best=3), r"num_best 3 .* beam \(2\)"),
        (TranslateOptions(beam=0), "beam 0"),
        (TranslateOptions(length_penalty=-1.0), "length_penalty -1"),
        (TranslateOptions(sampling=SamplingOptions(top_p=2.0)), "top_p 2"),
    ]:
        with pytest.raises(CapsNMTError, match=message):
            make().translate_lines(lines, options=options)
    with pytest.raises(CapsNMTError, match="batch_tokens 0"):
        make(batch_tokens=0)
    with pytest.raises(CapsNMTError, match="chunk_lines 0"):
        make().translate_lines(lines, chunk_lines=0)
    assert next(lines) == "a"

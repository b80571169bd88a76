"""One line in, one line out, whatever the line and whatever the model does with it."""

from __future__ import annotations

import numpy as np
import pytest
from decoding_engines import WrittenEngine, copy_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from test_line_translator import Characters

from capsnmt.config import DecodingConfig
from capsnmt.decoding.segments import Shape, cut, shape_of, shaped, unshaped
from capsnmt.decoding.translation import TranslateOptions
from capsnmt.decoding.translator import LineTranslator
from capsnmt.text.spans import Masked, Span, mask
from capsnmt.text.subwords import EOS

SIZE = 12_000  # ids of the characters up to ⦆ (U+2986), each plus 10
KINDS = ("placeholder", "tag", "url", "email", "number")


def echo(change=lambda source: source, certainty=0.9):
    """An engine that writes its source, changed."""
    inner = copy_engine(certainty, SIZE)
    return WrittenEngine(lambda source, prefix: inner.distribution(tuple(change(source)), prefix), SIZE)


def make(engine=None, *, num_symbols=16, **changes):
    settings_ = {"beam": 2, "max_length_ratio": 1.0, "max_length_extra": 5, "fit_shape": True} | changes
    text = Characters(KINDS if num_symbols else (), num_symbols)
    return LineTranslator(
        engine=engine or echo(), text=text, decoding=DecodingConfig(**settings_), language="en", batch_tokens=512
    )


def seen_by(engine):
    return ["".join(chr(token - 10) for token in ids[:-1]) for batch in engine.batches for ids in batch]


def test_several_sentences_are_translated_one_by_one_and_joined():
    engine = echo()
    line = "Dr. Smith came.  He saw it! Did he?"
    found = make(engine).translate_batch([line])[0]
    assert found.text == line
    assert sorted(seen_by(engine)) == ["Did he?", "Dr. Smith came.", "He saw it!"]
    assert found.notes == ("split",)
    engine = echo()
    assert make(engine).translate_batch([line], TranslateOptions(split=False))[0].text == line
    assert seen_by(engine) == [line]


def test_a_full_stop_inside_a_span_ends_no_sentence():
    engine = echo()
    line = "See http://a.example/x. Y is 3.5 now."
    assert make(engine).translate(line) == line
    assert sorted(seen_by(engine)) == ["See ⦅0⦆.", "Y is ⦅0⦆ now."]


@pytest.mark.timeout(60)
def test_cutting_is_no_more_work_than_the_sentence_is_long():
    """If the work grew with the square of the length, the test would not end before its time limit."""
    pieces = cut([5] * 2_000_000 + [EOS], 16, lambda token: False)
    assert sum(len(piece) - 1 for piece in pieces) == 2_000_000


def test_too_long_a_sentence_is_cut_between_words_and_flagged():
    engine = echo()
    line = " ".join(["word"] * 30) + "."
    found = make(engine, max_source_tokens=40).translate_batch([line])[0]
    assert found.status == "cut"
    assert found.text.split() == line.split()
    assert max(len(ids) for batch in engine.batches for ids in batch) <= 40
    assert all(not text.strip().startswith("ord") for text in seen_by(engine))


@given(st.lists(st.integers(4, 9), max_size=80), st.integers(2, 20))
def test_cut_keeps_every_token(ids, limit):
    pieces = cut([*ids, EOS], limit, lambda token: token == 4)
    assert [token for piece in pieces for token in piece[:-1]] == ids
    assert all(piece[-1] == EOS and len(piece) <= max(2, limit) for piece in pieces)


@pytest.mark.parametrize(
    ("line", "model_sees"),
    [("STOP THE CAR", "Stop the car."), ("hello", "hello."), ("NATO", "NATO."), ("Fine.", "Fine."), ("Why?", "Why?")],
)
def test_case_and_punctuation_fit_the_model_and_come_back(line, model_sees):
    engine = echo()
    assert make(engine).translate(line) == line
    assert seen_by(engine) == [model_sees]


def test_shape_round_trip():
    assert shape_of(Masked("GO TO ⦅0⦆", (Span("3", "3"),))) == Shape(shouted=True, unfinished=True)
    assert unshaped(shaped("A B C", Shape(True, True)), Shape(True, True)) == "A B C"
    assert unshaped("Wait...", Shape(False, True)) == "Wait..."


def test_spans_are_masked_and_restored():
    engine = echo()
    line = "Send 1,234 to a.b@c.de or {{name}}, see <b>http://x.y/z</b>."
    found = make(engine).translate_batch([line])[0]
    assert (found.text, found.status) == (line, "ok")
    assert seen_by(engine) == ["Send ⦅0⦆ to ⦅1⦆ or ⦅2⦆, see ⦅3⦆⦅4⦆⦅5⦆."]


def test_dropped_spans_fall_back_to_translating_around_them():
    symbol_ends = ord("⦆") + 10
    engine = echo(lambda source: [token for token in source if token != symbol_ends])
    line = "I have 3 dogs and 14 cats."
    found = make(engine).translate_batch([line])[0]
    assert found.text == line
    assert (found.status, found.notes) == ("repaired", ("spans_placed_around",))


def test_a_span_that_the_model_writes_once_more_itself_is_taken_around():
    dogs, more = ([ord(character) + 10 for character in text] for text in ("dogs", "3 dogs"))

    def with_another_three(source):
        place = next((n for n in range(len(source)) if list(source[n : n + 4]) == dogs), None)
        return source if place is None else [*source[:place], *more, *source[place + 4 :]]

    found = make(echo(with_another_three), max_length_extra=20).translate_batch(["I have 3 big dogs."])[0]
    # "I have ⦅0⦆ big 3 dogs." is refused, and " big 3 dogs." too: what cannot do without a second 3 stays as it was.
    assert found.text == "I have 3 big dogs."
    assert found.notes == ("spans_placed_around",)
    assert make(echo(with_another_three), max_length_extra=20).translate("I have 4 dogs.") == "I have 4 3 dogs."


def test_a_span_that_the_model_writes_in_another_sentence_is_not_let_through():
    away, more = ([ord(character) + 10 for character in text] for text in ("away", "7 away"))

    def with_a_seven(source):
        place = next((n for n in range(len(source)) if list(source[n : n + 4]) == away), None)
        return source if place is None else [*source[:place], *more, *source[place + 4 :]]

    translator = make(echo(with_a_seven), max_length_extra=20)
    assert translator.translate("I came at 7. He went away.") == "I came at 7. He went away."
    assert translator.translate("I came at 8. He went away.") == "I came at 8. He went 7 away."
    many = "We saw " + " ".join(map(str, range(40))) + ". He went home."
    assert translator.translate(many) == many


def test_symbols_that_the_model_makes_up_are_removed():
    made_up = [ord(character) + 10 for character in " ⦅3⦆"]
    engine = echo(lambda source: [*source[:-1], *made_up, EOS])
    assert make(engine).translate("I have a dog.").strip() == "I have a dog."
    # Symbol 3 stands for nothing: translated around it, with room for the four characters of each made-up symbol.
    found = make(engine, max_length_extra=20).translate_batch(["I have 3 dogs."])[0]
    assert "3" in found.text
    assert "⦅" not in found.text


def test_spans_keep_their_letters_and_full_stops_in_a_reshaped_sentence():
    line = "VISIT http://a.example/Path NOW AND ASK {{user}} FOR IT"
    assert make().translate(line) == line
    options = TranslateOptions(terms={"and so on": "etc."})
    assert make().translate("one two and so on", options) == "one two etc."


@pytest.mark.parametrize("line", ["I have 1 2 dogs.", "See http://a.example now.", "Send %s now.", "Ask Tom Lee now."])
def test_spans_are_readable_when_the_model_forgets_the_spaces(line):
    options = TranslateOptions(terms={"Tom Lee": "Tom Lee"})
    without_spaces = echo(lambda source: [token for token in source if token != ord(" ") + 10])
    found = make(without_spaces).translate_batch([line], options)[0]
    expected = {span.source for span in mask(line, KINDS, options.terms).spans}
    assert {span.source for span in mask(found.text, KINDS, options.terms).spans} == expected
    assert found.status == "ok"


def test_spans_of_two_sentences_do_not_meet():
    silent = echo(lambda source: [token for token in source if not 32 <= token - 10 < 127])  # writes symbols at most
    found = make(silent, num_symbols=0).translate_batch(["⦅1⦆a!⦅2⦆b"])[0]
    assert [span.source for span in mask(found.text, ()).spans] == ["⦅1⦆", "⦅2⦆"]
    numbers = make(echo(lambda source: [EOS])).translate_batch(["1a!:0."])[0]
    assert [span.source for span in mask(numbers.text, KINDS).spans] == ["1", "0"]


def test_lost_spans_of_many_lines_are_searched_together():
    symbol_ends = ord("⦆") + 10
    engine = echo(lambda source: [token for token in source if token != symbol_ends])
    lines = ["I have 3 dogs.", "You saw 4 cats.", "No spans."]
    assert [found.text for found in make(engine).translate_batch(lines)] == lines
    assert [len(batch) for batch in engine.batches] == [3, 4]  # the lines, then what stands around the numbers


def test_a_prefix_survives_lost_spans():
    symbol_ends = ord("⦆") + 10
    engine = echo(lambda source: [token for token in source if token != symbol_ends])
    assert make(engine).translate("abc 3 def.", prefix="xy") == "xyc 3 def."


def test_hypotheses_that_lost_a_span_are_left_out():
    def dropping(source, prefix):
        row = np.full(SIZE, -50.0)
        written = Characters().target_text(prefix)
        for text, log_prob in (("a b.", -0.1), ("a ⦅0⦆ b.", -3.0)):
            if text.startswith(written):
                row[ord(text[len(written)]) + 10 if written != text else EOS] = log_prob
        return row

    found = make(WrittenEngine(dropping, SIZE)).translate_batch(["a 7 b."], TranslateOptions(num_best=2, beam=4))[0]
    assert [text for text, _ in found.hypotheses] == ["a 7 b."]
    assert found.status == "ok"


def test_more_spans_than_symbols():
    line = "a 1 b 2 c 3 d 4."
    assert make(num_symbols=2).translate(line) == line
    assert make(num_symbols=0).translate("⦅5⦆ is a symbol") == "⦅5⦆ is a symbol"


@pytest.mark.parametrize("num_symbols", [16, 0])
def test_a_glossary_is_obeyed(num_symbols):
    options = TranslateOptions(terms={"cat": "Katze", "Tom": "Tom"})
    text = make(num_symbols=num_symbols).translate("Tom has a cat, and cats.", options)
    assert text == "Tom has a Katze, and cats."


def test_loops_are_repaired_and_counted():
    engine = echo(lambda source: [*source[:-1], *([50, 51, 52] * 40), EOS], certainty=0.999)
    found = make(engine, max_length_extra=30).translate_batch(["abc"])[0]
    assert found.status == "repaired"
    assert "loop_repaired" in found.notes
    assert found.text.count("()*") <= 1
    meant = make().translate_batch(["ha ha ha ha ha ha ha ha"])[0]  # the source repeats itself: no fault
    assert (meant.text, meant.status) == ("ha ha ha ha ha ha ha ha", "ok")


def test_loops_of_many_lines_are_searched_together():
    engine = echo(lambda source: [*source[:-1], *([50, 51, 52] * 40), EOS], certainty=0.999)
    found = make(engine, max_length_extra=30).translate_batch(["abc", "abd", "abe"])
    assert {translation.status for translation in found} == {"repaired"}
    assert [len(batch) for batch in engine.batches] == [3, 3]


@pytest.mark.parametrize("line", ["abcd.", "A? B? C? D?", "a 1 b 2 c 3 d 4 e 5", "Hi. Ho. " * 20, "abc " * 30, "1a2"])
def test_a_line_is_never_much_longer_than_its_source(line):
    def endless(source, prefix):
        return copy_engine(0.999, SIZE).distribution(tuple(range(50 + len(source), 10_000)), prefix)

    for num_symbols in (16, 0):
        translator = make(
            WrittenEngine(endless, SIZE),
            num_symbols=num_symbols,
            max_length_ratio=2.0,
            max_length_extra=20,
            max_source_tokens=40,
        )
        assert len(translator.translate(line)) <= 3 * len(line) + 20


def test_what_byte_fallback_spells_is_not_shown():
    unwanted = [ord(character) + 10 for character in "\x00\x1b\x7f\x9f"]
    engine = echo(lambda source: [*unwanted, *source[:-1], ord("\n") + 10, ord("\u2028") + 10, EOS])
    assert make(engine, max_length_extra=20).translate("abc.").rstrip(" ") == "abc."


@pytest.mark.parametrize(
    ("line", "status", "notes"),
    [
        ("a\ufffdb c.", "invalid_characters", ("invalid_characters",)),
        ("\ufffd\ufffd", "empty", ("invalid_characters",)),
        ("a\ufffdb " * 20, "cut", ("cut", "invalid_characters")),
    ],
)
def test_invalid_characters_are_flagged(line, status, notes):
    engine = echo(lambda source: [min(token, SIZE - 1) for token in source])
    found = make(engine, max_source_tokens=40).translate_batch([line])[0]
    assert (found.status, found.notes) == (status, notes)


def test_guessing_is_flagged():
    def unsure(source, prefix):
        row = np.full(SIZE, -np.log(SIZE))
        row[EOS] = -9.0 if len(prefix) < 4 else 0.0
        return row

    found = make(WrittenEngine(unsure, SIZE), beam=1).translate_batch(["abc"])[0]
    assert "low_confidence" in found.notes


def test_a_failing_batch_is_tried_again_line_by_line(caplog):
    class Fragile(WrittenEngine):
        def encode(self, sources):
            if any(ord("x") + 10 in ids for ids in sources):
                raise RuntimeError("out of memory")
            return super().encode(sources)

    engine = Fragile(copy_engine(0.9, SIZE).distribution, SIZE)
    lines = ["one.", "taxi.", "three."]
    found = make(engine).translate_batch(lines)
    assert [translation.text for translation in found] == lines
    assert [translation.status for translation in found] == ["ok", "failed", "ok"]
    assert "line 2 failed" in caplog.text


def test_lines_without_words_do_not_reach_the_model():
    engine = echo()
    lines = ["", "   ", "?!", "...", "— * —", "123", "https://a.example/b", "\u00a0", "🎉🎉"]
    found = make(engine).translate_batch(lines)
    assert [translation.text for translation in found] == lines
    assert {translation.status for translation in found} == {"empty"}
    assert engine.batches == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(alphabet="aB1 .?!<b>{}%s⦅0⦆@:/\u2028\r\t\x00🎉é", max_size=30), max_size=6))
def test_one_line_in_one_line_out(lines):
    found = make(echo(lambda source: [min(token, SIZE - 1) for token in source])).translate_batch(lines)
    assert [translation.source for translation in found] == lines
    assert all(len(translation.text.splitlines()) <= 1 for translation in found)

import re
from pathlib import Path
from random import Random

import pytest

from capsnmt.data import demo_words as words
from capsnmt.data.demo import _sentence, make_pairs, write_demo
from capsnmt.data.demo_grammar import (
    Clause,
    Name,
    NounPhrase,
    Prepositional,
    Pronoun,
    english_question,
    english_statement,
    german_main,
    german_question,
    german_subordinate,
)

NOUNS = {noun.en: noun for noun in (*words.PERSONS, *words.ANIMALS, *words.THINGS, *words.PLACES)}
VERBS = {
    verb.en: verb
    for verb in (
        *words.LIVING_OBJECT_VERBS,
        *words.PERSON_OBJECT_VERBS,
        *words.THING_OBJECT_VERBS,
        *words.GIVING_VERBS,
        *words.LIVING_VERBS,
    )
}


def np(determiner: str, noun: str, adjective: tuple[str, str] | None = None, *, plural: bool = False) -> NounPhrase:
    return NounPhrase(determiner, NOUNS[noun], adjective, plural)


OLD = ("old", "alt")


@pytest.mark.parametrize(
    ("phrase", "english", "nominative", "accusative", "dative"),
    [
        (np("the", "dog", OLD), "the old dog", "der alte Hund", "den alten Hund", "dem alten Hund"),
        (np("a", "dog", OLD), "an old dog", "ein alter Hund", "einen alten Hund", "einem alten Hund"),
        (np("my", "cat", OLD), "my old cat", "meine alte Katze", "meine alte Katze", "meiner alten Katze"),
        (np("our", "horse", OLD), "our old horse", "unser altes Pferd", "unser altes Pferd", "unserem alten Pferd"),
        (np("the", "bird", plural=True), "the birds", "die Vögel", "die Vögel", "den Vögeln"),
        (
            np("her", "friend", OLD, plural=True),
            "her old friends",
            "ihre alten Freunde",
            "ihre alten Freunde",
            "ihren alten Freunden",
        ),
        (np("14", "apple", ("red", "rot"), plural=True), "14 red apples", *["14 rote Äpfel"] * 2, "14 roten Äpfeln"),
        (np("a", "egg"), "an egg", "ein Ei", "ein Ei", "einem Ei"),
        (np("the", "car", plural=True), "the cars", "die Autos", "die Autos", "den Autos"),
        (np("a", "child", ("tired", "müde")), "a tired child", *["ein müdes Kind"] * 2, "einem müden Kind"),
        (Pronoun("he"), "him", "er", "ihn", "ihm"),
    ],
)
def test_agreement(phrase: NounPhrase, english: str, nominative: str, accusative: str, dative: str) -> None:
    assert phrase.english(subject=False) == english
    assert [phrase.german(case) for case in ("nom", "acc", "dat")] == [nominative, accusative, dative]


GARDEN = Prepositional(("in", "in"), np("the", "garden"), "dat")
TODAY = ("today", "heute")


@pytest.mark.parametrize(
    ("clause", "english", "main", "subordinate"),
    [
        (
            Clause(Pronoun("I"), VERBS["see"], "past", object=np("the", "dog", OLD)),
            "I saw the old dog",
            "ich habe den alten Hund gesehen",
            "ich den alten Hund gesehen habe",
        ),
        (
            Clause(np("the", "woman"), VERBS["see"], object=np("the", "dog"), prepositional=GARDEN, time=TODAY),
            "the woman sees the dog in the garden today",
            "die Frau sieht heute den Hund im Garten",
            "die Frau heute den Hund im Garten sieht",
        ),
        (
            Clause(np("the", "cat"), VERBS["follow"], "past", object=np("a", "queen"), negated=True),
            "the cat did not follow a queen",
            "die Katze ist keiner Königin gefolgt",
            "die Katze keiner Königin gefolgt ist",
        ),
        (
            Clause(Name("Anna"), VERBS["invite"], object=Pronoun("they"), negated=True),
            "Anna does not invite them",
            "Anna lädt sie nicht ein",
            "Anna sie nicht einlädt",
        ),
        (
            Clause(Pronoun("we"), VERBS["call"], "want", object=Pronoun("she")),
            "we want to call her",
            "wir wollen sie anrufen",
            "wir sie anrufen wollen",
        ),
        (
            Clause(Pronoun("they"), VERBS["call"], object=Name("Paul")),
            "they call Paul",
            "sie rufen Paul an",
            "sie Paul anrufen",
        ),
        (
            Clause(Name("Paul"), VERBS["give"], "can", np("the", "child"), np("a", "apple"), negated=True),
            "Paul cannot give the child an apple",
            "Paul kann dem Kind keinen Apfel geben",
            "Paul dem Kind keinen Apfel geben kann",
        ),
        (
            Clause(np("the", "child", plural=True), words.BE, "past", predicate=("tired", "müde"), negated=True),
            "the children were not tired",
            "die Kinder waren nicht müde",
            "die Kinder nicht müde waren",
        ),
        (
            Clause(Name("Anna"), words.HAVE, object=np("14", "apple", plural=True)),
            "Anna has 14 apples",
            "Anna hat 14 Äpfel",
            "Anna 14 Äpfel hat",
        ),
    ],
)
def test_clauses(clause: Clause, english: str, main: str, subordinate: str) -> None:
    assert english_statement(clause) == english
    assert german_main(clause) == main
    assert german_subordinate(clause) == subordinate


def test_fronting_and_questions_invert() -> None:
    clause = Clause(np("the", "woman"), VERBS["see"], object=np("the", "dog"), time=TODAY)
    assert english_statement(clause, time_first=True) == "today the woman sees the dog"
    assert german_main(clause, first="heute") == "heute sieht die Frau den Hund"
    assert english_question(clause) == "does the woman see the dog today"
    assert german_question(clause) == "sieht die Frau heute den Hund"
    past = Clause(Pronoun("he"), VERBS["sleep"], "past")
    assert english_question(past, word="where") == "where did he sleep"
    assert german_question(past, word="wo") == "wo hat er geschlafen"


def test_english_decides_german() -> None:
    random = Random(11)
    seen: dict[str, str] = {}
    repeated = 0
    for _ in range(30_000):
        english, german = _sentence(random)
        repeated += english in seen
        assert seen.setdefault(english, german) == german
    assert repeated > 100  # otherwise nothing was compared


def test_corpus_has_the_promised_shape_and_phenomena(tmp_path: Path) -> None:
    write_demo(tmp_path, train_pairs=3000, valid_pairs=100, test_pairs=100)
    english, german = (
        {
            name: (tmp_path / f"{name}.{side}").read_text(encoding="utf-8").splitlines()
            for name in ("train", "valid", "test")
        }
        for side in ("en", "de")
    )
    assert [len(english[name]) for name in english] == [len(german[name]) for name in german] == [3000, 100, 100]
    everything = [line for lines in english.values() for line in lines]
    assert len(set(everything)) == len(everything)
    for line in everything + [line for lines in german.values() for line in lines]:
        assert 3 <= len(line.split()) <= 10
        assert re.fullmatch(r"[A-ZÄÖÜ0-9][A-Za-zÄÖÜäöüß0-9', ]*[.?]", line), line
        assert "  " not in line
    text = "\n".join(german["train"])
    for pattern in (
        r", weil .* (ist|hat|sind|haben)\.", r"^Heute \w+t ", r"\bkeine?n?\b", r"\bnicht\b", r"\bim \w+", r"\bdurch d",
        r" \d+ \w+", r"^(Hat|Ist|Kann) .*\?$", r"^Wo .*\?$", r"^Weil .*, \w+", r" an\.$", r", dass ", r"\bden \w+n\b",
        r"(wird|werden) .*en\.$", r"\bmit (dem|der)\b", r"(muss|kann|will|sollte) .*en\.$",
    ):  # fmt: skip
        assert re.search(pattern, text, re.MULTILINE), pattern
    assert not re.search(r"\bin dem\b", text)


def test_the_seed_decides_the_corpus() -> None:
    assert make_pairs(50, seed=1) == make_pairs(50, seed=1)
    assert make_pairs(50, seed=1) != make_pairs(50, seed=2)

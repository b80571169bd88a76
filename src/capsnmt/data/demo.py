"""A small English-German corpus that the project makes up itself, so that everything can be tried without a download.

The German of a sentence is decided by its English, so that a model can learn it entirely: agreement in gender, case
and number, verb second and verb last, separable verbs, nicht and kein.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TypeVar

from capsnmt.data import demo_words as words
from capsnmt.data.demo_grammar import (
    Clause,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
    english_question,
    english_statement,
    german_main,
    german_question,
    german_subordinate,
)
from capsnmt.errors import CapsNMTError

_MIN_WORDS, _MAX_WORDS = 3, 10
_CONJUNCTIONS = {  # English to German, and the modes that both clauses may have
    "because": ("weil", ("present", "past", "can", "must", "want")),
    "although": ("obwohl", ("present", "past", "can", "must", "want")),
    "if": ("wenn", ("present", "can", "want")),
    "when": ("als", ("past",)),
}
_DIRECTED = ("run",)  # "where" would be "wohin" with these, and "wo" with all others
_NOT_POSSESSED = ("man", "woman", "girl")  # "seine Frau" is his wife
_MODES = ("present", "past", "can", "must", "should", "want", "will")
_MODE_WEIGHTS = (44, 30, 6, 6, 4, 5, 5)

Choice = TypeVar("Choice")


def write_demo(
    folder: Path, *, train_pairs: int = 20_000, valid_pairs: int = 500, test_pairs: int = 500, seed: int = 1
) -> None:
    """Writes train, valid and test as .en and .de; no English sentence occurs twice, in all of them together."""
    pairs = make_pairs(train_pairs + valid_pairs + test_pairs, seed=seed)
    splits = {
        "train": pairs[:train_pairs],
        "valid": pairs[train_pairs : train_pairs + valid_pairs],
        "test": pairs[train_pairs + valid_pairs :],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, split in splits.items():
            _write(folder / f"{name}.en", [english for english, _ in split])
            _write(folder / f"{name}.de", [german for _, german in split])
    except OSError as error:
        raise CapsNMTError(f"cannot write the demo corpus under data.root {folder}: {error.strerror}") from None


def make_pairs(count: int, *, seed: int) -> list[tuple[str, str]]:
    """So many different sentences, in random order, as (English, German)."""
    random = Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        english, german = _sentence(random)
        if all(_MIN_WORDS <= len(text.split()) <= _MAX_WORDS for text in (english, german)):
            pairs.setdefault(english, german)
    return list(pairs.items())


def _write(file: Path, lines: list[str]) -> None:
    # Renamed into place, because two runs may write the same demo at once.
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    temporary.write_bytes("".join(f"{line}\n" for line in lines).encode())
    temporary.replace(file)


def _pick(random: Random, options: Sequence[Choice], weights: Sequence[int] | None = None) -> Choice:
    return random.choices(options, weights)[0]


def _sentence(random: Random) -> tuple[str, str]:
    kinds = (_statement, _yes_no_question, _word_question, _complex, _that, _coordinated)
    english, german, mark = _pick(random, kinds, (60, 12, 12, 8, 4, 4))(random)
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


Said = tuple[str, str, str]  # English, German, the mark at the end


def _statement(random: Random) -> Said:
    clause = _clause(random, _pick(random, _MODES, _MODE_WEIGHTS))
    if _is_living(clause.subject) and random.random() < 0.45:
        clause = replace(clause, time=_time(random, clause.mode))
        if random.random() < 0.6:
            return english_statement(clause, time_first=True), german_main(clause, first=clause.time[1]), "."
    return english_statement(clause), german_main(clause), "."


def _yes_no_question(random: Random) -> Said:
    clause = replace(_clause(random, _pick(random, _MODES, _MODE_WEIGHTS)), negated=False)
    clause = replace(clause, object=_positive(clause.object))
    if _is_living(clause.subject) and random.random() < 0.3:
        clause = replace(clause, time=_time(random, clause.mode))
    return english_question(clause), german_question(clause), "?"


def _word_question(random: Random) -> Said:
    word, german_word = _pick(
        random, (("why", "warum"), ("when", "wann"), ("where", "wo"), ("what", "was"), ("who", "wer"))
    )
    mode = _pick(random, _MODES, _MODE_WEIGHTS)
    if word == "what":
        clause = Clause(_person(random), _pick(random, words.THING_OBJECT_VERBS), mode)
        return english_question(clause, word=word), german_question(clause, word=german_word), "?"
    clause = _action(random, mode)
    clause = replace(clause, negated=False, object=_positive(clause.object))
    if word == "who":
        clause = replace(clause, subject=Pronoun("who"))
        return english_statement(clause), german_main(clause), "?"
    if word == "where" and clause.verb.en in _DIRECTED:
        word, german_word = "why", "warum"
    elif word == "where":
        clause = replace(clause, prepositional=None)
    return english_question(clause, word=word), german_question(clause, word=german_word), "?"


def _complex(random: Random) -> Said:
    conjunction = _pick(random, tuple(_CONJUNCTIONS), (4, 2, 2, 2))
    german_conjunction, modes = _CONJUNCTIONS[conjunction]
    main, reason = _clause(random, _pick(random, modes)), _clause(random, _pick(random, modes))
    english_reason = f"{conjunction} {english_statement(reason)}"
    german_reason = f"{german_conjunction} {german_subordinate(reason)},"
    if random.random() < 0.35:
        return f"{english_reason}, {english_statement(main)}", german_main(main, first=german_reason), "."
    return f"{english_statement(main)} {english_reason}", f"{german_main(main)}, {german_reason[:-1]}", "."


def _that(random: Random) -> Said:
    # Past or present in both clauses: English moves the tense of the second, German need not.
    mode = _pick(random, ("present", "past"))
    main = Clause(_person(random), _pick(random, words.THINKING_VERBS), mode)
    content = _clause(
        random, _pick(random, ("past",) if mode == "past" else ("present", "past", "can", "must", "will"))
    )
    english = f"{english_statement(main)} that {english_statement(content)}"
    return english, f"{german_main(main)}, dass {german_subordinate(content)}", "."


def _coordinated(random: Random) -> Said:
    first, second = (_clause(random, _pick(random, ("present", "past", "can"))) for _ in range(2))
    english, german = _pick(random, (("and", " und"), ("but", ", aber")))
    return (
        f"{english_statement(first)} {english} {english_statement(second)}",
        f"{german_main(first)}{german} {german_main(second)}",
        ".",
    )


def _time(random: Random, mode: str) -> tuple[str, str]:
    if random.random() < 0.15:
        hour = random.randint(1, 12)
        return f"at {hour} o'clock", f"um {hour} Uhr"
    table = {"past": words.PAST_TIMES, "will": words.FUTURE_TIMES}.get(mode, words.PRESENT_TIMES)
    return _pick(random, tuple(table.items()))


def _is_living(phrase: Phrase) -> bool:
    return not (isinstance(phrase, NounPhrase) and phrase.noun in words.THINGS)


def _clause(random: Random, mode: str) -> Clause:
    kind = _pick(random, (_action, _animal_action, _state, _measure), (64, 12, 18, 6))
    return kind(random, mode)


def _action(random: Random, mode: str) -> Clause:
    """A person does something."""
    clause = Clause(_person(random), words.BE, mode)
    kind = _pick(random, ("thing", "living", "giving", "alone"), (40, 30, 15, 25))
    if kind == "thing":
        clause = replace(clause, verb=_pick(random, words.THING_OBJECT_VERBS), object=_thing(random))
        if clause.verb is not words.HAVE and random.random() < 0.2:
            clause = replace(clause, prepositional=Prepositional(("for", "für"), _other(random, clause.subject), "acc"))
        elif random.random() < 0.25:
            clause = replace(clause, prepositional=_place(random))
    elif kind == "living" and random.random() < 0.5:
        verb = _pick(random, words.LIVING_OBJECT_VERBS)
        clause = replace(clause, verb=verb, object=_noun_phrase(random, words.ANIMALS, words.LIVING_ADJECTIVES))
        clause = replace(clause, prepositional=_place(random) if random.random() < 0.3 else None)
    elif kind == "living":
        verb = _pick(random, (*words.LIVING_OBJECT_VERBS, *words.PERSON_OBJECT_VERBS))
        clause = replace(clause, verb=verb, object=_other(random, clause.subject))
        clause = replace(clause, prepositional=_place(random) if random.random() < 0.3 else None)
    elif kind == "giving":
        recipient = _other(random, clause.subject)
        clause = replace(clause, verb=_pick(random, words.GIVING_VERBS), recipient=recipient, object=_thing(random))
    else:
        verb = _pick(random, (*words.PERSON_VERBS, *words.LIVING_VERBS, words.RUN))
        clause = replace(clause, verb=verb, prepositional=_circumstance(random, verb, clause.subject))
    return _maybe_negated(random, clause)


def _animal_action(random: Random, mode: str) -> Clause:
    subject = _noun_phrase(random, words.ANIMALS, words.LIVING_ADJECTIVES)
    if random.random() < 0.5:
        verb = _pick(random, (*words.LIVING_VERBS, words.RUN))
        through = Prepositional(("through", "durch"), _some_place(random), "acc")
        prepositional = through if verb is words.RUN else _place(random)
        return _maybe_negated(random, Clause(subject, verb, mode, prepositional=prepositional))
    verb = _pick(random, words.LIVING_OBJECT_VERBS)
    animal = _noun_phrase(random, words.ANIMALS, words.LIVING_ADJECTIVES)
    return _maybe_negated(random, Clause(subject, verb, mode, object=_pick(random, (animal, _other(random, subject)))))


def _state(random: Random, mode: str) -> Clause:
    """Somebody or something is old, red, in the garden."""
    if random.random() < 0.5:
        subject: Phrase = _person(random)
        adjectives = words.LIVING_ADJECTIVES
    else:
        subject, adjectives = _noun_phrase(random, words.THINGS, {}, counted=False), words.THING_ADJECTIVES
        mode = mode if mode in ("present", "past", "will") else "present"
    clause = Clause(subject, words.BE, mode)
    if random.random() < 0.3:
        return _maybe_negated(random, replace(clause, prepositional=_place(random)))
    predicate = _pick(random, tuple(adjectives.items()))
    if isinstance(subject, NounPhrase) and subject.adjective == predicate:  # no "the old man is old"
        clause = replace(clause, subject=replace(subject, adjective=None))
    return _maybe_negated(random, replace(clause, predicate=predicate))


def _measure(random: Random, mode: str) -> Clause:
    """What something costs, how old somebody is."""
    if random.random() < 0.5:
        price = random.randint(2, 20)
        subject = _noun_phrase(random, words.THINGS, words.THING_ADJECTIVES, counted=False)
        # The past of "cost" looks like its plural present, so these stay in the present.
        return Clause(subject, words.COST, predicate=(f"{price} euros", f"{price} Euro"))
    age = random.randint(2, 20)
    mode = mode if mode in ("present", "past") else "present"
    return Clause(_person(random), words.BE, mode, predicate=(f"{age} years old", f"{age} Jahre alt"))


def _maybe_negated(random: Random, clause: Clause) -> Clause:
    if clause.mode == "must" or random.random() > 0.2:  # "must not" is "darf nicht", another verb
        return clause
    if isinstance(clause.object, NounPhrase) and (not clause.object.determiner or clause.object.determiner.isdigit()):
        clause = replace(clause, object=replace(clause.object, determiner="any"))
    return replace(clause, negated=True)


def _positive(phrase: Phrase | None) -> Phrase | None:
    """Takes back the "any" of a negated clause."""
    if isinstance(phrase, NounPhrase) and phrase.determiner == "any":
        return replace(phrase, determiner="")
    return phrase


def _person(random: Random) -> Phrase:
    kind = _pick(random, ("name", "pronoun", "noun"), (30, 25, 45))
    if kind == "name":
        return Name(_pick(random, words.NAMES))
    if kind == "pronoun":
        return Pronoun(_pick(random, ("I", "he", "she", "we", "they")))
    return _noun_phrase(random, words.PERSONS, words.LIVING_ADJECTIVES)


def _other(random: Random, subject: Phrase) -> Phrase:
    """Somebody who is not the subject."""
    person = _person(random)
    first_persons = (Pronoun("I"), Pronoun("we"))
    if person == subject or (person in first_persons and subject in first_persons):
        return _noun_phrase(random, words.PERSONS, words.LIVING_ADJECTIVES)
    return person


def _thing(random: Random) -> NounPhrase:
    if random.random() < 0.12:
        adjective = _pick(random, tuple(words.THING_ADJECTIVES.items())) if random.random() < 0.5 else None
        return NounPhrase("", _pick(random, words.THINGS), adjective, plural=True)
    return _noun_phrase(random, words.THINGS, words.THING_ADJECTIVES)


def _noun_phrase(
    random: Random, nouns: Sequence[words.Noun], adjectives: dict[str, str], *, counted: bool = True
) -> NounPhrase:
    determiner = _pick(random, ("the", "a", "possessive", "number"), (50, 22, 18, 10 if counted else 0))
    plural = determiner == "number" or (determiner != "a" and random.random() < 0.25)
    noun = _pick(random, nouns)
    if determiner == "possessive":
        determiner = "the" if noun.en in _NOT_POSSESSED else _pick(random, ("my", "our", "his", "her"))
    elif determiner == "number":
        determiner = str(random.randint(2, 20))
    adjective = _pick(random, tuple(adjectives.items())) if adjectives and random.random() < 0.4 else None
    return NounPhrase(determiner, noun, adjective, plural)


def _some_place(random: Random) -> NounPhrase:
    adjective = _pick(random, tuple(words.PLACE_ADJECTIVES.items())) if random.random() < 0.25 else None
    return NounPhrase("the", _pick(random, words.PLACES), adjective, plural=random.random() < 0.1)


def _place(random: Random) -> Prepositional:
    preposition = _pick(random, tuple(words.PLACE_PREPOSITIONS.items()), (6, 1, 1, 1))
    return Prepositional(preposition, _some_place(random), "dat")


def _circumstance(random: Random, verb: words.Verb, subject: Phrase) -> Prepositional | None:
    """Where, with whom or without what somebody does it."""
    if verb is words.RUN:
        return Prepositional(("through", "durch"), _some_place(random), "acc")
    kind = _pick(random, ("place", "with", "without", "none"), (40, 25, 10, 25))
    if kind == "place" or (kind == "with" and verb.en == "sleep"):  # this is a corpus for children too
        return _place(random)
    if kind == "with":
        return Prepositional(("with", "mit"), _other(random, subject), "dat")
    if kind == "without":
        thing = NounPhrase(_pick(random, ("the", "my", "our", "his", "her")), _pick(random, words.THINGS))
        return Prepositional(("without", "ohne"), thing, "acc")
    return None

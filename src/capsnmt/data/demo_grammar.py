"""The grammar of the demo corpus: phrases and clauses that can be said in English and in German."""

from __future__ import annotations

from dataclasses import dataclass

from capsnmt.data.demo_words import AUXILIARIES, BE, Noun, Verb

_DEFINITE = {
    "nom": {"m": "der", "f": "die", "n": "das", "pl": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "pl": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "pl": "den"},
}
_EIN_ENDINGS = {
    "nom": {"m": "", "f": "e", "n": "", "pl": "e"},
    "acc": {"m": "en", "f": "e", "n": "", "pl": "e"},
    "dat": {"m": "em", "f": "er", "n": "em", "pl": "en"},
}
_EIN_WORDS = {"a": "ein", "no": "kein", "my": "mein", "our": "unser", "his": "sein", "her": "ihr"}

# Adjective endings after der, after ein, and (plural only) after nothing or a number.
_WEAK = {
    "nom": {"m": "e", "f": "e", "n": "e", "pl": "en"},
    "acc": {"m": "en", "f": "e", "n": "e", "pl": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "pl": "en"},
}
_MIXED = {
    "nom": {"m": "er", "f": "e", "n": "es", "pl": "en"},
    "acc": {"m": "en", "f": "e", "n": "es", "pl": "en"},
    "dat": {"m": "en", "f": "en", "n": "en", "pl": "en"},
}
_STRONG_PLURAL = {"nom": "e", "acc": "e", "dat": "en"}

# English subject and object form; German nominative, accusative, dative.
_PRONOUNS = {
    "I": ("I", "me", "ich", "mich", "mir"),
    "he": ("he", "him", "er", "ihn", "ihm"),
    "she": ("she", "her", "sie", "sie", "ihr"),
    "we": ("we", "us", "wir", "uns", "uns"),
    "they": ("they", "them", "sie", "sie", "ihnen"),
    "who": ("who", "whom", "wer", "wen", "wem"),
}
_CASES = ("nom", "acc", "dat")
_PERSONS = ("1sg", "3sg", "pl")


@dataclass(frozen=True)
class Name:
    """A person's name: no article, no ending."""

    word: str
    person: str = "3sg"

    def english(self, *, subject: bool) -> str:
        """The name."""
        return self.word

    def german(self, case: str) -> str:
        """The name, in any case."""
        return self.word


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, or who."""

    word: str

    @property
    def person(self) -> str:
        """Which verb form it takes."""
        return {"I": "1sg", "we": "pl", "they": "pl"}.get(self.word, "3sg")

    def english(self, *, subject: bool) -> str:
        """I as subject, me as object."""
        return _PRONOUNS[self.word][0 if subject else 1]

    def german(self, case: str) -> str:
        """Ich, mich, mir."""
        return _PRONOUNS[self.word][2 + _CASES.index(case)]


@dataclass(frozen=True)
class NounPhrase:
    """A noun with determiner ("" = none), adjective and number. A numeral is a determiner."""

    determiner: str
    noun: Noun
    adjective: tuple[str, str] | None = None  # English, German
    plural: bool = False

    @property
    def person(self) -> str:
        """Which verb form it takes."""
        return "pl" if self.plural else "3sg"

    def english(self, *, subject: bool) -> str:
        """The phrase, with "an" where it belongs."""
        words = [self.adjective[0]] if self.adjective else []
        words.append(self.noun.en_plural if self.plural else self.noun.en)
        determiner = "an" if self.determiner == "a" and words[0][0] in "aeiou" else self.determiner
        return _join(determiner, *words)

    def german(self, case: str) -> str:
        """The phrase with article, adjective and noun in this case."""
        gender = "pl" if self.plural else self.noun.gender
        determiner, ending = self._determiner_and_ending(case, gender)
        adjective = self.adjective[1].removesuffix("e") + ending if self.adjective else ""
        noun = self.noun.de_plural if self.plural else self.noun.de
        if self.plural and case == "dat" and noun[-1] not in "ns":
            noun += "n"
        return _join(determiner, adjective, noun)

    def _determiner_and_ending(self, case: str, gender: str) -> tuple[str, str]:
        if self.determiner == "the":
            return _DEFINITE[case][gender], _WEAK[case][gender]
        if self.determiner in _EIN_WORDS:
            return _EIN_WORDS[self.determiner] + _EIN_ENDINGS[case][gender], _MIXED[case][gender]
        return self.determiner, _STRONG_PLURAL[case]


Phrase = Name | Pronoun | NounPhrase


@dataclass(frozen=True)
class Prepositional:
    """A preposition and its phrase, as English and German say it."""

    preposition: tuple[str, str]
    phrase: Phrase
    case: str

    def english(self) -> str:
        """In the garden."""
        return _join(self.preposition[0], self.phrase.english(subject=False))

    def german(self) -> str:
        """Im Garten: in and dem always melt together here."""
        text = _join(self.preposition[1], self.phrase.german(self.case))
        return "im " + text.removeprefix("in dem ") if text.startswith("in dem ") else text


@dataclass(frozen=True)
class Clause:
    """Who does what. `mode` is present, past or one of can, must, should, want, will."""

    subject: Phrase
    verb: Verb
    mode: str = "present"
    recipient: Phrase | None = None  # in the dative, before the object
    object: Phrase | None = None
    predicate: tuple[str, str] = ("", "")  # what follows "to be", or a measure
    prepositional: Prepositional | None = None
    time: tuple[str, str] = ("", "")
    negated: bool = False


def english_statement(clause: Clause, *, time_first: bool = False) -> str:
    """Words in the order of a main or subordinate clause; English uses the same for both."""
    auxiliary, rest = _english_verb(clause, support=clause.negated)
    negation = "not" if clause.negated else ""
    group = "cannot" if (auxiliary, negation) == ("can", "not") else _join(auxiliary, negation)
    first, last = (clause.time[0], "") if time_first else ("", clause.time[0])
    return _join(first, clause.subject.english(subject=True), group, rest, _english_complements(clause), last)


def english_question(clause: Clause, *, word: str = "") -> str:
    """Yes-no question, or one with where, why, when, what."""
    auxiliary, rest = _english_verb(clause, support=True)
    return _join(
        word, auxiliary, clause.subject.english(subject=True), rest, _english_complements(clause), clause.time[0]
    )


def german_main(clause: Clause, *, first: str | None = None) -> str:
    """Verb second; `first` stands before it, otherwise the subject does."""
    finite, bracket = _german_verb(clause)
    subject = clause.subject.german("nom")
    before, after = (subject, "") if first is None else (first, subject)
    return _join(before, finite, after, _german_middle(clause, time=first is None), bracket)


def german_question(clause: Clause, *, word: str = "") -> str:
    """Verb first, or second after a question word."""
    finite, bracket = _german_verb(clause)
    return _join(word, finite, clause.subject.german("nom"), _german_middle(clause, time=True), bracket)


def german_subordinate(clause: Clause) -> str:
    """Verb last; a separable verb is one word again."""
    finite, bracket = _german_verb(clause)
    middle = _german_middle(clause, time=True)
    end = bracket + finite if clause.verb.particle and bracket == clause.verb.particle else _join(bracket, finite)
    return _join(clause.subject.german("nom"), middle, end)


def _english_verb(clause: Clause, *, support: bool) -> tuple[str, str]:
    """Auxiliary and the rest; `support` asks for one even where a statement has none (do, does, did)."""
    verb, person = clause.verb, clause.subject.person
    column = _PERSONS.index(person)
    if clause.mode in ("can", "must", "should", "will"):
        return clause.mode, verb.en
    if verb is BE and clause.mode != "want":
        forms = ("am", "is", "are") if clause.mode == "present" else ("was", "was", "were")
        return forms[column], ""
    if clause.mode == "past":
        return ("did", verb.en) if support else ("", verb.en_past)
    base, third = ("want to " + verb.en, "wants to " + verb.en) if clause.mode == "want" else (verb.en, verb.en_third)
    if support:
        return ("do", "does", "do")[column], base
    return "", third if person == "3sg" else base


def _english_complements(clause: Clause) -> str:
    phrases = [phrase.english(subject=False) for phrase in (clause.recipient, clause.object) if phrase is not None]
    prepositional = clause.prepositional.english() if clause.prepositional else ""
    return _join(*phrases, clause.predicate[0], prepositional)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """The finite form, and what closes the clause: participle, infinitive or particle."""
    verb, column = clause.verb, _PERSONS.index(clause.subject.person)
    if clause.mode in AUXILIARIES:
        return AUXILIARIES[clause.mode][column], verb.de
    if clause.mode == "past" and verb.preterite is not None:
        return verb.preterite[column // 2], ""
    if clause.mode == "past":
        return AUXILIARIES[verb.auxiliary][column], verb.participle
    plural = "sind" if verb is BE else verb.de.removeprefix(verb.particle)
    return (verb.de_first, verb.de_third, plural)[column], verb.particle


def _german_middle(clause: Clause, *, time: bool) -> str:
    """Pronouns, time, recipient, object, nicht, the rest. An indefinite object is negated by kein, not by nicht."""
    complements = [(clause.recipient, "dat"), (clause.object, clause.verb.case)]
    pronouns = [phrase.german(case) for phrase, case in complements if isinstance(phrase, Pronoun)]
    nominals = []
    negation = "nicht" if clause.negated else ""
    for phrase, case in complements:
        if phrase is None or isinstance(phrase, Pronoun):
            continue
        if (
            clause.negated
            and isinstance(phrase, NounPhrase)
            and phrase is clause.object
            and phrase.determiner in ("a", "any")
        ):
            phrase, negation = NounPhrase("no", phrase.noun, phrase.adjective, phrase.plural), ""
        nominals.append(phrase.german(case))
    prepositional = clause.prepositional.german() if clause.prepositional else ""
    return _join(*pronouns, clause.time[1] if time else "", *nominals, negation, clause.predicate[1], prepositional)


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)

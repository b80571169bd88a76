"""The words of the demo corpus. Only such whose English form decides the German one, and whose German is regular.

Left out on purpose: masculine nouns with -(e)n in the accusative (Junge, Nachbar), adjectives that lose a letter
(teuer, dunkel) or bend their stem (hoch), English verbs whose past looks like the present (put, read) and nouns whose
plural looks like the singular (sheep).
"""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """English singular and plural, German singular and nominative plural, gender m, f or n."""

    en: str
    en_plural: str
    de: str
    de_plural: str
    gender: str


class Verb(NamedTuple):
    """English base, third person and past; German infinitive, first and third person singular, participle."""

    en: str
    en_third: str
    en_past: str
    de: str
    de_first: str
    de_third: str
    participle: str
    case: str = "acc"  # of its object
    auxiliary: str = "haben"  # of its perfect
    particle: str = ""  # separable: ruft ... an
    preterite: tuple[str, str] | None = None  # singular and plural; used instead of the perfect (hatte, war)


def _nouns(table: str) -> tuple[Noun, ...]:
    return tuple(Noun(*line.split()) for line in table.strip().splitlines())


def _words(table: str) -> dict[str, str]:
    pairs = (line.rsplit(maxsplit=1) for line in table.strip().splitlines())
    return {english.strip(): german for english, german in pairs}


PERSONS = _nouns("""
man men Mann Männer m
woman women Frau Frauen f
child children Kind Kinder n
girl girls Mädchen Mädchen n
teacher teachers Lehrer Lehrer m
doctor doctors Arzt Ärzte m
king kings König Könige m
queen queens Königin Königinnen f
friend friends Freund Freunde m
sister sisters Schwester Schwestern f
""")

ANIMALS = _nouns("""
dog dogs Hund Hunde m
cat cats Katze Katzen f
horse horses Pferd Pferde n
bird birds Vogel Vögel m
""")

THINGS = _nouns("""
apple apples Apfel Äpfel m
book books Buch Bücher n
lamp lamps Lampe Lampen f
table tables Tisch Tische m
letter letters Brief Briefe m
picture pictures Bild Bilder n
flower flowers Blume Blumen f
ball balls Ball Bälle m
bag bags Tasche Taschen f
coat coats Mantel Mäntel m
egg eggs Ei Eier n
car cars Auto Autos n
""")

PLACES = _nouns("""
garden gardens Garten Gärten m
kitchen kitchens Küche Küchen f
school schools Schule Schulen f
park parks Park Parks m
city cities Stadt Städte f
house houses Haus Häuser n
""")

NAMES = ("Anna", "Peter", "Maria", "Paul", "Emma", "Felix")

# Adjectives, by what they can be said of.
LIVING_ADJECTIVES = _words("""
old alt
young jung
small klein
big groß
friendly freundlich
tired müde
happy glücklich
""")

THING_ADJECTIVES = _words("""
old alt
new neu
small klein
big groß
beautiful schön
red rot
blue blau
""")

PLACE_ADJECTIVES = _words("""
old alt
new neu
small klein
big groß
beautiful schön
""")

BE = Verb("be", "is", "was", "sein", "bin", "ist", "gewesen", auxiliary="sein", preterite=("war", "waren"))
HAVE = Verb("have", "has", "had", "haben", "habe", "hat", "gehabt", preterite=("hatte", "hatten"))

LIVING_OBJECT_VERBS = (
    Verb("see", "sees", "saw", "sehen", "sehe", "sieht", "gesehen"),
    Verb("love", "loves", "loved", "lieben", "liebe", "liebt", "geliebt"),
    Verb("find", "finds", "found", "finden", "finde", "findet", "gefunden"),
    Verb("help", "helps", "helped", "helfen", "helfe", "hilft", "geholfen", case="dat"),
    Verb("follow", "follows", "followed", "folgen", "folge", "folgt", "gefolgt", case="dat", auxiliary="sein"),
)

PERSON_OBJECT_VERBS = (
    Verb("visit", "visits", "visited", "besuchen", "besuche", "besucht", "besucht"),
    Verb("call", "calls", "called", "anrufen", "rufe", "ruft", "angerufen", particle="an"),
    Verb("invite", "invites", "invited", "einladen", "lade", "lädt", "eingeladen", particle="ein"),
)

THING_OBJECT_VERBS = (
    Verb("see", "sees", "saw", "sehen", "sehe", "sieht", "gesehen"),
    Verb("find", "finds", "found", "finden", "finde", "findet", "gefunden"),
    Verb("buy", "buys", "bought", "kaufen", "kaufe", "kauft", "gekauft"),
    Verb("need", "needs", "needed", "brauchen", "brauche", "braucht", "gebraucht"),
    Verb("paint", "paints", "painted", "malen", "male", "malt", "gemalt"),
    HAVE,
)

GIVING_VERBS = (Verb("give", "gives", "gave", "geben", "gebe", "gibt", "gegeben"),)

PERSON_VERBS = (
    Verb("work", "works", "worked", "arbeiten", "arbeite", "arbeitet", "gearbeitet"),
    Verb("sing", "sings", "sang", "singen", "singe", "singt", "gesungen"),
    Verb("dance", "dances", "danced", "tanzen", "tanze", "tanzt", "getanzt"),
)

LIVING_VERBS = (
    Verb("sleep", "sleeps", "slept", "schlafen", "schlafe", "schläft", "geschlafen"),
    Verb("play", "plays", "played", "spielen", "spiele", "spielt", "gespielt"),
    Verb("wait", "waits", "waited", "warten", "warte", "wartet", "gewartet"),
)

# Followed by a clause with "that".
THINKING_VERBS = (
    Verb("know", "knows", "knew", "wissen", "weiß", "weiß", "gewusst", preterite=("wusste", "wussten")),
    Verb("say", "says", "said", "sagen", "sage", "sagt", "gesagt"),
)

RUN = Verb("run", "runs", "ran", "laufen", "laufe", "läuft", "gelaufen", auxiliary="sein")
COST = Verb("cost", "costs", "cost", "kosten", "koste", "kostet", "gekostet")  # used in the present only

# German forms for ich, er/sie/es, wir/sie.
AUXILIARIES = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "should": ("sollte", "sollte", "sollten"),
    "want": ("will", "will", "wollen"),
    "will": ("werde", "wird", "werden"),
}

PRESENT_TIMES = {
    "today": "heute",
    "now": "jetzt",
    "every day": "jeden Tag",
    "in the evening": "am Abend",
    "on Monday": "am Montag",
}
PAST_TIMES = {
    "yesterday": "gestern",
    "last week": "letzte Woche",
    "this morning": "heute Morgen",
}
FUTURE_TIMES = {
    "tomorrow": "morgen",
    "next week": "nächste Woche",
    "soon": "bald",
}

PLACE_PREPOSITIONS = {"in": "in", "behind": "hinter", "in front of": "vor", "next to": "neben"}  # all with the dative

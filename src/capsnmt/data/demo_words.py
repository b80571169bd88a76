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
baker bakers Bäcker Bäcker m
gardener gardeners Gärtner Gärtner m
painter painters Maler Maler m
singer singers Sänger Sänger m
friend friends Freund Freunde m
guest guests Gast Gäste m
sister sisters Schwester Schwestern f
brother brothers Bruder Brüder m
daughter daughters Tochter Töchter f
son sons Sohn Söhne m
aunt aunts Tante Tanten f
uncle uncles Onkel Onkel m
""")

ANIMALS = _nouns("""
dog dogs Hund Hunde m
cat cats Katze Katzen f
horse horses Pferd Pferde n
bird birds Vogel Vögel m
cow cows Kuh Kühe f
mouse mice Maus Mäuse f
duck ducks Ente Enten f
pig pigs Schwein Schweine n
""")

THINGS = _nouns("""
apple apples Apfel Äpfel m
book books Buch Bücher n
lamp lamps Lampe Lampen f
table tables Tisch Tische m
chair chairs Stuhl Stühle m
letter letters Brief Briefe m
key keys Schlüssel Schlüssel m
picture pictures Bild Bilder n
flower flowers Blume Blumen f
bottle bottles Flasche Flaschen f
cake cakes Kuchen Kuchen m
ball balls Ball Bälle m
bag bags Tasche Taschen f
knife knives Messer Messer n
hat hats Hut Hüte m
coat coats Mantel Mäntel m
shirt shirts Hemd Hemden n
egg eggs Ei Eier n
newspaper newspapers Zeitung Zeitungen f
camera cameras Kamera Kameras f
bicycle bicycles Fahrrad Fahrräder n
cup cups Tasse Tassen f
spoon spoons Löffel Löffel m
gift gifts Geschenk Geschenke n
guitar guitars Gitarre Gitarren f
umbrella umbrellas Regenschirm Regenschirme m
orange oranges Orange Orangen f
car cars Auto Autos n
""")

PLACES = _nouns("""
garden gardens Garten Gärten m
kitchen kitchens Küche Küchen f
school schools Schule Schulen f
park parks Park Parks m
forest forests Wald Wälder m
city cities Stadt Städte f
hotel hotels Hotel Hotels n
office offices Büro Büros n
theatre theatres Theater Theater n
museum museums Museum Museen n
church churches Kirche Kirchen f
castle castles Schloss Schlösser n
house houses Haus Häuser n
village villages Dorf Dörfer n
""")

NAMES = ("Anna", "Peter", "Maria", "Paul", "Clara", "Jonas", "Emma", "Felix", "Laura", "Martin", "Sophie", "David")

# Adjectives, by what they can be said of.
LIVING_ADJECTIVES = _words("""
old alt
young jung
small klein
big groß
friendly freundlich
strong stark
clever klug
tired müde
hungry hungrig
happy glücklich
sick krank
poor arm
famous berühmt
lazy faul
brave mutig
""")

THING_ADJECTIVES = _words("""
old alt
new neu
small klein
big groß
beautiful schön
heavy schwer
cheap billig
red rot
white weiß
green grün
blue blau
black schwarz
brown braun
yellow gelb
broken kaputt
""")

PLACE_ADJECTIVES = _words("""
old alt
new neu
small klein
big groß
beautiful schön
quiet ruhig
famous berühmt
cold kalt
""")

BE = Verb("be", "is", "was", "sein", "bin", "ist", "gewesen", auxiliary="sein", preterite=("war", "waren"))
HAVE = Verb("have", "has", "had", "haben", "habe", "hat", "gehabt", preterite=("hatte", "hatten"))

LIVING_OBJECT_VERBS = (
    Verb("see", "sees", "saw", "sehen", "sehe", "sieht", "gesehen"),
    Verb("hear", "hears", "heard", "hören", "höre", "hört", "gehört"),
    Verb("love", "loves", "loved", "lieben", "liebe", "liebt", "geliebt"),
    Verb("look for", "looks for", "looked for", "suchen", "suche", "sucht", "gesucht"),
    Verb("find", "finds", "found", "finden", "finde", "findet", "gefunden"),
    Verb("help", "helps", "helped", "helfen", "helfe", "hilft", "geholfen", case="dat"),
    Verb("follow", "follows", "followed", "folgen", "folge", "folgt", "gefolgt", case="dat", auxiliary="sein"),
)

PERSON_OBJECT_VERBS = (
    Verb("visit", "visits", "visited", "besuchen", "besuche", "besucht", "besucht"),
    Verb("thank", "thanks", "thanked", "danken", "danke", "dankt", "gedankt", case="dat"),
    Verb("ask", "asks", "asked", "fragen", "frage", "fragt", "gefragt"),
    Verb("call", "calls", "called", "anrufen", "rufe", "ruft", "angerufen", particle="an"),
    Verb("invite", "invites", "invited", "einladen", "lade", "lädt", "eingeladen", particle="ein"),
)

THING_OBJECT_VERBS = (
    Verb("see", "sees", "saw", "sehen", "sehe", "sieht", "gesehen"),
    Verb("look for", "looks for", "looked for", "suchen", "suche", "sucht", "gesucht"),
    Verb("find", "finds", "found", "finden", "finde", "findet", "gefunden"),
    Verb("buy", "buys", "bought", "kaufen", "kaufe", "kauft", "gekauft"),
    Verb("sell", "sells", "sold", "verkaufen", "verkaufe", "verkauft", "verkauft"),
    Verb("need", "needs", "needed", "brauchen", "brauche", "braucht", "gebraucht"),
    Verb("bring", "brings", "brought", "bringen", "bringe", "bringt", "gebracht"),
    Verb("paint", "paints", "painted", "malen", "male", "malt", "gemalt"),
    Verb("carry", "carries", "carried", "tragen", "trage", "trägt", "getragen"),
    Verb("hold", "holds", "held", "halten", "halte", "hält", "gehalten"),
    Verb("forget", "forgets", "forgot", "vergessen", "vergesse", "vergisst", "vergessen"),
    HAVE,
)

GIVING_VERBS = (
    Verb("give", "gives", "gave", "geben", "gebe", "gibt", "gegeben"),
    Verb("show", "shows", "showed", "zeigen", "zeige", "zeigt", "gezeigt"),
    Verb("send", "sends", "sent", "schicken", "schicke", "schickt", "geschickt"),
)

PERSON_VERBS = (
    Verb("work", "works", "worked", "arbeiten", "arbeite", "arbeitet", "gearbeitet"),
    Verb("sing", "sings", "sang", "singen", "singe", "singt", "gesungen"),
    Verb("dance", "dances", "danced", "tanzen", "tanze", "tanzt", "getanzt"),
    Verb("laugh", "laughs", "laughed", "lachen", "lache", "lacht", "gelacht"),
    Verb("cook", "cooks", "cooked", "kochen", "koche", "kocht", "gekocht"),
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
    Verb("believe", "believes", "believed", "glauben", "glaube", "glaubt", "geglaubt"),
    Verb("hope", "hopes", "hoped", "hoffen", "hoffe", "hofft", "gehofft"),
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
    "every week": "jede Woche",
    "sometimes": "manchmal",
    "in the evening": "am Abend",
    "on Monday": "am Montag",
    "on Friday": "am Freitag",
}
PAST_TIMES = {
    "yesterday": "gestern",
    "last week": "letzte Woche",
    "last year": "letztes Jahr",
    "this morning": "heute Morgen",
    "on Sunday": "am Sonntag",
}
FUTURE_TIMES = {
    "tomorrow": "morgen",
    "next week": "nächste Woche",
    "next year": "nächstes Jahr",
    "on Tuesday": "am Dienstag",
    "soon": "bald",
}

PLACE_PREPOSITIONS = {"in": "in", "behind": "hinter", "in front of": "vor", "next to": "neben"}  # all with the dative

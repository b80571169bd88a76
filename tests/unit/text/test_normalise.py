import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsnmt.config import NormaliseConfig
from capsnmt.text.normalise import normalise

DEFAULT = NormaliseConfig()
# Characters on which the steps depend on each other, so that random text meets them often.
TRICKY = "e\u0301\u0308 `\u00b4\u1fef\u1ffd\u00a8\u2581\u200b\u00ad\ufeff\u200d\n\r\t\u0085\u2028\u00a0"
TRICKY += "„“’«\uff02\uff40\ufb01"


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("„Hallo“, sagte «er»", '"Hallo", sagte "er"'),
        ("it’s ‚so‘ ‹x› `y´", "it's 'so' 'x' 'y'"),
        ("a\u00a0b\tc\u2028d\u0085e\u3000f  g", "a b c d e f g"),
        ("\ufeff zero\u200bwidth soft\u00adhyphen \x07bell ", "zerowidth softhyphen bell"),
        ("cafe\u0301", "caf\u00e9"),
        ("e\u200b\u0301", "\u00e9"),  # composed although an invisible character stood between
        ("a\nb\r\nc", "a b c"),
        ("a\u2581b", "a b"),
        ("half \ud83d pair", "half pair"),
        ("\ufb01ne", "\ufb01ne"),  # NFC keeps the ligature
    ],
)
def test_default_settings(given_text: str, expected: str) -> None:
    assert normalise(given_text, DEFAULT) == expected


@pytest.mark.parametrize("text", ["👩‍👩‍👧", "❤️", "🏴\U000e0067\U000e0062\U000e007f", "می‌خواهم"])
def test_sequences_of_emoji_and_joined_letters_survive(text: str) -> None:
    assert normalise(text, DEFAULT) == text


def test_each_setting_switches_its_own_step() -> None:
    text = " „e\u0301“ \ufb01"
    assert normalise(text, NormaliseConfig(unicode="none", quotes=False, spaces=False)) == text
    assert normalise(text, NormaliseConfig(unicode="NFKC", quotes=False, spaces=False)) == " „\u00e9“ fi"
    assert normalise(text, NormaliseConfig(unicode="none", quotes=True, spaces=False)) == ' "e\u0301" \ufb01'
    assert normalise(text, NormaliseConfig(unicode="none", quotes=False, spaces=True)) == "„e\u0301“ \ufb01"


@given(
    text=st.text() | st.text(st.sampled_from(TRICKY)),
    config=st.builds(NormaliseConfig, unicode=st.sampled_from(["NFC", "NFKC", "none"]), quotes=..., spaces=...),
)
def test_idempotent_and_always_one_line(text: str, config: NormaliseConfig) -> None:
    once = normalise(text, config)
    assert normalise(once, config) == once
    assert "\n" not in once
    if config.spaces:
        assert once == " ".join(once.split())

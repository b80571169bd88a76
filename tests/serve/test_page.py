"""The page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ATTACK = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script> eins"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(served, start_server, request):
    """The server that the page is looked at on."""
    folder = request.config.getoption("--serve-model")
    return start_server(models=[folder]) if folder else served


@pytest.fixture
def opened(browser: Browser, site):
    """opened(…) → a page that has loaded; what it asks for and what goes wrong in it is looked at in the end."""
    contexts = []
    asked: list[str] = []
    wrong: list[str] = []

    def open_page(path: str = "/", base: str = site.url, **options) -> Page:
        context = browser.new_context(base_url=base, locale="en-GB", **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(path)
        return page

    yield open_page
    assert not wrong
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:")) for url in asked), asked
    for context in contexts:
        context.close()


def choose(page: Page, source: str = "de", target: str = "en") -> None:
    expect(page.locator("#source option")).not_to_have_count(0)
    page.select_option("#source", source)
    page.select_option("#target", target)


def translation(page: Page):
    expect(page.locator("#output")).not_to_be_empty(timeout=30_000)
    expect(page.locator("#output")).not_to_have_class(re.compile("pending"))
    return page.locator("#output")


def test_typing_translates(opened, models):
    (model,) = models.path("de", "en")
    page = opened()
    choose(page)
    page.locator("#text").press_sequentially("Eins zwei drei.", delay=5)
    expect(translation(page)).to_have_text(model.translator.translate("Eins zwei drei."))
    expect(page.locator("#latency")).to_have_text(re.compile(r"\d+ ms \(server \d+ ms\)"))
    expect(page.locator("#alternatives-list li").first).to_be_visible()
    expect(page.locator("#count")).to_have_text("15 of 10000 characters")
    page.fill("#text", "")
    expect(page.locator("#output")).to_be_empty()
    expect(page.locator("#routing")).to_be_hidden()


def test_paragraphs_keep_their_line_breaks(opened, models):
    (model,) = models.path("de", "en")
    page = opened()
    choose(page)
    page.fill("#text", "Eins.\n\nZwei drei.")
    best = [model.translator.translate(line) for line in ("Eins.", "", "Zwei drei.")]
    translation(page)
    assert page.locator("#output").evaluate("element => element.textContent") == "\n".join(best)
    assert page.locator("#output").evaluate("element => getComputedStyle(element).whiteSpace").startswith("pre-wrap")


def test_the_slider_moves_the_routing_view(opened):
    page = opened()
    choose(page)
    page.fill("#text", "Eins zwei drei.")
    words = page.locator("#words li")
    expect(words).to_have_count(4)
    expect(words.first.locator(".word")).to_have_text("Eins")
    slider = page.locator("#iteration")
    last = int(slider.get_attribute("max"))
    assert last > 1
    expect(page.locator("#iteration-shown")).to_have_text(f"{last} of {last}")
    page.locator("summary").click()
    after = page.locator("#shares").inner_text()
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator("#iteration-shown")).to_have_text(f"1 of {last}")
    assert slider.get_attribute("aria-valuetext") == f"iteration 1 of {last}"
    first = page.locator("#shares").inner_text()
    assert "33 %" in first  # the first iteration shares evenly among the three
    assert first != after
    expect(page.locator("#legend li")).to_have_count(3)
    widths = words.first.locator(".bar span").evaluate_all("parts => parts.map((part) => parseFloat(part.style.width))")
    assert sum(widths) == pytest.approx(100, abs=0.1)


def test_swap_where_there_is_a_way_back(opened):
    page = opened()
    choose(page, "de", "fr")
    expect(page.locator("#swap")).to_be_disabled()
    choose(page, "de", "en")
    page.fill("#text", "Eins zwei.")
    text = translation(page).inner_text()
    page.click("#swap")
    assert page.input_value("#source") == "en"
    assert page.input_value("#target") == "de"
    assert page.input_value("#text") == text


def test_the_detected_language_is_named(opened):
    page = opened()
    choose(page, "auto", "fr")
    page.fill("#text", "Das Wetter ist heute wirklich sehr schön.")
    translation(page)
    expect(page.locator("#detected")).to_have_text("detected: German, by way of English")


def test_copy(opened):
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    choose(page)
    page.fill("#text", "Eins zwei.")
    text = translation(page).inner_text()
    page.click("#copy")
    expect(page.locator("#copied")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == text


def test_upload(opened, tmp_path):
    (tmp_path / "a.txt").write_text("Eins zwei.\n\nDrei.\n", encoding="utf-8")
    page = opened()
    choose(page)
    page.set_input_files("#file", tmp_path / "a.txt")
    page.click("#upload")
    link = page.locator("#file-result a")
    expect(link).to_be_visible()
    with page.expect_download() as download:
        link.click()
    assert download.value.path().read_text(encoding="utf-8").count("\n") == 3
    (tmp_path / "a.docx").write_bytes(b"PK")
    page.set_input_files("#file", tmp_path / "a.docx")
    page.click("#upload")
    expect(page.locator("#error")).to_contain_text("file format not supported")


def test_markup_in_texts_does_nothing(opened):
    page = opened()
    choose(page)
    page.fill("#text", ATTACK)
    translation(page)
    page.locator("summary").click()
    assert page.locator("#output img, #output script, #words img, #shares img, #alternatives img").count() == 0
    assert page.title() == "CapsNMT – translate"
    expect(page.locator("#words")).to_contain_text("eins")


def test_errors_are_said_kindly(opened):
    page = opened()
    choose(page)
    page.fill("#text", "x" * 10_001)
    expect(page.locator("#error")).to_contain_text("shorten it")
    page.route("**/v1/translate", lambda route: route.fulfill(status=500, body="<h1>oops</h1>"))
    page.fill("#text", "Eins")
    expect(page.locator("#error")).to_have_text("Something went wrong on the server. Please try again.")
    page.unroute("**/v1/translate")
    page.route("**/v1/translate", lambda route: route.abort())
    page.fill("#text", "Zwei")
    expect(page.locator("#error")).to_contain_text("cannot be reached")
    page.unroute("**/v1/translate")
    busy = {"status": 503, "headers": {"Retry-After": "1"}, "json": {"error": "busy"}}
    page.route("**/v1/translate", lambda route: route.fulfill(**busy), times=1)
    page.fill("#text", "Drei")
    expect(page.locator("#error")).to_contain_text("busy")
    translation(page)  # it tries again by itself
    expect(page.locator("#error")).to_be_hidden()


def test_a_server_that_stays_busy_is_not_asked_for_ever(opened):
    page = opened()
    choose(page)
    page.clock.install()
    asked = []
    busy = {"status": 503, "headers": {"Retry-After": "1"}, "json": {"error": "busy"}}
    page.route("**/v1/translate", lambda route: (asked.append(1), route.fulfill(**busy)))
    page.fill("#text", "Eins")
    page.clock.run_for(1000)
    for seconds in (1, 2, 4):
        expect(page.locator("#error")).to_have_text(f"The server is busy. Trying again in {seconds} s …")
        page.clock.run_for(1000 * seconds)
    expect(page.locator("#error")).to_have_text("The server is busy. Please try again later.")
    page.clock.run_for(100_000)
    assert len(asked) == 4


def test_an_error_about_an_older_text_is_not_shown(opened):
    page = opened()
    choose(page)
    held = []
    page.route("**/v1/translate", lambda route: held.append(route), times=2)
    page.evaluate("""() => {
        const json = Response.prototype.json;  // the body of an error comes late, when the text is another already
        Response.prototype.json = async function () {
            if (!this.ok) await new Promise((done) => (window.bodyArrives = done));
            return json.call(this);
        };
    }""")
    page.fill("#text", "Eins")
    while not held:
        page.wait_for_timeout(10)
    held[0].fulfill(status=400, json={"error": "of the older text"})
    page.wait_for_function("() => window.bodyArrives !== undefined")
    page.fill("#text", "Zwei drei.")
    page.evaluate("window.bodyArrives()")
    while len(held) < 2:
        page.wait_for_timeout(10)
    expect(page.locator("#error")).to_be_hidden()  # also before the answer to the newer text, which takes it away
    held[1].continue_()
    translation(page)


def test_too_long_a_text_takes_the_old_translation_away(opened):
    page = opened()
    choose(page)
    page.fill("#text", "Eins zwei.")
    translation(page)
    page.fill("#text", "x" * 10_001)
    expect(page.locator("#error")).to_contain_text("shorten it")
    expect(page.locator("#output")).to_be_empty()
    expect(page.locator("#routing")).to_be_hidden()


def test_a_page_that_could_not_load_the_languages_tries_again(opened):
    page = opened("/docs")
    page.route("**/languages", lambda route: route.fulfill(status=503, json={"error": "busy"}), times=1)
    page.goto("/")
    expect(page.locator("#error")).to_contain_text("Trying again")
    choose(page)
    expect(page.locator("#error")).to_be_hidden()
    page.fill("#text", "Eins.")
    translation(page)


def test_documentation_that_cannot_be_loaded_says_so(opened):
    page = opened()
    page.route("**/spec", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    page.goto("/docs")
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")


def test_a_key_can_be_given(opened, start_server, folders, tmp_path):
    from capsnmt.server.keys import new_key

    key = new_key(tmp_path / "keys", "Ada")
    served = start_server("--keys", tmp_path / "keys", "--require-key", models=[folders["de-en"]])
    page = opened(base=served.url)
    choose(page)
    page.fill("#text", "Eins.")
    expect(page.locator("#error")).to_contain_text("You can enter a key above")
    page.fill("#key", key)
    page.locator("#key").press("Tab")
    translation(page)
    expect(page.locator("#error")).to_be_hidden()
    page.close()
    served.stop()


def test_with_the_keyboard_alone(opened):
    page = opened()
    expect(page.locator("#source option")).not_to_have_count(0)
    expect(page.locator("#text")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.locator("#target")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.type("Das Wetter ist heute schön.")
    translation(page)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    wanted = ["output", "copy", "iteration", "SUMMARY", "file", "upload"]
    assert [name for name in reached if name in wanted] == wanted


def test_every_control_has_a_name(opened):
    page = opened()
    choose(page)
    page.fill("#text", "Eins zwei.")
    translation(page)
    for control in page.locator("button, select, textarea, input:not([type=password])").all():
        name = control.evaluate("e => e.ariaLabel || e.labels?.[0]?.innerText || e.innerText || ''")
        assert name.strip(), control.evaluate("e => e.outerHTML")
    expect(page.get_by_role("slider", name="Iteration")).to_be_visible()
    expect(page.get_by_role("textbox", name="Text", exact=True)).to_be_visible()
    assert page.locator("#output").get_attribute("aria-live") == "polite"
    expect(page.get_by_role("region", name="Translation").and_(page.locator("#output"))).to_be_visible()
    assert page.locator("#error").get_attribute("role") == "alert"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("name", "width"), [("phone", 360), ("desk", 1200)])
def test_nothing_overflows(opened, scheme, name, width, request):
    phone = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    page = opened(**phone)
    if request.config.getoption("--serve-model"):
        text = "A man in a blue shirt is riding a horse.\n\nTwo small dogs are playing in the snow."
    else:
        choose(page)
        text = "Eins zwei drei vier fünf sechs sieben.\n\n" + "Langeswort" * 12
    page.fill("#text", text)
    translation(page)
    expect(page.locator("#routing")).to_be_visible()
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 24, 26)"
    assert dark is (scheme == "dark")
    folder = request.config.getoption("--pictures")
    if folder:
        page.screenshot(path=f"{folder}/{name}-{scheme}.png", full_page=True)


def test_the_documentation_shows_every_endpoint(opened, site):
    page = opened("/docs")
    paths = site.client.get("/spec").json()["paths"]
    expect(page.locator("section h2")).to_have_count(len(paths))
    expect(page.locator("main")).to_contain_text("POST /translate")
    assert set(page.locator("pre").evaluate_all("shown => shown.map((each) => each.tabIndex)")) == {0}

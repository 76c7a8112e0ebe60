import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import (
    CONTRASTS,
    MAPS,
    PEAKS,
    POOLED,
    POOLED_PEAKS,
    ROLLOUT,
    attention,
    chromium,
    color_at,
    document,
    image,
    in_browser,
    packed,
    percent,
    pixels,
    place,
    point_at,
    readout,
    slide,
)
from playwright.sync_api import Browser, Page

from vitrail.errors import DataError
from vitrail.figures import as_text
from vitrail.figures.measured import SheetRow, draw_sheet
from vitrail.inspection.page import render_page

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """Open a document's page from the disk; afterwards nothing may have gone wrong or out to a network."""
    troubles: list[str] = []
    addresses: list[str] = []
    contexts = []

    def opened(given: dict[str, Any], address: str = "", width: int = 1280, **settings: Any) -> Page:
        path = tmp_path / "page.html"
        path.write_text(render_page(given), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(path.as_uri() + address)
        page.evaluate("() => Promise.all([...document.images].map((image) => image.decode()))")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []
    assert [address for address in addresses if not address.startswith(("file:", "data:", "blob:"))] == []


def test_the_document_cannot_end_its_script() -> None:
    text = render_page(document(title=HOSTILE, images=[image(HOSTILE, label=HOSTILE)]))
    assert HOSTILE not in text
    assert text.count("</script>") == 2
    assert "<title>&lt;/script&gt;" in text
    assert "{{" not in text.split('id="document">')[0]


def test_what_looks_like_a_place_in_the_template_is_left_alone() -> None:
    assert '"title":"{{page.css}}"' in render_page(document(title="{{page.css}}"))


def test_a_number_that_is_not_finite_is_refused_with_a_hint() -> None:
    with pytest.raises(DataError, match="Look for NaN in the model's weights"):
        render_page(document(images=[image("cat/0.png", attention=attention(rollout_peak=float("nan")))]))


@in_browser
def test_a_click_on_a_patch_changes_the_picture_and_the_words(visit: Visit) -> None:
    page = visit(document(), "#layer=1&head=2&patch=0")
    before = pixels(page), readout(page)
    point_at(page, 8, click=True)
    assert pixels(page) != before[0]
    assert readout(page) != before[1]
    assert readout(page).startswith(f"Layer 1, head 2: patch {place(8)} gives")
    page.wait_for_function("() => location.hash === '#image=0&layer=1&head=2&show=patch&patch=8'")


@pytest.mark.slow
@in_browser
def test_every_number_is_the_peak_times_the_byte(visit: Visit) -> None:
    page = visit(document(), "#layer=2&head=3&patch=7")
    for patch in (0, 4, 11, 14):
        point_at(page, patch, click=False)
        share = float(PEAKS[1, 2, 7]) * int(MAPS[1, 2, 7, patch]) / 255
        assert (
            readout(page)
            == f"Layer 2, head 3: patch {place(7)} gives {percent(share)} of its attention to {place(patch)}"
        )
    page.select_option("#head", "0")
    point_at(page, 2, click=False)
    mean = float(np.mean(PEAKS[1, :, 7].astype(float) * MAPS[1, :, 7, 2] / 255))
    assert f"mean of heads: patch {place(7)} gives {percent(mean)} of its attention to {place(2)}" in readout(page)
    page.check("input[value=pooled]")
    page.select_option("#head", "4")
    point_at(page, 2, click=False)
    share = float(POOLED_PEAKS[1, 3]) * int(POOLED[1, 3, 2]) / 255
    assert f"head 4: the class token gives {percent(share)} of its attention to {place(2)}" in readout(page)
    page.check("input[value=rollout]")
    page.mouse.move(0, 0)
    assert (
        readout(page)
        == f"Rollout through all layers: {place(int(ROLLOUT.argmax()))} holds {percent(0.25 * 238 / 255)}, the most"
    )


@pytest.mark.slow
@in_browser
def test_the_picture_is_the_color_map_over_the_image(visit: Visit) -> None:
    page = visit(document(), "#show=rollout")
    slide(page, "opacity", 100)
    brightest, darkest = int(ROLLOUT.argmax()), int(ROLLOUT.argmin())
    assert color_at(page, brightest) == pytest.approx((240, 249, 33), abs=2)  # plasma's end
    assert color_at(page, darkest) == pytest.approx((0, 128, 128), abs=2)  # the image itself: teal


@pytest.mark.slow
@in_browser
def test_layer_head_opacity_smoothing_and_choice_each_change_the_picture(visit: Visit) -> None:
    page = visit(document())
    changes: list[Callable[[], object]] = [
        lambda: slide(page, "layer", 1),
        lambda: page.select_option("#head", "2"),
        lambda: slide(page, "opacity", 30),
        lambda: page.check("#smooth"),
        lambda: page.check("input[value=pooled]"),
        lambda: page.check("input[value=rollout]"),
        lambda: page.check("input[value=nothing]"),
    ]
    seen = [pixels(page)]
    for change in changes:
        change()
        seen.append(pixels(page))
    assert len(set(seen)) == len(seen)
    assert readout(page) == "The image alone."


@pytest.mark.slow
@in_browser
def test_keys_move_the_patch_and_stop_at_the_edges(visit: Visit) -> None:
    page = visit(document(), "#patch=6")
    page.focus("#picture")
    for key, patch in [("ArrowRight", 7), ("ArrowDown", 12), ("ArrowDown", 12), ("End", 14), ("ArrowRight", 14)]:
        page.keyboard.press(key)
        assert f"patch {place(patch)} gives" in readout(page)
    for key, patch in [("Home", 10), ("ArrowLeft", 10), ("ArrowUp", 5)]:
        page.keyboard.press(key)
        assert f"patch {place(patch)} gives" in readout(page)


@pytest.mark.slow
@in_browser
def test_tab_reaches_every_control(visit: Visit) -> None:
    page = visit(document())
    reached = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.id || document.activeElement.name"))
    assert reached >= {"scheme", "picture", "thumbnails", "show", "layer", "head", "opacity", "smooth"}
    assert page.evaluate("() => document.querySelectorAll('#mistakes a').length") == 1


@pytest.mark.slow
@in_browser
def test_the_list_of_images_is_walked_by_keys_and_says_right_or_wrong_in_words(visit: Visit) -> None:
    page = visit(document())
    page.focus("#thumbnails")
    page.keyboard.press("End")
    assert page.inner_text("#name") == "dog/2.png"
    assert page.inner_text("#verdict") == "✓ Right: dog"
    chosen = page.locator("#thumbnails").get_by_role("option", selected=True)
    assert chosen.get_attribute("aria-label") == "dog/2.png, right"
    assert chosen.inner_text() == "✓"


@in_browser
@pytest.mark.slow
def test_links_open_an_image_and_a_view(visit: Visit) -> None:
    page = visit(document(), "#image=2&layer=1&head=3&show=pooled&patch=99")
    assert page.inner_text("#name") == "dog/2.png"
    assert readout(page).startswith("Layer 1, head 3: the class token gives")
    page.click("#mistakes a")
    page.wait_for_function("() => document.getElementById('name').textContent === 'cat/1.png'")
    assert visit(document(), "#image-1").inner_text("#name") == "cat/1.png"
    assert visit(document(), "#image-7").inner_text("#name") == "cat/0.png"
    assert visit(document(), "#show=__proto__&layer=0&patch=-1").inner_text("#layer-said") == "2 of 2"


@pytest.mark.slow
@in_browser
def test_a_mistake_says_class_answer_and_confidence(visit: Visit) -> None:
    page = visit(document())
    assert page.inner_text("#mistakes a").split("\n") == ["cat", "✗ taken for dog", "75.0 % sure"]
    calm = visit(document(images=[image("cat/0.png")]))
    assert not calm.is_visible("#mistakes")


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_overflows_to_the_side(visit: Visit, width: int) -> None:
    long = "n01440764-" + "tench" * 30
    page = visit(document(title=long, command=long, images=[image(long, label=long, mistake=True)]), width=width)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("chosen", ["system", "light", "dark"])
def test_all_text_has_contrast_and_figures_follow_the_colors(visit: Visit, scheme: str, chosen: str) -> None:
    given = document()
    page = visit(given, color_scheme=scheme)
    page.check(f"#scheme input[value={chosen}]", force=True)
    contrasts: list[tuple[str, float]] = page.evaluate(CONTRASTS)
    assert len(contrasts) > 30
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
    dark = (scheme if chosen == "system" else chosen) == "dark"
    paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 60) == dark
    assert page.get_attribute("#figures img", "src") == given["figures"][0]["dark" if dark else "src"]


@pytest.mark.slow
@in_browser
def test_a_hostile_name_is_text(visit: Visit) -> None:
    top = [{"name": HOSTILE, "probability": 0.5}]
    table = {"id": HOSTILE, "title": HOSTILE, "caption": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE]]}
    page = visit(document(images=[image(HOSTILE, label=HOSTILE, top=top, mistake=True)], tables=[table], title=HOSTILE))
    for shown in ("#title", "#name", "#top .class", "#tables td", "#tables h2", "#mistakes .class"):
        assert page.inner_text(shown).startswith(HOSTILE)
    assert page.evaluate("() => document.querySelectorAll('img[onerror]').length") == 0
    assert page.title() == HOSTILE


UNSEEN = "a\x1b[31m\u202egnp.exe\udcff\nb"
SEEN = r"a\x1b[31m\u202egnp.exe\udcff\nb"


def test_signs_that_hide_or_turn_others_are_shown_as_their_numbers() -> None:
    text = render_page(document(title=UNSEEN, images=[image(UNSEEN, label=UNSEEN)]))
    assert f"<title>{SEEN}</title>" in text.encode("utf-8").decode()
    assert json.dumps(SEEN) in text
    assert json.dumps(UNSEEN) not in text
    assert as_text("50 $, $x$: \x07\u2066") == r"50 \$, \$x\$: \x07\u2066"
    assert draw_sheet([SheetRow(UNSEEN, [np.zeros((4, 4, 3), np.uint8)], [UNSEEN])]).startswith(b"\x89PNG")


@pytest.mark.slow
@in_browser
def test_a_name_cannot_turn_what_stands_beside_it(visit: Visit) -> None:
    top = [{"name": UNSEEN, "probability": 0.5}]
    page = visit(document(images=[image(UNSEEN, label=UNSEEN, top=top, mistake=True)], title=UNSEEN))
    for shown in ("#title", "#name", "#top .class", "#mistakes .class"):
        assert page.inner_text(shown).startswith(SEEN)


@pytest.mark.slow
@in_browser
def test_a_document_without_images_shows_the_figures_alone(visit: Visit) -> None:
    page = visit(document(images=[]))
    assert page.is_visible("#figures img")
    assert page.is_visible("#tables table")
    assert not page.is_visible("#viewer")
    assert not page.is_visible("#mistakes")


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("none", [None, attention(maps=None, peaks=None, pooled=None, pooled_peaks=None, rollout=None)])
def test_images_without_attention_show_the_answers_alone(visit: Visit, none: dict[str, Any] | None) -> None:
    page = visit(document(images=[image("cat/0.png", attention=none, mistake=True)]))
    assert page.inner_text("#top li:first-child") == "dog\n75.0 %"
    assert not page.is_visible("#controls")
    assert not page.is_visible("#scale")
    point_at(page, 3, click=True)
    assert "no attention maps" in readout(page)


@pytest.mark.slow
@in_browser
def test_a_page_with_the_mean_of_heads_only_says_so(visit: Visit) -> None:
    mean = attention(heads=1, all_heads=False, maps=packed(MAPS[:, 0]), peaks=packed(PEAKS[:, 0]), class_token=False)
    page = visit(document(images=[image("cat/0.png", attention=mean)]), "#layer=2&head=1&patch=3")
    assert page.is_disabled("#head")
    assert page.inner_text("#head-note") == "This page keeps only the mean of the heads."
    assert page.inner_text("#pooled-name") == "mean over tokens"
    point_at(page, 9, click=False)
    assert percent(float(PEAKS[1, 0, 3]) * int(MAPS[1, 0, 3, 9]) / 255) in readout(page)


def measured() -> dict[str, Any]:
    """A document with what an evaluation adds: a headline, a figure and two tables."""
    given = document()
    figure = given["figures"][0] | {"id": "confusion", "measured": True}
    rows = [["ant", "12", "91.5 %"], ["bee" * 40, "3", ""], ["cow", "120", "8.0 %"]]
    tables = [
        {
            "id": "accuracy",
            "title": "How good",
            "caption": "",
            "columns": ["", "value"],
            "rows": [["accuracy", "61.0 %"]],
        },
        {"id": "classes", "title": "Classes", "caption": "", "columns": ["class", "images", "accuracy"], "rows": rows},
    ]
    first = [table | {"measured": True, "sortable": table["id"] == "classes"} for table in tables]
    headline = {"value": "61.0 %", "words": "accuracy on 135 images", "interval": "95 % interval 52.6 to 68.8 %"}
    return given | {"headline": headline, "figures": [figure, *given["figures"]], "tables": [*first, *given["tables"]]}


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_evaluation_says_accuracy_first_and_large(visit: Visit, scheme: str) -> None:
    page = visit(measured(), color_scheme=scheme, width=400)
    assert page.inner_text("#headline").split("\n") == [
        "61.0 %",
        "accuracy on 135 images",
        "95 % interval 52.6 to 68.8 %",
    ]
    order = "() => [...document.querySelectorAll('#headline, .exhibit, #viewer, #mistakes')].map((each) => each.id)"
    expected = ["headline", "table-accuracy", "figure-confusion", "table-classes", "viewer", "mistakes"]
    assert page.evaluate(order) == [*expected, "figure-filters", "table-reach"]
    assert page.evaluate("() => parseFloat(getComputedStyle(document.getElementById('headline-value')).fontSize)") > 40
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    contrasts: list[tuple[str, float]] = page.evaluate(CONTRASTS)
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
    assert (
        page.get_attribute("#figure-confusion img", "src")
        == measured()["figures"][0]["dark" if scheme == "dark" else "src"]
    )


@pytest.mark.slow
@in_browser
def test_a_table_is_sorted_by_its_heads(visit: Visit) -> None:
    page = visit(measured())
    column = (
        "() => [...document.querySelectorAll('#table-classes tbody tr')].map((row) => row.children[0].textContent[0])"
    )
    assert page.evaluate(column) == ["a", "b", "c"]
    page.click("#table-classes th:nth-child(3) button")
    assert page.evaluate(column) == ["c", "a", "b"]  # what has no value stays last
    page.click("#table-classes th:nth-child(3) button")
    assert page.evaluate(column) == ["a", "c", "b"]
    page.focus("#table-classes th:nth-child(2) button")
    page.keyboard.press("Enter")
    assert page.evaluate(column) == ["b", "a", "c"]
    assert page.get_attribute("#table-classes th:nth-child(2)", "aria-sort") == "ascending"
    assert page.get_attribute("#table-classes th:nth-child(3)", "aria-sort") is None

"""The page of a server, in a browser: an image in, its classes and where the model looked out."""

import base64
import importlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import uvicorn
from browsing import CONTRASTS, chromium, in_browser, pixels, readout, slide
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

import vitrail

MODEL = "vitrail-ti8"
PHONE = 360


def drawn(seed: int, width: int = 150, height: int = 110) -> bytes:
    """A PNG of coloured blocks, no two seeds alike."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((width, height)).save(buffer, "PNG")
    return buffer.getvalue()


PICTURE = drawn(0)


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """A live server on a free port."""
    app = importlib.import_module("vitrail.serve").create_app({MODEL: MODEL})
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium("--use-fake-device-for-media-stream") as opened:
        yield opened


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, origin: str) -> Iterator[Visit]:
    """Open a page of the server; afterwards nothing may have gone wrong, or to another host."""
    troubles: list[str] = []
    addresses: list[str] = []
    contexts = []

    def opened(path: str = "/", width: int = 1280, routes: dict[str, Any] | None = None, **settings: Any) -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        for address, handle in (routes or {}).items():
            page.route(address, handle)
        page.goto(origin + path)
        page.wait_for_load_state("networkidle")
        return page

    yield opened
    for context in contexts:
        context.close()
    # That a request was refused is said by the browser itself, whatever a page does about it.
    assert [line for line in troubles if not re.search(r"the server responded with a status of 4\d\d", line)] == []
    assert addresses
    assert [address for address in addresses if not address.startswith((f"{origin}/", "data:", "blob:"))] == []


def send(page: Page, *files: bytes, name: str = "blocks.png") -> None:
    page.set_input_files("#file", [{"name": name, "mimeType": "image/png", "buffer": data} for data in files])


def wait(page: Page, name: str = "blocks.png") -> None:
    expect(page.locator("#name")).to_have_text(name)
    expect(page.locator("#viewer")).to_have_attribute("aria-busy", "false")


def shown(page: Page) -> list[list[str]]:
    return [line.split("\n") for line in page.locator("#top li").all_inner_texts()]


def percent(share: float) -> str:
    value = 100 * share
    return f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3}f} %"


def refusal(status: int, message: str, **headers: str) -> dict[str, Any]:
    error = {"type": "refused", "message": message, "request_id": "0"}
    return {"status": status, "headers": headers, "json": {"error": error}}


@in_browser
def test_an_upload_shows_what_predict_says_and_where_the_model_looked(visit: Visit) -> None:
    page = visit()
    assert page.inner_text("#title") == MODEL
    assert not page.is_visible("#viewer")
    send(page, PICTURE)
    wait(page)
    expected = vitrail.predict(MODEL, [PICTURE])[0].top(5)
    assert shown(page) == [[label, percent(share)] for label, share in expected]
    assert page.inner_text("#verdict") == expected[0][0]
    assert page.inner_text("#status") == f"{expected[0][0]}, {percent(expected[0][1])}"
    page.wait_for_function("() => document.getAnimations().length === 0")  # the bars have grown
    bar, whole = (page.locator(f"#top li:first-child {part}").bounding_box() for part in ("i", "b"))
    assert bar
    assert whole
    assert bar["width"] / whole["width"] == pytest.approx(expected[0][1], abs=0.01)
    assert readout(page).startswith("Rollout through all layers: row ")


@pytest.mark.slow
@in_browser
def test_layer_head_patch_and_choice_change_the_overlay(visit: Visit) -> None:
    page = visit()
    send(page, PICTURE)
    wait(page)
    changes: list[Callable[[], object]] = [
        lambda: page.check("input[value=pooled]"),
        lambda: slide(page, "layer", 2),
        lambda: page.select_option("#head", "3"),
        lambda: page.click("#picture", position={"x": 30, "y": 30}),
        lambda: page.press("#picture", "ArrowRight"),
        lambda: page.check("input[value=nothing]"),
    ]
    seen = [(pixels(page), readout(page))]
    for change in changes:
        change()
        seen.append((pixels(page), readout(page)))
    assert len({picture for picture, _ in seen}) == len({words for _, words in seen}) == len(seen)
    assert seen[-2][1].startswith("Layer 2, head 3: patch row 1, column 2 gives ")


@pytest.mark.slow
@in_browser
def test_a_pasted_image_and_a_dropped_one_are_answered_and_kept(visit: Visit) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    first, second = base64.b64encode(PICTURE).decode(), base64.b64encode(drawn(1)).decode()
    page.evaluate(
        "async (text) => navigator.clipboard.write([new ClipboardItem({'image/png': "
        "new Blob([Uint8Array.from(atob(text), (sign) => sign.charCodeAt())], {type: 'image/png'})})])",
        first,
    )
    page.keyboard.press("Control+v")
    wait(page, "image.png")
    pasted = page.inner_text("#verdict")
    assert pasted == vitrail.predict(MODEL, [PICTURE])[0].label
    page.evaluate(
        "(text) => { const carried = new DataTransfer(); carried.items.add(new File([Uint8Array.from(atob(text), "
        "(sign) => sign.charCodeAt())], 'dropped.png', {type: 'image/png'})); document.body.dispatchEvent("
        "new DragEvent('drop', {dataTransfer: carried, bubbles: true, cancelable: true})); }",
        second,
    )
    wait(page, "dropped.png")
    assert page.inner_text("#verdict") == vitrail.predict(MODEL, [drawn(1)])[0].label
    page.focus("#thumbnails")
    page.keyboard.press("End")
    assert page.inner_text("#name") == "image.png"
    assert page.inner_text("#verdict") == pasted
    page.evaluate("() => navigator.clipboard.writeText('words')")
    page.keyboard.press("Control+v")
    assert page.inner_text("#problem").startswith("What was pasted is no image.")


@pytest.mark.slow
@in_browser
def test_keys_alone_lead_from_the_start_to_the_overlay(visit: Visit) -> None:
    page = visit()
    page.on("filechooser", lambda _: None)  # Playwright starts to listen late: asked for at the press, it can miss it

    def tab_to(name: str) -> None:
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.id || document.activeElement.name") == name:
                return
        raise AssertionError(f"Tab does not reach {name}")

    tab_to("choose")
    assert page.evaluate("() => getComputedStyle(document.activeElement).outlineWidth") == "3px"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files({"name": "blocks.png", "mimeType": "image/png", "buffer": PICTURE})
    wait(page)
    tab_to("picture")
    page.keyboard.press("ArrowLeft")
    assert "patch row 5, column 4 gives" in readout(page)
    tab_to("show")
    page.keyboard.press("ArrowUp")
    assert "a token gives, on average," in readout(page)
    tab_to("layer")
    page.keyboard.press("Home")
    assert readout(page).startswith("Layer 1, mean of heads")
    tab_to("head")
    page.keyboard.press("ArrowDown")
    assert readout(page).startswith("Layer 1, head 1")


@pytest.mark.slow
@in_browser
def test_nothing_overflows_on_a_phone(visit: Visit) -> None:
    page = visit(width=PHONE, has_touch=True, is_mobile=True)
    width = "() => document.documentElement.scrollWidth"
    assert page.evaluate(width) <= PHONE
    send(page, PICTURE, drawn(1), name="a-photograph-with-a-long-name" * 4 + ".png")
    wait(page, "a-photograph-with-a-long-name" * 4 + ".png")
    page.click("summary")
    assert page.evaluate(width) <= PHONE
    page.goto(page.url.rstrip("/") + "/docs")
    page.wait_for_selector(".endpoint")
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(width) <= PHONE


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast_in_light_and_dark(visit: Visit, scheme: str) -> None:
    page = visit(color_scheme=scheme, reduced_motion="reduce")
    send(page, PICTURE)
    wait(page)
    assert page.evaluate("() => document.getAnimations().length") == 0
    page.click("summary")
    dark = scheme == "dark"
    for chosen in ("system", "light" if dark else "dark"):
        page.check(f"#scheme input[value={chosen}]", force=True)
        paper = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", paper))) < 60) == (dark == (chosen == "system"))
        contrasts: list[tuple[str, float]] = page.evaluate(CONTRASTS)
        assert len(contrasts) > 25
        assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []


@pytest.mark.slow
@in_browser
def test_a_token_is_asked_for_once_and_kept_by_the_tab(visit: Visit) -> None:
    def guarded(route: Route) -> None:
        allowed = route.request.headers.get("authorization") == "Bearer open-sesame"
        route.continue_() if allowed else route.fulfill(**refusal(401, "the token is not known"))

    page = visit(routes={"**/v1/**": guarded})
    assert page.inner_text("#problem") == "This server asks for a token."
    assert page.evaluate("() => document.activeElement.id") == "token"
    send(page, PICTURE)  # waits for the token
    expect(page.locator("#token")).to_be_visible()
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#problem")).to_have_text("The token is not known.")
    page.fill("#token", "open-sesame")
    page.keyboard.press("Enter")
    wait(page)
    assert not page.is_visible("#token")
    assert not page.is_visible("#problem")
    assert '"Authorization: Bearer $TOKEN"' in (page.text_content("#curl") or "")
    page.reload()
    expect(page.locator("#title")).to_have_text(MODEL)
    assert not page.is_visible("#token")


@pytest.mark.slow
@in_browser
def test_what_is_refused_is_said_in_a_sentence_and_can_be_tried_again(visit: Visit) -> None:
    page = visit()
    send(page, b"no image at all", name="notes.txt")
    expect(page.locator("#problem")).to_have_text(re.compile(r"^[A-Z].{10,}\.$"))
    assert not page.is_visible("#viewer")
    assert not page.is_visible("#again")
    busy = lambda route: route.fulfill(**refusal(429, "the queue is full", **{"Retry-After": "3"}))  # noqa: E731
    page.route("**/v1/classify*", busy)
    send(page, PICTURE)
    expect(page.locator("#problem")).to_have_text("The queue is full. Try again in 3 seconds.")
    page.unroute("**/v1/classify*", busy)
    page.click("#again")
    wait(page)
    assert not page.is_visible("#problem")


@pytest.mark.slow
@in_browser
def test_a_server_that_is_gone_is_said(visit: Visit) -> None:
    page = visit(routes={"**/v1/models": lambda route: route.fulfill(**refusal(429, "starting"))})
    assert page.inner_text("#problem") == "Starting."
    page.unroute("**/v1/models")
    page.click("#again")
    expect(page.locator("#title")).to_have_text(MODEL)
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('Failed to fetch')); }")
    send(page, PICTURE)
    expect(page.locator("#problem")).to_have_text(re.compile("^The server did not answer: it may have stopped"))


@pytest.mark.slow
@in_browser
def test_a_choice_of_models_asks_again_and_one_without_attention_shows_the_file(visit: Visit) -> None:
    def listed(route: Route) -> None:
        given = route.fetch().json()
        other = given["data"][0] | {"id": "it's a <b>ResNet</b>", "attention": False}
        route.fulfill(json=given | {"data": [*given["data"], other]})

    def named(route: Route) -> None:
        if MODEL in route.request.url:
            route.continue_()
        else:
            route.fulfill(
                json={"model": "", "predictions": [{"name": "", "top": [{"label": "<i>", "probability": 1}]}]}
            )

    page = visit(routes={"**/v1/models": listed, "**/v1/classify*": named})
    send(page, PICTURE)
    wait(page, f"blocks.png · {MODEL}")
    page.select_option("#model", "it's a <b>ResNet</b>")
    wait(page, "blocks.png · it's a <b>ResNet</b>")
    assert shown(page) == [["<i>", "100.0 %"]]
    assert "no attention maps" in readout(page)
    assert not page.is_visible("#controls")
    sides = page.evaluate(
        "() => { const {width, height} = document.getElementById('picture'); return width / height; }"
    )
    assert sides == pytest.approx(150 / 110, abs=0.01)
    page.click("summary")
    assert "model=it%27s+a+%3Cb%3EResNet%3C%2Fb%3E&top=5'" in page.inner_text("#curl")


@pytest.mark.slow
@in_browser
def test_the_camera_takes_a_photograph_and_its_refusal_is_said(visit: Visit) -> None:
    page = visit(permissions=["camera"])
    page.click("#open-camera")
    page.wait_for_function("() => document.getElementById('preview').videoWidth > 0")
    page.keyboard.press("Enter")  # the shutter has the focus
    wait(page, "camera.jpg")
    assert page.evaluate("() => document.getElementById('preview').srcObject") is None
    insecure = visit()
    insecure.evaluate("() => Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")
    insecure.click("#open-camera")
    assert "open this one over https" in insecure.inner_text("#problem")
    refused = visit(permissions=[])
    refused.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = () => "
        "Promise.reject(new DOMException('no', 'NotAllowedError')); }"
    )
    refused.click("#open-camera")
    expect(refused.locator("#problem")).to_have_text(re.compile("^The camera was refused"))
    assert not refused.is_visible("#camera")


@pytest.mark.slow
@in_browser
def test_the_command_is_copied_and_names_this_server(visit: Visit, origin: str) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.click("summary")
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text("Copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.endswith(f"'{origin}/v1/classify?model={MODEL}&top=5'")
    assert "--data-binary @photo.jpg" in copied


@pytest.mark.slow
@in_browser
def test_the_api_page_lists_every_endpoint_without_another_host(visit: Visit, origin: str) -> None:
    page = visit("/docs")
    page.wait_for_selector(".endpoint")
    listed = page.evaluate("async () => Object.keys((await (await fetch('openapi.json')).json()).paths)")
    assert {"/v1/models", "/v1/classify", "/v1/attention"} <= set(listed)
    named = page.locator(".endpoint > code").all_inner_texts()
    assert {line.split()[-1] for line in named} == set(listed)
    classify = page.locator(".endpoint", has=page.locator("code", has_text="/v1/classify")).first
    assert f"{origin}/v1/classify" in classify.locator("pre").first.inner_text()
    top = classify.locator("tbody tr", has=page.locator("code", has_text=re.compile("^top$"))).first.inner_text()
    assert re.match(r"top\s+integer.*\s5\s", top)
    assert page.locator("summary", has_text="application/json").count() > 0
    assert page.locator(".endpoint", has_text="undefined").count() == 0

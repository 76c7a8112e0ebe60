"""A model in one page, opened from the disk in a browser: the answers of the model itself, and no request."""

import base64
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import CONTRASTS, chromium, in_browser, pixels, readout
from drawn_vit import vit
from PIL import Image
from playwright.sync_api import Browser, Page, expect
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from vitrail.config import Preprocessing, positions
from vitrail.config.preprocessing import NAMED
from vitrail.errors import ConfigError
from vitrail.exports.html import write_html
from vitrail.inspection.attention import pooled_attention, rollout
from vitrail.models import Model

PHONE = 360
ASK = """async ([name, bytes]) => {
  await examineEach([new File([Uint8Array.from(atob(bytes), (sign) => sign.charCodeAt(0))], name)], answered);
  const { shares, attention } = seen[0];
  const view = (show, layer, head) => [...weightsOf(unpack(attention), { show, layer, head, patch: 1 })];
  const problem = byId("problem").textContent;
  return { shares, rollout: view("rollout"), pooled: view("pooled", 2, 2), patch: view("patch", 1, 3), problem };
}"""


MODELS: dict[str, Callable[[], Model]] = {
    "token": lambda: vit(replace(NAMED["imagenet"], crop_share=0.8)),
    "mean": lambda: vit(
        Preprocessing(mean=(0.3,), deviation=(0.2,), interpolation="lanczos"),
        channels=1,
        pooling="mean",
        norm="post",
        activation="gelu",
        layer_scale=0.5,
        qkv_bias=False,
        cosine_scale=8.0,
        positions=positions.Sinusoidal2DPositions(at="layers"),
    ),
    "max": lambda: vit(
        Preprocessing(interpolation="bicubic"),
        temperature=1.7,
        pooling="max",
        attention="axial",
        activation="relu",
        pre_logits=11,
        classes=3,
        positions=positions.Learned2DPositions(at="shared"),
    ),
    "relative": lambda: vit(
        Preprocessing(interpolation="bicubic", antialias=False), positions=positions.RelativePositions(at="layers")
    ),
    "causal": lambda: vit(
        Preprocessing(antialias=False, crop_share=0.9),
        causal=True,
        pooling="mean",
        positions=positions.SinusoidalPositions(),
    ),
}


def photograph(kind: str, size: tuple[int, int], mode: str = "RGB", **options: Any) -> bytes:
    """A file of soft colours."""
    blocks = np.random.default_rng(3).integers(0, 256, (6, 7, 4), dtype=np.uint8)
    picture = Image.fromarray(blocks).resize(size, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    (picture if mode == "RGBA" else picture.convert("RGB").convert(mode)).save(buffer, kind, **options)
    return buffer.getvalue()


TURNED = Image.Exif()
TURNED[0x0112] = 6
FILES = {
    "small.png": photograph("PNG", (9, 7)),
    "large.jpg": photograph("JPEG", (403, 331), quality=90),  # decoded at an eighth
    "turned.jpg": photograph("JPEG", (403, 331), exif=TURNED),
    "several.jpg": photograph("MPO", (403, 331), save_all=True, append_images=[Image.new("RGB", (40, 30))]),
    "clear.png": photograph("PNG", (31, 45), "RGBA"),
    "gray.jpg": photograph("JPEG", (90, 30), "L"),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    gpu = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")  # one that is computed by the processor
    with chromium("--use-fake-device-for-media-stream", *gpu) as opened:
        yield opened


Visit = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    """Open a model's page from the disk; afterwards nothing may have gone wrong or out to a network."""
    troubles: list[str] = []
    contexts = []

    def opened(
        model: Model,
        precision: str = "float32",
        width: int = 1280,
        change: Callable[[str], str] = str,
        loss: float | None = None,
        **settings: Any,
    ) -> Page:
        path = tmp_path / "a model.html"
        write_html(model, path, precision=precision, loss=loss)
        path.write_text(change(path.read_text()))
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, **settings))
        page = contexts[-1].new_page()
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [line for line in troubles if not line.startswith(("file:", "blob:", "data:"))] == []


def ask(page: Page, name: str) -> dict[str, Any]:
    answer = page.evaluate(ASK, [name, base64.b64encode(FILES[name]).decode()])
    assert answer["problem"] == ""
    return answer


def shares_of(model: Model, batch: Tensor) -> Tensor:
    with torch.no_grad():
        return (model(batch) / model.card.temperature).softmax(dim=1)[0]


@in_browser
@pytest.mark.parametrize("kind", MODELS)
def test_the_page_answers_and_looks_as_the_model_does(visit: Visit, kind: str) -> None:
    model = MODELS[kind]()
    page = visit(model)
    # Without antialiasing torch interpolates in float32, whose halves may round to the other level.
    antialias = model.card.preprocessing.antialias
    for name in FILES if kind == "token" else ("small.png", "large.jpg"):
        answer, batch = ask(page, name), model.preprocess(FILES[name])
        assert answer["shares"] == pytest.approx(shares_of(model, batch).tolist(), abs=2e-5 if antialias else 5e-4), (
            name
        )
        seen, pooled = rollout(model, batch).flatten(), pooled_attention(model, batch)[0, 1, 1].flatten()
        near = 2e-5 if antialias else 2e-3
        assert answer["rollout"] == pytest.approx(seen.tolist(), abs=near)
        assert answer["pooled"] == pytest.approx(pooled.tolist(), abs=near)
        leading = model.config.tokens - seen.numel()  # pyright: ignore[reportAttributeAccessIssue]
        own = model.attention_maps(batch, 0)[0][0, 2, leading + 1, leading:]
        assert answer["patch"] == pytest.approx(own.tolist(), abs=0.5 / 255 * float(own.max()) + near)


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize(("precision", "loss"), [("float16", None), ("int8", 100), ("int8", 1)])
def test_fewer_bits_are_the_rounded_weights_and_nothing_else(visit: Visit, precision: str, loss: float | None) -> None:
    model = MODELS["token"]()
    page = visit(model, precision, loss=loss)
    whole = shares_of(model, model.preprocess(FILES["small.png"]))
    kinds = set[str]()
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                kind, read = page.evaluate("(name) => [given.weights[name][0], [...held.get(name)]]", f"{name}.weight")
                kinds.add(kind)
                read = torch.tensor(read)
                if kind == "float16":
                    assert torch.equal(read, module.weight.half().float().flatten())
                else:  # groups of 32, each in steps of its greatest by the largest whole number, or a thousandth more
                    groups = F.pad(module.weight.flatten(), (0, -len(read) % 32)).reshape(-1, 32)
                    steps = groups.abs().amax(dim=1) / {"int8": 127, "int12": 2047}[kind]
                    off = (read - module.weight.flatten()).abs()
                    assert (off <= 0.501 * steps.repeat_interleave(32)[: len(read)]).all()
                module.weight.copy_(read.view_as(module.weight))
    assert kinds == {None: {"float16"}, 100: {"int8"}, 1: {"int8", "int12"}}[loss]
    expected = shares_of(model, model.preprocess(FILES["small.png"]))
    assert ask(page, "small.png")["shares"] == pytest.approx(expected.tolist(), abs=2e-5)
    assert float((whole - expected).abs().max()) > 2e-5


@pytest.mark.slow
@in_browser
def test_a_browser_without_a_decoder_for_smaller_pictures_comes_near(visit: Visit) -> None:
    model = MODELS["token"]()
    page = visit(model, change=lambda text: text.replace("new ImageDecoder(", "new Nothing("))
    shares = shares_of(model, model.preprocess(FILES["large.jpg"]))
    assert ask(page, "large.jpg")["shares"] == pytest.approx(shares.tolist(), abs=0.01)


@pytest.mark.slow
@in_browser
def test_where_maps_would_take_too_much_a_patchs_own_is_left_out(visit: Visit) -> None:
    page = visit(MODELS["token"](), change=lambda text: text.replace("ROOM = 8_000_000", "ROOM = 1_349"))
    page.set_input_files("#file", [{"name": "small.png", "mimeType": "image/png", "buffer": FILES["small.png"]}])
    expect(page.locator("#name")).to_have_text("small.png")
    assert page.locator("[name=show]:disabled").evaluate_all("(radios) => radios.map(({ value }) => value)") == [
        "patch"
    ]
    page.check("[value=pooled]")
    assert "the class token gives" in readout(page)


def on_a_card(text: str) -> str:
    """Let a page take any card, also one that is computed by the processor, and slower than plain JavaScript."""
    return text.replace("/software|swiftshader|llvmpipe/i", "/none/").replace(
        "end - start > plainEnd - plainStart", "false"
    )


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("kind", ["token", "mean"])
def test_a_graphics_card_gives_the_same_and_plain_javascript_takes_over_where_it_fails(visit: Visit, kind: str) -> None:
    model = MODELS[kind]()
    page = visit(model, change=on_a_card)
    if not page.evaluate("async () => Boolean(await navigator.gpu?.requestAdapter())"):
        pytest.skip("this Chromium has no WebGPU")
    page.wait_for_function("() => multiplyElsewhere !== null")
    shares = shares_of(model, model.preprocess(FILES["large.jpg"]))
    assert ask(page, "large.jpg")["shares"] == pytest.approx(shares.tolist(), abs=2e-5)
    assert page.evaluate("() => multiplyElsewhere !== null")
    page.evaluate("() => { GPUQueue.prototype.submit = () => { throw new Error('lost'); }; }")
    assert ask(page, "large.jpg")["shares"] == pytest.approx(shares.tolist(), abs=2e-5)
    assert page.evaluate("() => multiplyElsewhere === null")


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("flaw", ["sum -= partOfA", "sum += 1.0001 * partOfA"])
def test_a_card_that_gives_other_numbers_is_not_taken(visit: Visit, flaw: str) -> None:
    page = visit(MODELS["token"](), change=lambda text: on_a_card(text).replace("sum += partOfA", flaw))
    page.evaluate("tryCard")
    assert page.evaluate("() => multiplyElsewhere === null")


@pytest.mark.slow
@in_browser
def test_files_are_chosen_and_photographed_and_shown_by_keyboard(visit: Visit) -> None:
    model = MODELS["token"]()
    page = visit(model)
    page.on("filechooser", lambda _: None)  # Playwright starts to listen late: asked for at the press, it can miss it
    assert page.title() == page.inner_text("#title") == "a model"
    assert "2 layers of 3 heads" in page.inner_text("#subtitle")
    for _ in range(4):
        page.keyboard.press("Tab")
        if page.evaluate("() => document.activeElement.id") == "choose":
            break
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files({"name": "small.png", "mimeType": "image/png", "buffer": FILES["small.png"]})
    expect(page.locator("#name")).to_have_text("small.png")
    shares = shares_of(model, model.preprocess(FILES["small.png"]))
    assert page.inner_text("#verdict") == f"<b>{int(shares.argmax())}</b>"
    assert page.locator("#top li").count() == 5
    assert readout(page).startswith("Rollout through all layers: row ")
    before = pixels(page)
    page.press("#picture", "ArrowLeft")
    assert "patch row 2, column 2 gives" in readout(page)
    assert pixels(page) != before
    page = visit(model, permissions=["camera"])
    page.click("#open-camera")
    page.wait_for_function("() => document.getElementById('preview').videoWidth > 0")
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("camera.jpg")
    ask(page, "small.png")
    assert page.locator("#thumbnails li").count() == 2


@pytest.mark.slow
@in_browser
def test_what_is_no_image_is_said_and_the_page_goes_on(visit: Visit) -> None:
    page = visit(MODELS["token"]())
    page.set_input_files("#file", [{"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}])
    expect(page.locator("#problem")).to_have_text(re.compile("^This is no image that the browser can read"))
    assert not page.is_visible("#progress")
    assert not page.is_visible("#viewer")
    ask(page, "small.png")


@pytest.mark.slow
@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_on_a_phone_and_all_text_has_contrast(visit: Visit, scheme: str) -> None:
    page = visit(MODELS["token"](), width=PHONE, color_scheme=scheme, reduced_motion="reduce")
    ask(page, "large.jpg")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE
    contrasts: list[tuple[str, float]] = page.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [(text, ratio) for text, ratio in contrasts if ratio < 4.5] == []
    places = page.evaluate("['verdict', 'picture'].map((id) => byId(id).getBoundingClientRect().bottom)")
    assert places[0] < min(places[1], page.evaluate("innerHeight"))  # the answer is seen without scrolling


@in_browser
@pytest.mark.slow
def test_the_box_names_what_predict_names(visit: Visit) -> None:
    page = visit(vitrail.load("vitrail-ti8"), "float16")
    found = vitrail.predict("vitrail-ti8", [*FILES.values()])
    for name, logits in zip(FILES, found.logits, strict=True):
        assert ask(page, name)["shares"] == pytest.approx(logits.softmax(dim=0).tolist(), abs=1e-5)


def refusals() -> dict[str, tuple[Model, str]]:
    plain = MODELS["token"]()
    broken = MODELS["token"]()
    heavy = MODELS["token"]()
    with torch.no_grad():
        next(iter(broken.parameters()))[0] = torch.nan
        heavy.get_parameter("blocks.0.mlp.expand.weight")[0, 0] = 1e6
    return {
        "BiT": (vitrail.create("BiT-R50x1", classes=3, device="meta"), "got a BiT ResNet. Export it to onnx"),
        "hybrid": (vitrail.create("R50+ViT-B/16", device="meta"), "got a hybrid, whose stem is a ResNet"),
        "headless": (vit(plain.card.preprocessing, classes=None), "without a classifier. Fine-tune it first"),
        "channels": (vit(Preprocessing(), channels=4), "the model reads 4"),
        "large": (vitrail.create("ViT-L/16", device="meta"), "holds at most 200 MB of weights; got 609 MB of float16"),
        "diverged": (broken, "not finite"),
        "heavy": (
            heavy,
            r"float16 ends at 6\.55e\+04 here; blocks\.0\.mlp\.expand\.weight has 1e\+06\. Take precision=int8",
        ),
    }


def test_what_a_page_cannot_hold_is_refused_with_the_reason(tmp_path: Path) -> None:
    for model, reason in refusals().values():
        with pytest.raises(ConfigError, match=reason):
            write_html(model, tmp_path / "model.html")
    with pytest.raises(ConfigError, match=r"precision must be .*float16.*; got 'float8'"):
        write_html(MODELS["token"](), tmp_path / "model.html", precision="float8")
    assert list(tmp_path.iterdir()) == []


def test_names_cannot_end_the_script_of_the_page(tmp_path: Path) -> None:
    model = MODELS["token"]()
    hostile = "</script><img src=x onerror=alert(1)>"
    model.card = replace(model.card, class_names=(hostile, *(model.card.class_names or ())[1:]))
    path = tmp_path / "<i>.html"
    write_html(model, path)
    text = path.read_text()
    assert hostile not in text
    assert "<title>&lt;i&gt;</title>" in text

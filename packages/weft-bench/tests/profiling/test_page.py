"""The page of profiles: what it holds, and how it looks in a real browser."""

from __future__ import annotations

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest

import browser as browsing
from browser import Browser
from commands import told
from profiling.made import HOSTILE, profile
from weft.errors import WeftError
from weft_bench.machine.laws import Scaling
from weft_bench.micro import published
from weft_bench.micro.page import save as save_micro
from weft_bench.micro.record import Micro, Micros
from weft_bench.profiling import summary
from weft_bench.profiling.page import JSON_FILE, save
from weft_bench.profiling.profile import Profile, load
from weft_bench.profiling.threats import of_profiles
from weft_bench.profiling.tradeoff import Trade

browser = browsing.browser
TRADES = [
    Trade("fp64", 9e-3, 8e-3, 1e-2, 4.0, 15.9, "gett 64x64x16"), Trade("fp16", 1e-3, 9e-4, 1.1e-3, 0.5, 3.1, "ws"),
    Trade("tf32", missing=HOSTILE),
]  # fmt: skip
SCALED = [Scaling("strong", (1, 2), (1.0, 1.8))]


def of_many_modes() -> Profile:
    """A title without a space for longer than a phone is wide."""
    return replace(profile(), about="bafg,cged->fedcba b=16,a=24,f=16,g=24,c=16,e=16,d=24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("profile")
    other = profile("torch", 120e-6, dram_read=9e8, K2=40.0)
    save([of_many_modes(), other], found, SCALED, TRADES)
    return found


def test_json_reads_back_and_says_the_same(folder: Path) -> None:
    first, second = load(folder)
    assert str(first) == str(of_many_modes())
    assert second.name == "torch"
    document = json.loads((folder / JSON_FILE).read_text())
    assert document["evidence"]["verdict"].startswith("attributed to")
    assert "traffic" in document["evidence"]["mechanisms"]
    assert document["scaling"][0]["kind"] == "strong"
    assert document["precisions"][0]["digits"] == 15.9
    assert document["profiles"][0]["sentence"].startswith("gett_kernel: bound by memory")


def test_profiles_of_a_folder_have_a_sentence_each(tmp_path: Path) -> None:
    save([profile()], tmp_path / "tccg-04")
    save([profile(K2=20.0, K3=20.0, K1=80.0, tensor=90.0)], tmp_path / "tccg-20")
    lines = summary.write(tmp_path).read_text().splitlines()
    assert "[tccg-04](tccg-04/index.html) | 40.0 us | 22.0 us | 55% | 1.25 | gett_kernel: bound by memory" in lines[-2]
    assert "bound by compute" in lines[-1]
    with pytest.raises(WeftError, match=r"there is no profile.json in any folder of"):
        summary.write(tmp_path / "tccg-04")


def test_times_are_durations_and_empty_columns_are_left_out(folder: Path, tmp_path: Path) -> None:
    content = (folder / "index.html").read_text()
    assert ">40.0 us<" in content
    assert ">25.0 TFLOP/s<" in content
    assert "<p>weft: gett 128x128x64</p>" in content
    assert "the device takes 77% of one call from Python" in content
    slow = profile(seconds=0.0116)
    slow.host, slow.counters = None, []
    content = save([slow], tmp_path).read_text()
    assert ">11.6 ms<" in content
    assert "e+0" not in content
    assert ">host</button>" not in content
    assert ">moved / least</button>" not in content


def test_a_page_is_made_anew_from_its_record(folder: Path, tmp_path: Path) -> None:
    made = (folder / "index.html").read_text()
    (tmp_path / JSON_FILE).write_text((folder / JSON_FILE).read_text())
    told("report", tmp_path)
    assert (tmp_path / "index.html").read_text() == made


def test_threats_are_those_of_the_record() -> None:
    """A profile that was not counted says so; clocks are those of the timing."""
    plain = profile()
    plain.timing = plain.timing | {"clocks": {"sm_mhz": 1710, "throttled": ["power cap"]}}
    said = of_profiles([plain])
    assert "replayed alone" in said["What is measured"]
    assert "The device slowed itself down in 1 of 1 timing (power cap)." in said["Causes"]
    assert "Clocks were not locked: 1710 MHz." in said["Causes"]
    assert "NVIDIA H200" in said["Other places"]
    assert "fewer than" not in said["Chance"]
    bare = profile()
    bare.counters, bare.samples = [], bare.samples[:2]
    said = of_profiles([bare])
    assert "without counters what binds is what the roofline says" in said["Causes"]
    assert "1 of 1 timing have fewer than 10 samples" in said["Chance"]


def test_other_formats_are_refused(folder: Path, tmp_path: Path) -> None:
    entry = profile().to_dict() | {"format": 99}
    with pytest.raises(WeftError, match="this profile has format 99"):
        Profile.from_dict(entry)
    with pytest.raises(WeftError, match="is no profile of weft"):
        load(tmp_path)


def test_text_is_escaped_and_everything_is_inside(folder: Path) -> None:
    content = (folder / "index.html").read_text()
    assert HOSTILE not in content
    assert html.escape(HOSTILE) in content
    assert "http" not in content.replace("http-equiv", "").replace(html.escape(HOSTILE), "").replace(
        json.dumps(HOSTILE)[1:-1].replace("<", "&lt;"), ""
    )
    assert content.count('src="data:image/png;base64,') == 3


@pytest.mark.parametrize("width", [390, 1400])
def test_microbenchmarks_can_be_read(browser: Browser, tmp_path: Path, width: int) -> None:
    rows = [{"n": n, "separate us": 1e4 * n, "grouped us": 9.0 * n, "overhead %": None} for n in (1, 2, 4)]
    found = Micro(
        "launch", "a GPU", "1000 products", "n", ("separate us", "grouped us"), rows, {"us a launch": 1.1},
        "launches cost", published.LAUNCH, published.SOURCE, doubt="the machine is too busy to say",
    )  # fmt: skip
    page = save_micro(Micros([found]), tmp_path)
    browser.show_as(width, 900, dark=False)
    browser.messages.clear()
    browser.open(page)
    assert browser.messages == []
    assert browser.overhang(width) == 0
    assert browser.run("document.images[0].getBoundingClientRect().right") <= width
    assert browser.run("document.body.textContent.includes('20.0 ms')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_it_can_be_read(browser: Browser, folder: Path, scheme: str, width: int) -> None:
    """Nothing runs over the edge, text stands out from its ground, nothing is fetched and nothing complains."""
    browser.show_as(width, 900, dark=scheme == "dark")
    browser.messages.clear()
    browser.requests.clear()
    browser.open(folder / "index.html")
    heads = browser.run('[...document.querySelectorAll("h2")].map((head) => head.textContent)')
    for head in ("Time", "What binds it", "Pictures", "Kernels", "What is missing"):
        assert head in heads
    assert heads[-3:-1] == ["Threats to validity", "How it was measured"]
    assert "weft against torch" in heads
    assert browser.overhang(width) == 0
    shades = browser.run(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        ".map((shade) => shade.match(/\\d+/g).slice(0, 3).map(Number).reduce((sum, part) => sum + part) / 3)"
    )
    text, ground = shades
    assert abs(text - ground) > 150
    assert (ground < 100) == (scheme == "dark")
    assert browser.run("[...document.images].every((image) => image.complete && image.naturalWidth > 600)")
    ends = "[...document.images].map((image) => image.getBoundingClientRect().right)"
    assert browser.run(f"Math.max(...{ends})") <= width
    schedule = "[...document.querySelectorAll('p')].find((said) => said.textContent.includes('gett 128x128x64'))"
    assert browser.run(f"{schedule}.scrollWidth <= {schedule}.clientWidth")
    assert browser.messages == []
    assert {address.partition(":")[0] for address in browser.requests} <= {"file", "data"}

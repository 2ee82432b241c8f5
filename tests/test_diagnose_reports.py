"""What every report of a diagnosis can do: text, page, figures."""

import builtins
import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from rich.console import Console

from safeops.diagnose._report import Report, new_figure

HOSTILE = "<script>alert('x')</script> [red]x[0] & \"more\""


class Sizes(Report):
    title = "Sizes"

    def __init__(self, rows=(), figures=()):
        self.given, self.drawn = list(rows), list(figures)

    def summary(self):
        return f"{len(self.given)} layers"

    def columns(self):
        return "layer", "elements", "severity"

    def rows(self):
        return self.given

    def to_dict(self):
        return {"rows": [list(row) for row in self.given]}

    def figures(self):
        return [(caption, draw()) for caption, draw in self.drawn]


def bars():
    figure = new_figure()
    figure.subplots().bar([1, 2], [3, 4])
    return figure


class Tags(HTMLParser):
    """Every tag that opens is closed, and what the text between them is."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_of(report, tmp_path):
    report.to_html(tmp_path / "page.html")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_text_is_summary_and_table():
    text = str(Sizes([("a", 5, "error"), ("longer", 120, "warning")]))
    assert text.splitlines()[0] == "2 layers"
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["layer", "elements", "severity"],
        ["-" * len(text.splitlines()[2])],
        ["a", "5", "error"],
        ["longer", "120", "warning"],
    ]
    ends = [
        line.index(number) + len(number)
        for line, number in zip(text.splitlines()[3:], ("5", "120"), strict=True)
    ]
    assert ends[0] == ends[1], "numbers stand to the right"


def test_an_empty_report_is_its_summary():
    assert str(Sizes()) == "0 layers"
    assert repr(Sizes()) == "<Sizes: 0 layers>"


def test_names_are_no_markup():
    text = str(Sizes([(HOSTILE, 1, "-")]))
    assert HOSTILE in text
    assert text.isascii()


def test_long_tables_are_cut_in_text_and_whole_on_the_page(tmp_path):
    report = Sizes([(f"row{place}", place, "-") for place in range(45)])
    assert "row39" in str(report)
    assert "row40" not in str(report)
    assert str(report).splitlines()[-1] == "... and 5 more"
    assert "row44" in page_of(report, tmp_path)


def test_long_cells_lose_nothing():
    report = Sizes([("x" * 500, 1, "-")])
    assert str(report).count("x") == 500
    assert max(map(len, str(report).splitlines())) <= 100


def test_text_is_wide_enough_where_the_terminal_is_narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert "y" * 70 in str(Sizes([("y" * 70, 1, "-")]))


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_text_has_no_colour(variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert "\x1b" not in str(Sizes([("a", 1, "error")]))


def test_a_terminal_gets_colour():
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard", _environ={}).print(
        Sizes([("a", 1, "error")])
    )
    assert re.search(r"\x1b\[[0-9;]*31m *error", file.getvalue())


def test_page_is_whole_and_escaped(tmp_path):
    text = page_of(Sizes([(HOSTILE, 1, "error")], [(HOSTILE, bars)]), tmp_path)
    tags = Tags(text)
    assert "script" not in {tag for tag, _ in tags.seen}
    assert HOSTILE in tags.words
    assert ("td", {"class": "error", "data-column": "severity"}) in tags.seen


def test_page_loads_nothing(tmp_path):
    tags = Tags(page_of(Sizes([("a", 1, "-")], [("one", bars)]), tmp_path))
    for _, attributes in tags.seen:
        links = [attributes.get(name) or "#" for name in ("src", "href", "xlink:href")]
        assert all(link.startswith("#") for link in links), attributes


def test_figures_are_drawn_inside(tmp_path):
    text = page_of(Sizes(figures=[("one", bars), ("two", bars)]), tmp_path)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 2
    clips = [set(re.findall(r'<clipPath id="(\w+)"', drawing)) for drawing in drawings]
    assert all(clips), "the drawings have names"
    assert not clips[0] & clips[1], "which clash on one page"
    for drawing in drawings:
        ElementTree.fromstring(drawing)


def test_the_same_report_is_the_same_page(tmp_path):
    report = Sizes([("a", 1, "-")], [("one", bars)])
    assert page_of(report, tmp_path) == page_of(report, tmp_path)


def test_figures_leave_pyplot_alone():
    code = (
        "import sys\n"
        "from safeops.diagnose._report import new_figure\n"
        "assert not {'matplotlib', 'numpy.testing'} & set(sys.modules)\n"
        "new_figure()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def without_matplotlib(monkeypatch):
    real = builtins.__import__

    def blocked(name, *rest, **named):
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", blocked)


def test_without_matplotlib_the_page_says_what_to_install(tmp_path, monkeypatch):
    without_matplotlib(monkeypatch)
    text = page_of(Sizes([("a", 1, "-")], [("one", bars)]), tmp_path)
    Tags(text)
    assert "pip install safeops[plot]" in text
    assert 'data-column="layer">a<' in text
    assert "<figure>" not in text
    assert "pip install" not in page_of(Sizes([("a", 1, "-")]), tmp_path), "it has no figures"
    with pytest.raises(ImportError, match=r"pip install safeops\[plot\]"):
        new_figure()


def test_a_notebook_gets_summary_details_and_table(monkeypatch):
    without_matplotlib(monkeypatch)
    report = Sizes([(HOSTILE, place, "error") for place in range(45)], [("one", bars)])
    report.details = lambda: f"details of {HOSTILE}"
    tags = Tags(report._repr_html_())
    assert {"45 layers", f"details of {HOSTILE}", HOSTILE, "... and 5 more"} < set(tags.words)
    assert [tag for tag, _ in tags.seen].count("tr") == 41
    assert not {"html", "body", "svg", "script"} & {tag for tag, _ in tags.seen}


def test_a_dash_among_numbers_stands_with_them(tmp_path):
    report = Sizes([("a", 125, "-"), ("b", "-", "-")])
    lines = str(report).splitlines()
    assert lines[3].index("125") + 2 == lines[4].index("-")
    tags = Tags(page_of(report, tmp_path))
    assert ("th", {"class": "number"}) in tags.seen
    assert tags.seen.count(("td", {"class": "number", "data-column": "elements"})) == 2
    assert tags.seen.count(("td", {"class": "", "data-column": "severity"})) == 2


def test_a_figure_fills_its_frame_or_says_that_it_scrolls(tmp_path):
    """The frame is bounded, not the drawing in it; a drawing is cut as soon as 36rem and the
    paddings do not fit, and there the caption says so."""
    text = page_of(Sizes(figures=[("one", bars)]), tmp_path)
    frame = re.search(r"\.drawing \{[^}]*\}", text).group()
    drawing = re.search(r"\.drawing svg \{[^}]*\}", text).group()
    assert "max-width" in frame
    assert "max-width" not in drawing
    assert "min-width: 36rem" in drawing
    hint = re.search(r"@media \(max-width: (.*?)rem\) \{\s*figcaption::after \{[^}]*scroll", text)
    assert 39 <= float(hint[1]) < 39.2


def test_other_import_errors_are_passed_on(tmp_path):
    def broken():
        import safeops.no_such_module  # noqa: F401

    with pytest.raises(ImportError, match="no_such_module"):
        Sizes(figures=[("one", broken)]).to_html(tmp_path / "page.html")


def test_a_page_that_cannot_be_made_leaves_the_old_one(tmp_path):
    def broken():
        raise KeyError("figure")

    (tmp_path / "page.html").write_text("old")
    with pytest.raises(KeyError):
        Sizes(figures=[("one", broken)]).to_html(tmp_path / "page.html")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_move_that_fails_leaves_nothing_beside_the_old_page(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space")

    (tmp_path / "page.html").write_text("old")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        Sizes().to_html(tmp_path / "page.html")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize(
    ("place", "error"), [("", IsADirectoryError), ("missing/page.html", FileNotFoundError)]
)
def test_bad_paths_say_what_is_expected(place, error, tmp_path):
    with pytest.raises(error, match="expected the path of a file in a directory that exists"):
        Sizes().to_html(tmp_path / place)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    Sizes().to_html(str(tmp_path / "link.html"))
    assert (tmp_path / "link.html").is_symlink()
    assert "0 layers" in (tmp_path / "real.html").read_text()


def test_names_are_not_broken_where_a_sentence_can_be():
    name, sentence = "encoder.layers.11.weight", " ".join(["word"] * 60)
    lines = str(Sizes([(name, sentence, "error")])).splitlines()
    assert name in lines[3]
    assert sum(line.count("word") for line in lines) == 60

"""Bytes to documents: kinds, encodings, boundaries, and input that is no document."""

from __future__ import annotations

import io
import sys
from itertools import pairwise

import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.context import documents
from kvgraft.context.document import CHAPTER, PARAGRAPH, SECTION, SUBSECTION, Document
from kvgraft.context.documents import read_document
from kvgraft.errors import InputError, KvgraftError, LimitExceeded, MissingExtra
from kvgraft.limits import MAX_HEADING_CHARS, MAX_PARSED_SOURCE_CHARS


def _headings(name: str, data: bytes) -> list[tuple[int, str]]:
    document = read_document(name, data)
    shown = []
    for one in document.breaks:
        if one.level < PARAGRAPH:
            shown.append((one.level, one.heading))
    return shown


def _pdf(*texts: str, password: str = "") -> bytes:
    writer = pypdf.PdfWriter()
    for text in texts:
        page = writer.add_blank_page(300, 300)
        if text:
            font = pypdf.generic.DictionaryObject(
                {
                    pypdf.generic.NameObject("/Type"): pypdf.generic.NameObject("/Font"),
                    pypdf.generic.NameObject("/Subtype"): pypdf.generic.NameObject("/Type1"),
                    pypdf.generic.NameObject("/BaseFont"): pypdf.generic.NameObject("/Helvetica"),
                }
            )
            fonts = pypdf.generic.DictionaryObject({pypdf.generic.NameObject("/F"): font})
            page[pypdf.generic.NameObject("/Resources")] = pypdf.generic.DictionaryObject(
                {pypdf.generic.NameObject("/Font"): fonts}
            )
            stream = pypdf.generic.DecodedStreamObject()
            stream.set_data(f"BT /F 12 Tf 20 200 Td ({text}) Tj ET".encode())
            page[pypdf.generic.NameObject("/Contents")] = writer._add_object(stream)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


# --- kinds -------------------------------------------------------------------------------------


def test_text_is_divided_at_form_feeds_paragraphs_and_lines() -> None:
    document = read_document("a.txt", b"one\ntwo\n \n\n  three\n\fpage two\n\n\n\n")
    assert document.kind == "text"
    assert document.text == "one\ntwo\n \n\n  three\npage two\n\n\n\n"
    found = [(document.text[one.at :].split("\n")[0], one.level) for one in document.breaks]
    assert found == [("one", 3), ("two", 4), ("  three", 3), ("page two", CHAPTER)]


@pytest.mark.parametrize("name", ["README", "a.rst", "a.log", "ls.1", "a.conf", "no suffix."])
def test_what_has_no_suffix_of_its_own_is_text(name: str) -> None:
    assert read_document(name, b"words").kind == "text"


def test_markdown_keeps_its_text_and_names_its_headings() -> None:
    source = "# A *b*\n\nx\n\n```\n# no heading\n```\n\nC\n-\n\n#### deep\n\n> # quoted\n"
    document = read_document("a.md", source.encode())
    assert (document.kind, document.title, document.text) == ("markdown", "A *b*", source)
    assert _headings("a.md", source.encode()) == [
        (0, "A *b*"),
        (1, "A *b* > C"),
        (2, "A *b* > C > deep"),
    ]
    assert [source[one.at] for one in document.breaks if one.level < PARAGRAPH] == ["#", "C", "#"]


def test_html_shows_what_a_reader_sees() -> None:
    source = b"""<html><head><title>The &amp; title</title><style>p {x}</style>
    <body><nav><ul><li>menu</li></ul></nav><script>var hidden = "<p>";</script><!-- <p>none -->
    <h1>One</h1><p>First  para&eacute;<br>line</p><h2>Two</h2>
    <table><tr><th>a<th>b</tr><tr><td>1</td><td>2</td></tr></table>
    <pre>def f():
    return 1</pre><svg><title>no title</title></svg>end"""
    document = read_document("a.html", source)
    assert document.title == "The & title"
    for hidden in ("menu", "hidden", "none", "no title", "{x}"):
        assert hidden not in document.text
    assert "First paraé\nline\n" in document.text
    assert "a | b\n1 | 2\n" in document.text
    assert "def f():\n    return 1\n" in document.text
    assert document.text.endswith("end\n")
    assert _headings("a.html", source) == [(0, "One"), (1, "One > Two")]
    at = next(one.at for one in document.breaks if one.heading == "One > Two")
    assert document.text[at:].startswith("Two\n")


def test_html_that_leaves_out_its_optional_tags_is_read() -> None:
    document = read_document("a.html", b"<head><title>T</title><meta x=y><p>words</head><p>more")
    assert (document.title, document.text.split()) == ("T", ["words", "more"])


def test_html_leaves_out_navigation_by_role_and_by_the_names_of_makers() -> None:
    parts = [
        f"<div {kind}><div>menu</div><a>menu</a></div><p>words{number}</p>"
        for number, kind in enumerate(
            ("role=navigation", 'class="x nav-panel"', "class=navheader", "class")
        )
    ]
    text = read_document("a.html", "".join(parts).encode()).text
    assert text.split() == ["words0", "words1", "words2", "menu", "menu", "words3"]


def test_html_references_bring_no_control_characters_and_no_surrogates() -> None:
    text = read_document("a.html", b"<pre>a&#12;&#1;&#27;&#xD800;&#13;b&#x2028;c</pre>").text
    assert set(text) <= set("abc \n\ufffd")


def test_a_pdf_is_divided_at_its_pages() -> None:
    document = read_document("a.pdf", _pdf("first words", "", "third"))
    assert document.kind == "pdf"
    assert document.text == "first words\n\nthird\n\n"
    assert [(one.level, one.heading) for one in document.breaks] == [(0, "page 1"), (0, "page 3")]


def test_a_pdf_is_known_by_its_bytes() -> None:
    assert read_document("a.txt", _pdf("words")).kind == "pdf"


def test_python_is_divided_at_its_definitions() -> None:
    source = (
        '"""Doc."""\n\nimport a\n\n@one\n@two\nclass C:\n    x = 1\n\n    def m(self):\n'
        "        pass\n\ndef f(): ...\n"
    )
    document = read_document("a.py", source.encode())
    assert document.text == source
    assert _headings("a.py", source.encode()) == [
        (SECTION, "C"),
        (SUBSECTION, "C > m"),
        (SECTION, "f"),
    ]
    assert source[document.breaks[[b.heading for b in document.breaks].index("C")].at :].startswith(
        "@one"
    )


@pytest.mark.parametrize(
    "source",
    ["def f(:\n\n\nprint 'old'\n", "(" * 100_000, "x = " + "-" * 50_000 + "1\n"],
    ids=["syntax", "brackets", "signs"],
)
def test_python_that_no_parser_takes_is_still_read(source: str) -> None:
    assert read_document("a.py", source.encode()).text == source


def test_a_source_too_long_to_parse_is_divided_by_lines() -> None:
    source = "def f():\n    pass\n\n\n" + "# padding\n" * (MAX_PARSED_SOURCE_CHARS // 10)
    assert _headings("a.py", source.encode()) == []


def test_other_languages_are_divided_at_unindented_lines() -> None:
    source = b"#include <a>\n\nint f(void) {\n\n  return 1;\n}\n\nstatic int g;\n"
    assert _headings("a.c", source) == [(2, "int f(void)"), (2, "static int g;")]


# --- encodings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_utf_is_known_by_its_mark(encoding: str) -> None:
    assert read_document("a.txt", "grün\r\nblau\rrot".encode(encoding)).text == "grün\nblau\nrot"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("a.html", b'<meta charset="iso-8859-1"><p>'),
        ("a.html", b'<meta http-equiv=x content="text/html; charset=latin1"><p>'),
        ("a.xhtml", b'<?xml version="1.0" encoding="ISO-8859-1"?><p>'),
        ("a.xml", b'<?xml version="1.0" encoding="windows-1252"?>'),
    ],
)
def test_declared_latin_1_is_read_as_browsers_do(name: str, head: bytes) -> None:
    text = read_document(name, head + b"gr\xfcn \x93quoted\x94").text
    assert "grün “quoted”" in text


def test_utf_8_wins_over_a_wrong_declaration() -> None:
    assert "grün" in read_document("a.html", '<meta charset="latin1">grün'.encode()).text


@pytest.mark.parametrize(
    "declared", ["nonsense", "rot13", "utf-7", "unicode_escape", "undefined", "idna", "hex"]
)
def test_encodings_that_are_none_are_refused(declared: str) -> None:
    data = f"<meta charset={declared}><p>x".encode() + b"\xfc"
    with pytest.raises(InputError, match=r"encoding|not "):
        read_document("a.html", data)


def test_other_bytes_are_refused_by_place_and_with_what_to_do() -> None:
    with pytest.raises(InputError) as refused:
        read_document("a.txt", b"gr\xfcn")
    assert "byte 2" in refused.value.what
    assert refused.value.where == "a.txt"
    assert "UTF-8" in refused.value.hint


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" \n\t\r\n",
        b"\xef\xbb\xbf",
        b"\x89PNG\r\n\x1a\n\x00\x00",
        b"PK\x03\x04\x00",
        b"\x1f\x8b\x08",
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.html", "a.py", "a.pdf"])
def test_empty_and_binary_files_are_refused(name: str, data: bytes) -> None:
    with pytest.raises(InputError) as refused:
        read_document(name, data)
    assert refused.value.where == name


def test_a_file_over_the_cap_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 10)
    with pytest.raises(LimitExceeded, match="10 bytes"):
        read_document("a.txt", b"x" * 11)
    assert read_document("a.txt", b"x" * 10).text == "x" * 10


def test_control_characters_and_printed_bold_are_taken_out() -> None:
    source = "N\x08NA\x08A _\x08u \x1b[1;31mred\x1b[0m\x07\x85next\u2028line\tend\x7f\x9b"
    assert read_document("a.txt", source.encode()).text == "NA u red\nnext\nline\tend"


# --- broken PDFs ---------------------------------------------------------------------------------


def test_pdfs_that_cannot_be_read_are_refused_each_by_its_name() -> None:
    whole = _pdf("words")
    with pytest.raises(InputError, match="encrypted"):
        read_document("a.pdf", _pdf("words", password="secret"))
    with pytest.raises(InputError, match="no text"):
        read_document("a.pdf", _pdf("", ""))
    for broken in (b"%PDF-1.7\n", whole[: len(whole) // 2], b"no pdf"):
        with pytest.raises(InputError):
            read_document("a.pdf", broken)


def test_a_pdf_of_thousands_of_empty_pages_has_no_text() -> None:
    with pytest.raises(InputError, match="no text"):
        read_document("a.pdf", _pdf(*[""] * 2_000))


@pytest.mark.parametrize(
    ("name", "package", "data"), [("a.pdf", "pypdf", b"%PDF-"), ("a.md", "markdown_it", b"# x")]
)
def test_a_missing_package_is_said_for_its_kind_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str, data: bytes
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        read_document(name, data)
    assert "kvgraft[documents]" in missing.value.hint
    for other in ("a.txt", "a.html", "a.py"):
        assert read_document(other, b"words").text.split() == ["words"]


# --- large and deep ------------------------------------------------------------------------------

BOMBS = {
    "deep.html": "<div><b>" * 40_000 + "core",
    "hidden.html": "core" + "<svg>" * 40_000 + "</nav></p>" * 40_000,
    "open.html": "core" + "<a " * 100_000,
    "comments.html": "core<!-- x -->" + "<!--" * 100_000,
    "declarations.html": "core" + "<!x" * 50_000,
    "sections.html": "core" + "<![if x]><![" * 50_000 + "<b>",
    "processing.html": "core" + "<?x" * 50_000,
    "references.html": "core" + "&amp" * 100_000,
    "headings.html": "<h1>core</h1>" * 20_000,
    "quotes.md": "> " * 20_000 + "core",
    "lists.md": "\n".join("  " * n + "- core" for n in range(200)),
    "brackets.md": "core" + "[" * 100_000 + "*_" * 50_000 + "`" * 50_001,
    "headings.md": "# core\n\n" * 10_000,
    "line.txt": "core " * 1_000_000,
    "ends.txt": "core" + "\n" * 300_000,
    "blanks.txt": "core" + "\n\xa0" * 100_000,
    "struck.txt": "core" + "a" * 100_000 + "\b" * 100_000,
    "lines.c": "core\n\n" * 50_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_large_and_deep_files_are_read(name: str) -> None:
    document = read_document(name, BOMBS[name].encode())
    assert "core" in document.text
    assert all(one.at < other.at for one, other in pairwise(document.breaks))


def test_a_title_and_headings_are_short_however_long_they_are_written() -> None:
    long = "word " * 10_000
    for name, source in (
        ("a.md", f"# {long}\n"),
        ("a.html", f"<title>{long}</title><h1>{long}</h1>"),
    ):
        document = read_document(name, source.encode())
        assert len(document.title) <= MAX_HEADING_CHARS
        assert document.title.endswith("word…")
        assert all(len(one.heading) <= MAX_HEADING_CHARS for one in document.breaks)


@settings(max_examples=200, deadline=None)
@given(
    data=st.binary(max_size=200)
    | st.text(alphabet="ab<>/!-&;#\"'=hp1 \n\t\f\b\r`*[]>({:\x85", max_size=200).map(str.encode),
    name=st.sampled_from(["a", "a.txt", "a.md", "a.html", "a.py", "a.c", "a.xml", "a.pdf"]),
)
def test_any_bytes_are_a_document_or_a_clear_error(name: str, data: bytes) -> None:
    document: Document | None
    try:
        document = read_document(name, data)
    except KvgraftError as error:
        said = error.where
        document = None
    else:
        said = name
    assert said == name
    if document is None:
        return
    assert document == read_document(name, data)
    assert document.breaks[0].at == 0
    places = [one.at for one in document.breaks]
    assert places == sorted(set(places))
    assert places[-1] < len(document.text)
    strange = {c for c in document.text if (c < " " and c not in "\t\n") or "\x7f" <= c < "\xa0"}
    assert not strange

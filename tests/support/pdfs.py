"""PDFs written by hand: ordinary ones, and hostile ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def pdf(*pages: str, trailer: str = "", extra: Sequence[bytes] = ()) -> bytes:
    """A PDF with these texts, one on each page; without text where a page is empty. `extra`:
    further objects."""
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    first = 4
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        font,
    ]
    for number, text in enumerate(pages):
        lines = "".join(f"({line}) Tj T* " for line in text.splitlines())
        content = f"BT /F1 12 Tf 14 TL 72 720 Td {lines}ET" if text else "0 0 m"
        objects += [_page(first + 2 * number + 1), _stream(content.encode())]
    return _file([*objects, *extra], trailer)


def encrypted_pdf(text: str, password: str) -> bytes:
    """One that asks for a password."""
    import io

    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(text))))
    writer.encrypt(password, algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def bomb_pdf(bytes_of_content: int) -> bytes:
    """A page whose content is small in the file, and very large when it is unpacked."""
    packed = zlib.compress(b"(a) Tj " * (bytes_of_content // 7), 9)
    content = _stream(packed, "/Filter /FlateDecode ")
    pages = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        _page(5),
        content,
    ]
    return _file(pages, "")


def endless_pdf(forms: int) -> bytes:
    """A page that shows a form ten times, which shows the next one ten times, and so on."""
    names = [f"/X{number} Do " for number in range(10)]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R"
        b" /Resources << /Font << /F1 3 0 R >> /XObject << " + _ten(6) + b" >> >> >>",
        _stream("".join(names).encode()),
    ]
    for number in range(forms):
        is_last = number == forms - 1
        content = b"BT /F1 12 Tf (a) Tj ET" if is_last else "".join(names).encode()
        below = b"" if is_last else b" /XObject << " + _ten(7 + number) + b" >>"
        form = "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /Font << /F1 3 0 R >>"
        objects.append(_stream(content, f"{form}{below.decode()} >> "))
    return _file(objects, "")


def _ten(number: int) -> bytes:
    return b" ".join(b"/X%d %d 0 R" % (name, number) for name in range(10))


def _page(contents: int) -> bytes:
    return (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R"
        b" /Resources << /Font << /F1 3 0 R >> >> >>" % contents
    )


def _stream(data: bytes, fields: str = "") -> bytes:
    return f"<< {fields}/Length {len(data)} >>\nstream\n".encode() + data + b"\nendstream"


def _file(objects: Sequence[bytes], trailer: str) -> bytes:
    written, places = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(written))
        written += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    table = len(written)
    written += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    written += b"".join(b"%010d 00000 n \n" % place for place in places)
    size = f"trailer << /Size {len(objects) + 1} /Root 1 0 R {trailer}>>"
    return bytes(written) + f"{size}\nstartxref\n{table}\n%%EOF\n".encode()

"""Formats that are no text, by the first bytes of a file: one table for the messages of all readers."""

from __future__ import annotations

import re

HEAD_BYTES = 1 << 16  # that decide; the members of a ZIP archive tell what it is
ZIP = rb"PK\x03\x04.{26}"  # the local header before the name of the first member
OFFICE = ZIP + rb"(?:\[Content_Types\]|_rels/|docProps/|xl/|word/|ppt/|customXml/)"
AS_VECTORS = "vectors: gensim's KeyedVectors.save_word2vec_format"

SIGNATURES = (  # pattern, name, what to do with such a file
    (rb"\x1f\x8b", "gzip data", "rename it to .gz"),
    (rb"\x28\xb5\x2f\xfd", "Zstandard data", "rename it to .zst"),
    (rb"BZh[1-9]", "bzip2 data", "rename it to .bz2"),
    (rb"\xfd7zXZ\0", "xz data", "rename it to .xz"),
    (rb".{257}ustar|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07|\x04\x22\x4d\x18", "a tar, 7-Zip, RAR or LZ4 archive", "unpack it"),
    (
        OFFICE + rb".*xl/|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1.*W\0o\0r\0k\0b\0o\0o\0k",
        "an Excel workbook",
        "save it as CSV UTF-8",
    ),
    (OFFICE + rb"|\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a Microsoft Office document", "save it as text UTF-8"),
    (ZIP + rb"mimetypeapplication/", "an OpenDocument or EPUB file", "save it as text or CSV in UTF-8"),
    (
        ZIP + rb"[^/\0]+/(?:data\.pkl|byteorder|\.format_version)|\x80\x02\x8a\x0al\xfc\x9cF\xf9",
        "a PyTorch file",
        f"its pickle can run code and is not read; if you trust it, torch.load it and save text, or {AS_VECTORS}",
    ),
    (ZIP + rb"[^\0]{1,200}?\.npy", "a NumPy archive (.npz)", f"numpy.load it and save text, or {AS_VECTORS}"),
    (rb"PK\x03\x04", "a ZIP archive", "rename it to .zip"),
    (
        rb"\x80[\x02-\x05]|\((?:lp|dp)\d+\n|[\]}]q\0|c(?:copyreg|copy_reg|numpy|gensim|collections|__builtin__)[\w.]*\n",
        "a pickle",
        f"it can run code, so it is not read; if you trust it, open it in Python and save text, or {AS_VECTORS}",
    ),
    (rb"\x93NUMPY", "a NumPy array", f"numpy.load it and save text, or {AS_VECTORS}"),
    (rb"\x89HDF\r\n\x1a\n", "HDF5", f"open it with h5py or pandas and save CSV, or {AS_VECTORS}"),
    (rb"PAR1", "a Parquet file", "read it with --format parquet"),
    (rb"ARROW1\0\0|FEA1\0|\xff{4}.{2}\0\0", "an Arrow or Feather file", "save it as Parquet or CSV"),
    (rb".{4}\0{4}\{\"|GGUF.\0\0\0", "weights of a model (safetensors or GGUF)", "name text, or a file of vectors"),
    (rb"SQLite format 3\0", "an SQLite database", "export a table as CSV"),
    (rb"Obj\x01|RDX[23]\n|MATLAB 5\.0 MAT", "an Avro, R or MATLAB file", "save it as CSV"),
    (rb"%PDF-", "a PDF", "extract its text"),
)


def recognize(head: bytes) -> str:
    """Return the format that the first bytes of a file show, with the way out; empty for text and unknown formats.

    >>> recognize(b"%PDF-1.7"), recognize(b"A text")
    ('a PDF (extract its text)', '')
    """
    head = head[:HEAD_BYTES]
    formats = (f"{name} ({way_out})" for pattern, name, way_out in SIGNATURES if re.match(pattern, head, re.DOTALL))
    return next(formats, "")

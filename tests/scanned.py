"""What scan says of a file with this content."""

import tempfile
from pathlib import Path

from safeops.diagnose.scanning.scan import scan


def scanned(content, name="file"):
    """The report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        return scan(path)


def one(report):
    """The only tensor; there is no error."""
    assert not report.errors, report.errors
    (tensor,) = report.tensors
    return tensor


def error(content):
    """The error; there is no tensor."""
    report = scanned(content, "file.pt")
    assert not report
    assert not report.tensors
    (file,) = report.files
    return file.error

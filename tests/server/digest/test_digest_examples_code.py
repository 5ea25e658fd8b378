"""What becomes of code, diffs and test runs: texts beside their levels.

Written out, so that a reader can judge as a model would: is it enough to go on?
"""

from __future__ import annotations

from tests.server.digest.results import summary_and_gist_of_result

CODE = '''\
"""Keeps the bakery's labels from being printed twice."""

import csv
import sys
from collections import Counter
from pathlib import Path

DATE = "date"


class Label:
    """One label: who gets what, and when."""

    def __init__(self, customer: str, date: str) -> None:
        self.customer = customer
        self.date = date
        self.lines: list[str] = []

    def add(self, item: str, quantity: int) -> None:
        self.lines.append(f"{quantity} x {item}")

    def render(self, width: int = 40) -> str:
        head = f"{self.customer}  {self.date}".ljust(width)
        return "\\n".join([head, *self.lines])


def read_orders(path: Path) -> list[dict[str, str]]:
    # TODO: the export pads dates; remove once it does not.
    with path.open(newline="") as source:
        return [{**row, DATE: row[DATE].strip()} for row in csv.DictReader(source)]


def labels_of(orders: list[dict[str, str]]) -> list[Label]:
    """One for each customer and day, in the order of the file."""
    labels: dict[tuple[str, str], Label] = {}
    for order in orders:
        key = order["customer"], order[DATE]
        label = labels.setdefault(key, Label(*key))
        label.add(order["item"], int(order["quantity"]))
    return list(labels.values())


def main() -> None:
    labels = labels_of(read_orders(Path(sys.argv[1])))
    for label in labels:
        print(label.render())
        print()
    most = Counter(label.customer for label in labels).most_common(1)
    print(f"{len(labels)} labels, most for {most[0][0]}", file=sys.stderr)


if __name__ == "__main__":
    main()
'''

TRACEBACK = (
    """\
============================= test session starts ==============================
collected 48 items

"""
    + "".join(
        f"tests/test_labels.py::test_case_{n} PASSED {' ' * 20} [{n * 2:3d}%]\n" for n in range(46)
    )
    + """\
tests/test_labels.py::test_dates_are_stripped FAILED                     [ 97%]

=================================== FAILURES ===================================
___________________________ test_dates_are_stripped ____________________________

    def test_dates_are_stripped(tmp_path):
        path = tmp_path / "week.csv"
        path.write_text(ORDERS)
>       assert [order["date"] for order in read_orders(path)] == ["2026-03-06"] * 2
E       AssertionError: assert ['2026-03-06', '2026-03-06 '] == ['2026-03-06', '2026-03-06']
E         At index 1 diff: '2026-03-06 ' != '2026-03-06'

tests/test_labels.py:31: AssertionError
=========================== short test summary info ============================
FAILED tests/test_labels.py::test_dates_are_stripped - AssertionError: assert ['2026-03-06'...
========================= 1 failed, 47 passed in 0.38s =========================
"""
)

DIFF = (
    """\
commit 4f1c9e0
Author: Els <els@bakery.example>
Date:   Fri Mar 6 09:12:00 2026 +0100

    Strip the dates before grouping by them

diff --git a/labels.py b/labels.py
index 83db48f..bf2a1c3 100644
--- a/labels.py
+++ b/labels.py
@@ -26,8 +26,9 @@ class Label:
"""
    + "".join(f" context line {n} that did not change\n" for n in range(30))
    + """\
-def read_orders(path):
+def read_orders(path: Path) -> list[dict[str, str]]:
     with path.open(newline="") as source:
-        return list(csv.DictReader(source))
+        return [{**row, DATE: row[DATE].strip()} for row in csv.DictReader(source)]
diff --git a/tests/test_labels.py b/tests/test_labels.py
index 1111111..2222222 100644
--- a/tests/test_labels.py
+++ b/tests/test_labels.py
@@ -1,3 +1,9 @@
+def test_dates_are_stripped(tmp_path):
+    path = tmp_path / "week.csv"
+    path.write_text(ORDERS)
+    assert [order["date"] for order in read_orders(path)] == ["2026-03-06"] * 2
"""
)


def test_code_keeps_its_definitions() -> None:
    summary, gist = summary_and_gist_of_result(CODE)
    assert summary == CODE_SUMMARY
    assert gist == CODE_GIST


CODE_SUMMARY = """\
run success:
[code, 54 lines, 4 imports]
\"""Keeps the bakery's labels from being printed twice.\""" […]
DATE = "date"

class Label:
    \"""One label: who gets what, and when.\"""

    def __init__(self, customer: str, date: str) -> None:
        self.customer = customer
        self.date = date
        self.lines: list[str] = []

    def add(self, item: str, quantity: int) -> None:
        self.lines.append(f"{quantity} x {item}")

    def render(self, width: int = 40) -> str: […]
def read_orders(path: Path) -> list[dict[str, str]]:
    # TODO: the export pads dates; remove once it does not.
    with path.open(newline="") as source: […]
def labels_of(orders: list[dict[str, str]]) -> list[Label]:
    \"""One for each customer and day, in the order of the file.\"""
    labels: dict[tuple[str, str], Label] = {}
    for order in orders: […]
    return list(labels.values())

def main() -> None:
    labels = labels_of(read_orders(Path(sys.argv[1])))
    for label in labels: […]
    most = Counter(label.customer for label in labels).most_common(1)
    print(f"{len(labels)} labels, most for {most[0][0]}", file=sys.stderr)

if __name__ == "__main__":
    main()"""

CODE_GIST = """\
run success: [code, 54 lines, 4 imports] class Label … def __init__ … def add … def render \
… def read_orders … def labels_of … def main…"""


def test_a_test_run_keeps_what_failed() -> None:
    summary, gist = summary_and_gist_of_result(TRACEBACK)
    assert summary == TRACEBACK_SUMMARY
    assert gist == TRACEBACK_GIST


TRACEBACK_SUMMARY = """\
run success:
[65 lines, 6 with errors]
============================= test session starts ==============================
collected 48 items

tests/test_labels.py::test_case_0 PASSED                      [  0%] […]
tests/test_labels.py::test_case_5 PASSED                      [ 10%]
[… 2,797 characters left out …]
tests/test_labels.py::test_dates_are_stripped FAILED                     [ 97%]

=================================== FAILURES ===================================
___________________________ test_dates_are_stripped ____________________________

    def test_dates_are_stripped(tmp_path):
        path = tmp_path / "week.csv"
        path.write_text(ORDERS)
>       assert [order["date"] for order in read_orders(path)] == ["2026-03-06"] * 2
E       AssertionError: assert ['2026-03-06', '2026-03-06 '] == ['2026-03-06', '2026-03-06']
E         At index 1 diff: '2026-03-06 ' […]
tests/test_labels.py:31: AssertionError
=========================== short test summary info ============================
FAILED tests/test_labels.py::test_dates_are_stripped - AssertionError: assert ['2026-03-06'...
========================= 1 failed, 47 passed in 0.38s ========================="""

TRACEBACK_GIST = """\
run success: [65 lines, 6 with errors] tests/test_labels.py::test_dates_are_stripped FAILED \
[ 97%] … ========================= 1 failed, 47 passed in 0.38s…"""


def test_a_diff_keeps_its_files_and_changed_lines() -> None:
    summary, gist = summary_and_gist_of_result(DIFF)
    assert summary == DIFF_SUMMARY
    assert gist == DIFF_GIST


DIFF_SUMMARY = """\
run success:
[diff, 2 files, 56 lines]
commit 4f1c9e0
Author: Els <els@bakery.example>
Date:   Fri Mar 6 09:12:00 2026 +0100

    Strip the dates before grouping by them

diff --git a/labels.py b/labels.py
[… 1,194 characters left out …]
-def read_orders(path):
+def read_orders(path: Path) -> list[dict[str, str]]: […]
-        return list(csv.DictReader(source))
+        return [{**row, DATE: row[DATE].strip()} for row in csv.DictReader(source)]
diff --git a/tests/test_labels.py b/tests/test_labels.py […]
+def test_dates_are_stripped(tmp_path):
+    path = tmp_path / "week.csv"
+    path.write_text(ORDERS)
+    assert [order["date"] for order in read_orders(path)] == ["2026-03-06"] * 2"""

DIFF_GIST = """\
run success: [diff, 2 files, 56 lines] Strip the dates before grouping by them diff --git \
a/labels.py b/labels.py … diff --git a/tests/test_labels.py b/tests/test_labels.py"""

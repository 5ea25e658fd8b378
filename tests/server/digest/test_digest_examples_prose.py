"""How prose is digested: whole prompts and answers with their expected summary and gist.

Each is written out, so that a reader can judge whether a model could work with it.
"""

from __future__ import annotations

from nplt_server.digest import levels_of


def _summary_and_gist(text: str) -> tuple[str, str]:
    levels = levels_of(text)
    assert levels is not None
    assert levels.live == (("", text),)
    return levels.to_plain_text("summary"), levels.to_plain_text("gist")


PROMPT = """\
Hi! Thanks for your help yesterday.

I run a small bakery in Ghent and keep our orders in a spreadsheet that has grown to 14,000 rows. \
Every Friday I copy the week's orders into /home/els/orders/week.csv and print labels from it. \
Since the update on 3 March the labels for the wholesale customers come out twice, but only when \
the order has more than one line. Retail customers are fine. I have tried the old version of the \
script on my laptop and it does the same there, so I believe it is the data and not the program.

The file has the columns customer, date, item, quantity and channel. The channel is "retail" or \
"wholesale". My nephew, who wrote the script, says that it groups by customer and date, and that \
this has never been a problem. He also changed the printer's driver around that time, and moved \
the folder to a network drive, which I did not think mattered. I have looked at some of the \
doubled labels and their dates look the same to me, but in some of them there seems to be a space \
after the date. I can't tell whether that was always so.

Could the space be the reason? If so, I would like a way to clean the file that does not change \
the other columns, that I can run myself every Friday, and that tells me how many rows it changed.

Let me know if you need the file. Thank you!
"""

ANSWER = """\
Sure! Here is how I would do it.

# Cleaning the dates

The space is the reason: the script groups by the exact text of the date, so `2026-03-06` and \
`2026-03-06 ` are two groups, and each group prints its own label.

## What to run

1. Make a copy of `/home/els/orders/week.csv`. Never work on the only one.
2. Save this as `clean_dates.py` next to it. It strips the date column and nothing else.
3. Run `python3 clean_dates.py week.csv` every Friday before you print.

```python
import csv
import sys
from pathlib import Path


def clean(rows: list[dict[str, str]]) -> int:
    changed = 0
    for row in rows:
        stripped = row["date"].strip()
        changed += stripped != row["date"]
        row["date"] = stripped
    return changed


def main() -> None:
    path = Path(sys.argv[1])
    with path.open(newline="") as source:
        reader = csv.DictReader(source)
        rows = list(reader)
        names = list(reader.fieldnames or [])
    print(clean(rows), "rows changed")
    with path.open("w", newline="") as target:
        writer = csv.DictWriter(target, names)
        writer.writeheader()
        writer.writerows(rows)
```

## Why it began on 3 March

Probably the network drive: the program that exports the file there pads the date to eleven \
characters. The printer's driver has nothing to do with it. You can see it when you open the file \
in a plain editor and look at the end of the date.

So the lasting repair is in the export, and the script above is the bridge until then. \
I hope this helps!
"""

ESSAY = """\
The town of Aalst lies on the Dender, some thirty kilometres from Brussels. It was given its \
rights in 1164, which makes it older than many of its larger neighbours. For most of its history \
it lived from cloth, then from shoes, and in the nineteenth century from cotton; the mills along \
the river are flats today.

What the town is known for, though, is its carnival. For three days in February the streets \
belong to the *Ajuinen*, the Onions, as the people of Aalst call themselves. Groups work for a \
whole year on floats that mock whatever the year has brought. Politicians fear it. The Sunday is \
for the great parade, the Monday for throwing onions from the belfry, and the Tuesday for the \
*Voil Jeanetten*, men in their mothers' old clothes with a birdcage and a smoked herring.

In 2010 UNESCO put the carnival on its list of intangible heritage. In 2019 it took it off again, \
at the request of the town itself, after a float with caricatures of Jews had been called \
antisemitic by many, and after the town had refused to apologise. It was the first time that \
anything had been removed from the list. The mayor said at the time that the people of Aalst had \
suffered "grotesque accusations".

The quarrel has not ended. Some groups have become more careful, others have made a sport of \
being less so. Sociologists from Ghent, who have followed the carnival since 2015, find that the \
young are on average stricter about it than the old, and that those who come from elsewhere to \
watch are the least strict of all.

Whether a feast that lives from mockery can agree on what is not to be mocked is therefore still \
open, and it is the town's own groups, not its critics, who will have to answer it.
"""


def test_a_prompt_keeps_the_problem_and_the_question() -> None:
    summary, gist = _summary_and_gist(PROMPT)
    assert summary == PROMPT_SUMMARY
    assert gist == PROMPT_GIST


PROMPT_SUMMARY = """\
[…]
I run a small bakery in Ghent and keep our orders in a spreadsheet that has grown to 14,000 \
rows. Every Friday I copy the week's orders into /home/els/orders/week.csv and print labels \
from it. Since the update on 3 March the labels for the wholesale customers come out twice, but \
only when the order has more than one line. Retail customers are fine. I have tried the old \
version of the script on my laptop and it does the same there, so I believe […]
The file has the columns customer, date, item, quantity and channel. The channel is "retail" or \
"wholesale". My nephew, who wrote the script, says that it groups by customer and date, and \
that this has never been a problem. He also changed the printer's driver around that time, and \
moved the folder to a network drive, which I did not think mattered. I have looked at some of \
the doubled labels and their dates look the same to me, but in some of them there seems to be a \
space after the date. I can't tell whether that was always so.

Could the space be the reason? If so, I would like a way to clean the file that does not change \
the other columns, that I can run myself every Friday, and that tells me how many rows it \
changed. […]"""

PROMPT_GIST = """\
I run a small bakery in Ghent and keep our orders in a spreadsheet that has grown to 14,000 \
rows. … Could the space be the reason? If so, I would like a way to clean the file that does \
not…"""


def test_an_answer_keeps_its_headings_steps_and_definitions() -> None:
    summary, gist = _summary_and_gist(ANSWER)
    assert summary == ANSWER_SUMMARY
    assert gist == ANSWER_GIST


ANSWER_SUMMARY = """\
[…]
# Cleaning the dates

The space is the reason: the script groups by the exact text of the date, so `2026-03-06` and \
`2026-03-06 ` are two groups, and each group prints its own label.

## What to run

1. Make a copy of `/home/els/orders/week.csv`. Never work on the only one.
2. Save this as `clean_dates.py` next to it. It strips the date column and nothing else.
3. Run `python3 clean_dates.py week.csv` every Friday before you print.

```python
import csv
import sys
from pathlib import Path

def clean(rows: list[dict[str, str]]) -> int:
    changed = 0
    for row in rows:
        stripped = row["date"].strip()
        changed += stripped != row["date"]
        row["date"] = stripped
    return changed

def main() -> None:
    path = Path(sys.argv[1])
    with path.open(newline="") as source: […]
```

## Why it began on 3 March

Probably the network drive: the program that exports the file there pads the date to eleven \
characters. The printer's driver has nothing to do with it. You can see it when you open the \
file in a plain editor and look at the end of the date.

So the lasting repair is in the export, and the script above is the bridge until then. […]"""

ANSWER_GIST = """\
# Cleaning the dates The space is the reason: the script groups by the exact text of the date, \
so `2026-03-06` and `2026-03-06 ` are two groups, and each group prints its own label."""


def test_an_essay_keeps_the_opening_sentence_of_each_paragraph() -> None:
    # This pins what the cutter does, not what would be best: paragraph two, on the carnival, is
    # the subject of the essay, yet only its opening sentence is left.
    summary, gist = _summary_and_gist(ESSAY)
    assert summary == ESSAY_SUMMARY
    assert gist == ESSAY_GIST


ESSAY_SUMMARY = """\
The town of Aalst lies on the Dender, some thirty kilometres from Brussels. It was given its \
rights in 1164, which makes it older than many of its larger neighbours. For most of its \
history it lived from cloth, then from shoes, and in the nineteenth century from cotton; the \
mills along the river are flats today.

What the town is known for, though, is its carnival. […]
In 2010 UNESCO put the carnival on its list of intangible heritage. In 2019 it took it off \
again, at the request of the town itself, after a float with caricatures of Jews had been \
called antisemitic by many, and after the town had refused to apologise. It was the first time \
that anything had been […] The mayor said at the time that the people of Aalst had \
suffered "grotesque accusations".

The quarrel has not ended. […] Sociologists from Ghent, who have followed the carnival since \
2015, find that the young are on average stricter about it than the old, and that those who \
come from elsewhere to watch are the least strict of all.

Whether a feast that lives from mockery can agree on what is not to be mocked is therefore \
still open, and it is the town's own groups, not its critics, who will have to answer it."""

ESSAY_GIST = """\
The town of Aalst lies on the Dender, some thirty kilometres from Brussels. … Whether a feast \
that lives from mockery can agree on what is not to be mocked is therefore still open, and it \
is…"""

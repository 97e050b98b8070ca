"""Templates of Wikipedia that show words, and the words that they show."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_NAME = 40  # characters of the name of an unknown template

# Templates that show one of their values: its number from 0 or, negative, from the last.
SHOWN_VALUE = {
    **dict.fromkeys(
        "nowrap nobr nobreak abbr small big smaller larger smallcaps sc em strong mvar math nihongo ill link-en lien "
        "angbr linktext vanchor flag quote blockquote cquote quotation 인용문 ruby 한자 루비 仮リンク".split(),
        0,
    ),
    **dict.fromkeys("lang langx llang langue zh-lang".split(), 1),
    **dict.fromkeys(["transl", "transliteration", "translit", "color", "font color"], -1),
}
QUOTATIONS = frozenset("quote blockquote cquote quotation".split())  # their first value may have a name
# Templates that show text before their values, which are joined.
SHOWN_PREFIX = {
    **dict.fromkeys("circa c. ca. ca".split(), "c. "),
    **dict.fromkeys("floruit fl.".split(), "fl. "),
    "as of": "As of ",
    **dict.fromkeys("unité nombre nb".split(), ""),
}
# Templates of an amount of money: the sign before their first value. A second value is a year.
CURRENCIES = (
    {"us$": "US$", "usd": "US$", "a$": "A$", "c$": "C$"}
    | dict.fromkeys("£ gbp".split(), "£")
    | dict.fromkeys("€ eur euro".split(), "€")
)
SYMBOLS = {"'": "'", "!": "|", "=": "=", "nbsp": " ", "spaces": " ", "·": " · "} | dict.fromkeys(
    ["ndash", "–", "snd", "spaced ndash", "mdash", "—", "snds", "mdashb"], " – "
)
SHOWN_FUNCTION = re.compile(r"\s*(?:formatnum|lc|uc|lcfirst|ucfirst)\s*:(.*)", re.DOTALL | re.IGNORECASE)
REFERENCE_TEMPLATE = re.compile(
    r"(?:cite|citation|sfn[pm]?|efn|refn?|rp?|cn|fact|anchor|coord|clear|clarify|who|when|which|by whom|dubious|update|"
    r"dead link|isbn|출처|각주|주석|要出典)\b.*|.* needed"
)
QUANTITY = re.compile(r"[-+−]?[\d.,/+]+")


def show_template(title: str, parameters: Mapping[str, str]) -> str | None:
    """Return the words that a template shows, "" for a reference, and None for a template that is not known.

    `parameters`: rendered values by name; the first one without a name is "1".

    >>> show_template("convert", {"1": "3", "2": "km"}), show_template("cite web", {}), show_template("chem", {})
    ('3 km', '', None)
    """
    name = title.replace("_", " ").lower()
    if name in QUOTATIONS and "1" not in parameters:
        return parameters.get("text", parameters.get("quote"))
    values = [value for key, value in parameters.items() if key.isdecimal()]
    if function := SHOWN_FUNCTION.fullmatch(title):
        return function[1].strip()
    if name in SYMBOLS:
        return SYMBOLS[name]
    if name in SHOWN_PREFIX:
        return (SHOWN_PREFIX[name] + " ".join(values)).strip()
    if name in CURRENCIES and values:
        return CURRENCIES[name] + values[0]
    if name in ("convert", "cvt"):
        unit = next((i for i, value in enumerate(values) if i and not _is_quantity(value)), len(values))
        return " ".join(values[: unit + 1])
    if name in ("frac", "sfrac", "fraction"):
        return " ".join([*values[:-2], "/".join(values[-2:] if len(values) > 1 else ["1", *values])])
    if name == "val":
        return " ".join([*values[:1], *(parameters[key] for key in ("u", "ul") if key in parameters)])
    if name.startswith(("lang-", "script/")):
        return values[0] if values else None
    if name in SHOWN_VALUE:
        number = SHOWN_VALUE[name]
        return values[number] if number < len(values) and values else None
    return "" if REFERENCE_TEMPLATE.fullmatch(name) else None


def name_template(title: str) -> str:
    """Return the name of a template for people: of a parser function without its arguments.

    >>> name_template("Pop_density"), name_template("#if: {{{name}}}")
    ('pop density', '#if')
    """
    name = title.replace("_", " ").strip().lower()
    return (name.partition(":")[0] if name.startswith("#") else name)[:MAX_NAME]


def _is_quantity(value: str) -> bool:
    return QUANTITY.fullmatch(value) is not None or value in ("to", "and", "by", "x", "or", "-", "–", "×", "+/-", "±")

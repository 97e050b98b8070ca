"""Layouts of questions that differ from SQuAD's tree: objects of MRQA and of NewsQA, converted to SQuAD's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertwright.tables.json_documents import as_object, member

Node = dict[str, Any]  # an object of the tree
Head = Sequence[Node]  # the first object of each level


def is_mrqa(head: Head) -> bool:
    return any("detected_answers" in node for node in head)


def convert_mrqa(node: Node, location: str, left_out: list[str]) -> Node:
    """Return a question with the answers that its authors found, which have a start, and the others."""
    if "detected_answers" not in node:
        return node
    placed = []
    for answer in member(node, "detected_answers", list, location):
        spans = member({"char_spans": []} | as_object(answer, location), "char_spans", list, location)
        start = spans[0][0] if spans and isinstance(spans[0], list) and spans[0] else None
        placed.append({"text": answer.get("text"), "start": start})
    texts = {answer["text"] for answer in placed}
    given = node.get("answers")
    others = [text for text in (given if isinstance(given, list) else []) if text not in texts]
    return node | {"answers": placed + others}


def is_newsqa(head: Head) -> bool:
    return any(map(_is_story, head))


def _is_story(node: Node) -> bool:
    return isinstance(node.get("text"), str) and isinstance(node.get("questions"), list) and "story" not in node


def convert_newsqa(node: Node, location: str, left_out: list[str]) -> Node:
    """Return a story as a paragraph: the answer is what most annotators chose.

    Questions that they found bad, or split on, are added to `left_out`.
    """
    if not _is_story(node):
        return node
    text, qas = node["text"], []
    for number, question in enumerate(node["questions"]):
        consensus = question.get("consensus") if isinstance(question, dict) else None
        if not isinstance(consensus, dict) or "q" not in question or consensus.get("badQuestion"):
            left_out.append(f"{location}, question {number + 1}")
            continue
        start, end = consensus.get("s"), consensus.get("e")
        has_answer = type(start) is int and type(end) is int
        answers = [{"text": text[start:end].rstrip(), "start": start}] if has_answer else []
        identity = f"{node.get('storyId', location)}#{number}"
        qas.append({"id": identity, "question": question["q"], "answers": answers, "is_impossible": not has_answer})
    return {"context": text, "qas": qas}

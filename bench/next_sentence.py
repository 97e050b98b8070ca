"""What next-sentence prediction answers where it can be learned: toy stories, each about one topic.

    python bench/next_sentence.py --work WORK [--steps 600]

In a story all sentences are about the same animal, craftsman or vehicle, so that the second sentence says whether it
follows. A `tiny` BERT is pre-trained with both tasks; then the command is run as a user types it. On real text of this
size, the task is not learned: its accuracy stays near 50 % (docs/experiments.md).
"""

from __future__ import annotations

import random
import shlex
import subprocess
import sys
from pathlib import Path

from environment import commit, describe_machine, make_parser, use_threads

TOPICS = {
    "bear": ("forest", "honey", "cave"), "pilot": ("airport", "plane", "sky"), "baker": ("shop", "bread", "oven"),
    "sailor": ("harbour", "ship", "sea"), "teacher": ("school", "book", "desk"), "farmer": ("field", "wheat", "barn"),
    "doctor": ("hospital", "medicine", "clinic"), "tram": ("street", "ticket", "station"),
}  # fmt: skip
FORMS = (
    "The {0} is in the {1}.", "The {0} needs the {2}.", "We saw the {2} near the {3}.", "The {3} of the {0} is old.",
    "In the {1} there is a {3}.", "The {0} left the {1} with the {2}.",
)  # fmt: skip
ASKED = ("The bear is in the forest.", "We saw the honey near the cave.", "The pilot needs the plane.",
         "In the airport there is a sky.")  # fmt: skip


def write_stories(path: Path, stories: int) -> None:
    """Write stories of six sentences, in random order."""
    rng = random.Random(0)
    texts = []
    for _ in range(stories):
        name, words = rng.choice([*TOPICS.items()])
        texts.append("\n".join(form.format(name, *words) for form in rng.sample(FORMS, len(FORMS))))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    chosen = parser.parse_args()
    use_threads(1)
    work: Path = chosen.work
    work.mkdir(parents=True)
    write_stories(work / "stories.txt", 2_000)
    print(f"{describe_machine(1)}; commit {commit()}")
    options = f"--steps {chosen.steps} --max-length 32 --max-positions 32 --long-ratio 0 --batch-size 32"
    for command in (
        f"vocabulary {work}/stories.txt --size 200 --min-frequency 2 --output {work}/vocabulary",
        f"prepare {work}/stories.txt --vocabulary {work}/vocabulary --store {work}/store --held-out 0.05",
        f"pretrain --size tiny --store {work}/store --run {work}/run {options} --learning-rate 2e-3 --bias-correction "
        "--warmup-ratio 0.05 --hidden-dropout 0 --attention-dropout 0 --device cpu --threads 1",
        f"next-sentence {work}/run {shlex.join(ASKED)}",
    ):
        print(f"$ bertwright {command}", flush=True)
        subprocess.run([sys.executable, "-m", "bertwright", *shlex.split(command)], check=True)


if __name__ == "__main__":
    main()

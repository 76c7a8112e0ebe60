"""Learning from a teacher beside the labels: its probabilities, or its answers (Touvron et al., 2021, Section 4)."""

from dataclasses import dataclass

from vitrail.config.check import Checked, needs, positive, share, text


def _teacher(name: str, value: object) -> str:
    return text(name, value).strip()


@dataclass(frozen=True, kw_only=True)
class SoftDistillation(Checked, word="soft"):
    """The teacher's probabilities, of logits over a temperature (Hinton et al., 2015)."""

    teacher: str | None = needs(_teacher, None)  # a checkpoint
    temperature: float = needs(positive, 3.0)
    share: float = needs(share, 0.9)  # of the loss that is the teacher's; the labels have the rest
    token: bool = False  # a second token and classifier learn from the teacher alone


@dataclass(frozen=True, kw_only=True)
class HardDistillation(Checked, word="hard"):
    """The teacher's answer, as if it were a label."""

    teacher: str | None = needs(_teacher, None)
    share: float = needs(share, 0.5)
    token: bool = False


Distillation = SoftDistillation | HardDistillation

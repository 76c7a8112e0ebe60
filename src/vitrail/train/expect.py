"""What to expect of a run before it starts: which way of adapting it takes, from images a class and the checkpoint."""

from vitrail.config.objective import Full, HeadAlone, Labels, LastBlocks, LoRA, Norms, word_of
from vitrail.data.sources.remote import RemoteShards
from vitrail.train.task import Task, training_split

FEW, SOME = 10, 100  # images a class: under the first, weights of a checkpoint overfit; from the second on, all learn
LARGE = 50_000_000  # parameters from which on memory and time are what decides
WHY = {
    HeadAlone: "features stay as they are, and only the classifier learns: the least time and memory, and the least "
    "that images can teach",
    Norms: "features are scaled and moved, not made anew: little memory for the optimizer, nothing to add afterwards",
    LastBlocks: "what is general in the lower blocks stays as it is",
    LoRA: "every block learns a change of low rank: less memory, a small file, and less overfitting than all weights",
}


def expect(task: Task) -> list[str]:
    """Say which way of adapting a run takes and why, and what else fits; nothing of fresh models and streams."""
    training, source = task.training, training_split(task.splits)
    if task.start is None or not isinstance(training.objective, Labels) or isinstance(source, RemoteShards):
        return []
    classes = max(len(source.class_names), 1)
    each = len(source) / (1 if source.targets is not None else classes)
    of = f"{each:,.0f} images" + ("" if source.targets is not None else " a class")
    size = task.start.parameters
    known = f"{of} and a checkpoint of {size / 1e6:,.1f} million weights"
    if not isinstance(training.adapt, Full):
        return [f"adapt={word_of(training.adapt)}, as asked, with {known}: {WHY[type(training.adapt)]}"]
    if each < FEW:
        why = "few enough to overfit: adapt=head is a matter of seconds to compare with, adapt=lora is between"
    elif each < SOME:
        why = "enough for all weights to learn, with crops and a small rate"
        why += "; adapt=lora is near it for less memory" if size >= LARGE else ""
    else:
        why = "many: all weights learn from them, and what stays as it was is worth less"
    return [f"adapt=full, all weights: {known} are {why}"]

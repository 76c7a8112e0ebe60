"""Runs whose processes come and go: torchrun begins the others anew, and they go on from the last checkpoint."""

from collections.abc import Mapping

from vitrail.errors import ConfigError

RESTARTS, RUN = "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"
# Where it is not 1 no machine can join: torchrun does not say again where to meet.
SHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
HOW = f"{SHARED}=1 torchrun --nnodes 1:4 --nproc-per-node 8 --max-restarts 100 --rdzv-backend c10d"
HOW += " --rdzv-endpoint HOST:29400"


def check_elastic(environment: Mapping[str, str]) -> str:
    """Refuse where nobody would begin processes anew; say how often somebody does."""
    if RUN not in environment:
        raise ConfigError(f"elastic needs torchrun, which begins processes anew: {HOW} -m vitrail ...")
    count = environment.get(RESTARTS, "0")
    if not count.isdigit() or not int(count):
        raise ConfigError(f"elastic needs restarts, of which torchrun makes none by default. Give them: {HOW} ...")
    done = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    joins = "" if environment.get(SHARED) == "1" else f"; no machine can join, as {SHARED}=1 is not set"
    return f"elastic: {environment.get('WORLD_SIZE', '1')} processes, begun anew {done} of {count} times{joins}"

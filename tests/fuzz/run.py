"""Fuzzes for as long as you like: `python tests/fuzz/run.py --minutes 10 [TARGET ...]`.

The time is shared out among the targets, which run one after another, each in a process of its own: a crash in native
code is noticed too. With `--engine atheris` (`pip install atheris`, Linux) the inputs are guided by the coverage of
capsnmt; otherwise Hypothesis makes them, from a new seed every few hundred. What failed is printed as Hypothesis
prints it, with the line that reproduces it. Exits with 1 if anything did.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

EXAMPLES_PER_SEED = 500
MOST_BYTES = 16 << 30  # of address space, much of which torch only reserves
GRACE_S = 120  # for starting, and for shrinking what failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all of them together")
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        {"hypothesis": by_hypothesis, "atheris": by_atheris}[given.engine](given.child, 60 * given.minutes)
        return 0
    from fuzz_targets import TARGETS

    unknown = set(given.targets) - set(TARGETS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known targets: {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    return max([run_child(name, given.engine, given.minutes / len(names)) for name in names])


def run_child(name: str, engine: str, minutes: float) -> int:
    """Runs one target, shows what it did, and returns 0 if it found nothing."""
    command = [sys.executable, __file__, "--child", name, "--engine", engine, "--minutes", str(minutes)]
    with tempfile.TemporaryFile() as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, timeout=60 * minutes + GRACE_S).returncode
        except subprocess.TimeoutExpired:
            code = "no end"
        output.seek(0)
        text = output.read().decode("utf-8", errors="replace")
    counts = re.findall(r"(?:executions: |number_of_executed_units: )(\d+)", text)
    print(f"{name}: {counts[-1] if counts else '?'} executions, {'nothing found' if code == 0 else f'FAILED ({code})'}")
    if code != 0:
        print(text[-20_000:])
    sys.stdout.flush()
    return int(code != 0)


def by_hypothesis(name: str, seconds: float) -> None:
    from hypothesis import HealthCheck, seed, settings

    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    end_s = time.monotonic() + seconds
    from fuzz_targets import TARGETS

    target = TARGETS[name]
    inner, executions = target.hypothesis.inner_test, 0

    def counted(**arguments: object) -> None:
        nonlocal executions
        executions += 1
        inner(**arguments)

    target.hypothesis.inner_test = counted
    every_few_hundred = settings(
        max_examples=EXAMPLES_PER_SEED,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )(target)
    first_seed = int.from_bytes(os.urandom(4), "little")
    round_ = 0
    while time.monotonic() < end_s:
        print(f"seed {first_seed + round_}, executions: {executions}", flush=True)
        seed(first_seed + round_)(every_few_hundred)()
        round_ += 1
    print(f"executions: {executions}", flush=True)


def by_atheris(name: str, seconds: float) -> None:
    import atheris

    with atheris.instrument_imports(include=["capsnmt", "yaml"]):
        from fuzz_targets import TARGETS
    from hypothesis import HealthCheck, settings

    target = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))(TARGETS[name])
    options = [f"-max_total_time={int(seconds)}", "-print_final_stats=1", "-rss_limit_mb=4096", "-timeout=60"]
    options.append(f"-artifact_prefix={tempfile.gettempdir()}/capsnmt-fuzz-{name}-")
    atheris.Setup([sys.argv[0], *options, "-max_len=4096", "-verbosity=0"], target.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main())

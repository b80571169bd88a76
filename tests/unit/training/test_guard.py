"""The lock, the clean stop and the stop on divergence."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from capsnmt.config import TrainingConfig
from capsnmt.data.batches import pad_batch
from capsnmt.errors import CapsNMTError
from capsnmt.text.subwords import EOS
from capsnmt.training.distributed import ALONE
from capsnmt.training.guard import DivergenceGuard, folder_lock, stop_on_signals
from capsnmt.training.loop import build_optimiser, update


def test_two_runs_cannot_share_a_folder(tmp_path):
    with folder_lock(tmp_path), pytest.raises(CapsNMTError, match="another run"), folder_lock(tmp_path):
        pass
    with folder_lock(tmp_path):  # free again
        pass


def test_a_killed_holder_frees_the_lock(tmp_path):
    code = (
        "import sys, time, pathlib\nfrom capsnmt.training.guard import folder_lock\n"
        "with folder_lock(pathlib.Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(CapsNMTError, match="another run"), folder_lock(tmp_path):
            pass
        threading.Timer(0.1, holder.kill).start()
        with folder_lock(tmp_path, wait_s=30.0):  # as a rank that torchrun has started again
            pass


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_noted_and_then_obeyed(number, code):
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt if code == 130 else SystemExit) as ending:
            stop.leave()
        if code != 130:
            assert ending.value.code == code
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_does_not_wait():
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_single_bad_updates_pass_and_a_row_of_them_stops():
    guard = DivergenceGuard()
    for step in range(100):
        assert guard.saw(math.nan if step % 2 else 1.0, step) is bool(step % 2)
    with pytest.raises(CapsNMTError, match=r"learning_rate.*warmup_steps"):
        any(not guard.saw(math.inf, step) for step in range(100))


def test_an_update_without_a_finite_gradient_changes_nothing(system, tiny_model):
    settings = TrainingConfig(steps=10, learning_rate=0.01, warmup_steps=1)
    model = tiny_model(system).train()
    optimiser = build_optimiser(model, settings)
    batch = pad_batch([[5, 6, EOS]], [[20, 21, EOS]])
    update(model, optimiser, [batch], 0.01, settings, ALONE)
    hook = model.target_embedding.weight.register_hook(lambda gradient: gradient * math.nan)
    before = [parameter.clone() for parameter in model.parameters()]
    moments = [optimiser.state[parameter]["exp_avg"].clone() for parameter in model.parameters()]
    *_, norm = update(model, optimiser, [batch], 0.01, settings, ALONE)
    assert not math.isfinite(norm)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    after = [optimiser.state[parameter]["exp_avg"] for parameter in model.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
    hook.remove()
    *_, norm = update(model, optimiser, [batch], 0.01, settings, ALONE)
    assert math.isfinite(norm)

"""Joules of a training, by counters like those of the kernel, which Zeus reads."""

import math

import pytest
import torch

from siftback.lab import length
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.length import PhaseClock, energy_monitor
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

CPU = torch.device("cpu")
JOULE = 10**6  # in the unit of the counters
START = {"package-0": 7 * JOULE, "dram": 3 * JOULE}


class Counters:
    """A folder as the kernel has it, of a processor and its memory."""

    def __init__(self, folder):
        self._paths = {"package-0": folder / "intel-rapl:0"}
        self._paths["dram"] = self._paths["package-0"] / "intel-rapl:0:0"
        for name, path in self._paths.items():
            path.mkdir(parents=True)
            (path / "name").write_text(f"{name}\n")
            (path / "max_energy_range_uj").write_text(f"{10**12}\n")
            (path / "energy_uj").write_text(f"{START[name]}\n")

    def add(self, joules, memory=0):
        for name, more in (("package-0", joules), ("dram", memory)):
            path = self._paths[name] / "energy_uj"
            path.write_text(f"{int(path.read_text()) + round(more * JOULE)}\n")


@pytest.fixture
def counters(tmp_path, monkeypatch):
    rapl = pytest.importorskip("zeus.device.cpu.rapl", reason="zeus is not installed")
    folder = tmp_path / "rapl"
    monkeypatch.setattr(length, "RAPL", folder)
    monkeypatch.setattr(rapl, "RAPL_DIR", str(folder))
    monkeypatch.setattr("zeus.device.cpu._cpus", None)
    rapl.rapl_is_available.cache_clear()
    yield Counters(folder)
    rapl.rapl_is_available.cache_clear()


def test_joules_are_those_of_the_time_that_is_counted(counters):
    clock = PhaseClock(CPU)
    counters.add(100)  # before it starts
    clock.start("loading")
    counters.add(5, memory=0.5)
    with clock.paused():
        counters.add(1000, memory=1000)
        with clock.paused():  # within a pause nothing is counted
            pass
        assert clock.joules == pytest.approx({"cpu": 5, "dram": 0.5})
    counters.add(2)
    with clock.paused():
        pass
    assert clock.joules == pytest.approx({"cpu": 7, "dram": 0.5})


def test_a_record_has_them_and_a_resumed_run_goes_on_counting(counters, tmp_path):
    class Spends(Reporter):
        def __init__(self, stop):
            self.stop = stop

        def update(self, done):
            counters.add(1)
            if done > self.stop:
                raise KeyboardInterrupt

    settings = Settings(data="digits", model="mlp", epochs=2, batch_size=128, evaluations=4)
    plan = Plan(settings, ["traditional"], [0.5], [0], matched=False)
    (whole,) = compare(plan, tmp_path / "whole", Spends(stop=1)).runs
    assert whole.joules["cpu"] == pytest.approx(whole.steps)
    often = CheckpointPolicy(share=1e-6, seconds=math.inf)  # after each step
    with pytest.raises(KeyboardInterrupt):
        compare(plan, tmp_path / "resumed", Spends(stop=0.6), policy=often)
    compare(plan, tmp_path / "resumed", Spends(stop=1), "resume", policy=often)
    (resumed,) = Comparison.read(tmp_path / "resumed").runs
    assert resumed.joules == pytest.approx(whole.joules)


def test_without_a_counter_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setattr(length, "RAPL", tmp_path / "missing")
    assert energy_monitor(CPU) is None
    clock = PhaseClock(CPU)
    clock.start("loading")
    with clock.paused():
        assert clock.joules == {}

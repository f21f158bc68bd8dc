"""What counts as a spike, as an announcement and as a false alarm; how limits are fixed."""

from __future__ import annotations

import torch

from quadform.experiments import spikes
from quadform.experiments.spikes import DETECTORS, _counted, _fixed, _graded


def test_a_spike_is_far_above_the_steps_before_for_two_steps() -> None:
    calm = [1.0 + 0.01 * (i % 5) for i in range(100)]
    assert spikes.spikes(calm) == []
    assert spikes.spikes([*calm, 4.0, *calm]) == []  # one step alone
    assert spikes.spikes([*calm, 4.0, 5.0, 3.5, *calm]) == [101]
    assert spikes.spikes([*calm, 2.5, 2.5, *calm]) == []  # not three times as much
    assert spikes.spikes([0.01] * 50 + [0.04] * 5) == []  # small in itself
    assert spikes.spikes([*calm, *[float("nan")] * 5]) == [101]


def table(spikes: list[int], **scores: dict[int, float]) -> dict[str, torch.Tensor]:
    """A run of 300 steps with readings every 10: the scores named, at the steps named, else 0."""
    steps = torch.arange(10.0, 301.0, 10.0)
    made = {
        name: torch.tensor([own.get(int(s), 0.0) for s in steps], dtype=torch.float64) for name, own in scores.items()
    }
    zeros = {n: torch.zeros(30, dtype=torch.float64) for used in DETECTORS.values() for n in used}
    return {"steps": steps, "spikes": torch.tensor(spikes)} | zeros | made


def test_alarms_are_judged_by_when_they_fall() -> None:
    """In time, too late, too early, while it lasts, and in a run without a spike, where one alarm stands twice."""
    limit = {"rate": 1.0}
    for at, announced, false in ((180, [True], 0), (190, [False], 0), (90, [False], 1), (230, [False], 0)):
        told, quiet, wrong, _ = _counted([table([200], rate={at: 2.0})], limit)
        assert (told, quiet, wrong) == (announced, 9 + 5, false)
    told, quiet, wrong, onsets = _counted([table([], rate={100: 2.0, 110: 3.0})], limit)
    assert (told, quiet, wrong, onsets) == ([], 30, 2, 1)
    assert _graded([table([], rate={100: 2.0, 110: 3.0})], limit)["per 1,000 steps"].value == 1000 / 300


def test_limits_announce_most_at_few_false_alarms() -> None:
    """A score of 5 stands before a spike, 3 in calm: a limit between them is found; noise alone is switched off."""
    calm = dict.fromkeys(range(10, 301, 40), 3.0)
    runs = [table([200], rate={150: 5.0}), table([], rate=calm, logit=dict.fromkeys(range(10, 301, 10), 9.0))]
    limit = _fixed(runs, DETECTORS["monitor"])
    assert 3.0 <= limit["rate"] < 5.0
    assert limit["logit"] >= 9.0
    assert _graded(runs, limit)["announced"].value == 1

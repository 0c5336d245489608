"""How much memory panels plan: copies and parts of sums of a wide network are not all there at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import quabla as qb
from quabla.backends.reference import build as reference
from quabla.lowering import panels
from quabla.lowering.grouping import Limits
from quabla.lowering.loops import Panel
from quabla_cpu import lower
from quabla_cpu.backend import build
from tests.cpu.panel_programs import SMALL, lowered, network, panels_of, tensor

pytestmark = pytest.mark.cpu

MB = 1 << 20


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = qb.get_num_threads()
    yield qb.set_num_threads
    qb.set_num_threads(before)


def planned(rows: int, widths: tuple[int, ...]) -> Any:
    """The plan of a training step; nothing is compiled."""
    step, arrays = network(rows, widths)
    return lowered(step, *arrays).plan


@pytest.mark.parametrize("width", [1000, 2048])
def test_copies_of_wide_weights_are_not_all_there_at_once(width: int) -> None:
    """Three layers: two copies of each weight but one, and one of each of three arrays of rows, if all were."""
    rows = 256
    plan = planned(rows, (width,) * 4)
    weight, array = 8 * width**2, 8 * width * rows
    assert plan.workspace < 3 * weight + 10 * array
    assert len({s.rows for s in plan.steps if isinstance(s, Panel)}) > 1


def test_cotangents_of_wide_layers_are_used_up_before_all_of_them_are_made() -> None:
    """Kept for the way back are a layer's value and slope; kept for the gradients of weights not every cotangent."""
    rows, width, layers = 4096, 1000, 6
    plan = planned(rows, (width,) * (layers + 1))
    array = 8 * rows * width
    assert plan.workspace < (2 * layers + 3) * array


def test_rows_are_those_of_the_arrays_and_not_a_part_of_them_that_a_weight_has_too() -> None:
    plan = planned(4096, (64, 256, 256, 256))
    (panel,) = [s for s in plan.steps if isinstance(s, Panel) and s.parts]
    assert panel.rows == 4096
    assert panel.private_nbytes < 2 * Limits().cache
    assert plan.workspace < 24 * MB


def test_parts_of_sums_do_not_outweigh_the_rows() -> None:
    """Where a weight is so large that its parts would take more than the rows, its gradient is no sum of parts."""
    for rows, width, layers in ((512, 256, 24), (1024, 128, 60), (4096, 256, 16)):
        plan = planned(rows, (width,) * (layers + 1))
        parts = max(
            sum(b.size * b.dtype.itemsize for b in p.parts) for p in plan.steps if isinstance(p, Panel)
        )
        assert parts < 2 * 8 * rows * width * layers
        assert plan.workspace < (3 * layers + 8) * 8 * rows * width


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kept", [0, 100_000, 300_000])
def test_values_and_bits_wherever_a_panel_ends(
    threads: Callable[[int], None], kept: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = SMALL._replace(kept=kept, close=2048, copied=1)
    monkeypatch.setattr(lower, "in_panels", partial(panels.in_panels, limits=limits))
    n = 1024 // np.dtype(dtype).itemsize
    step, arrays = network(97, (n, n + 8, n, n + 8), dtype)
    low = lowered(step, *arrays)
    executable, tensors = build(low), [tensor(x) for x in arrays]
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append([x.numpy() for x in executable(*tensors)])
    for got in results[1:]:
        assert [x.tobytes() for x in got] == [x.tobytes() for x in results[0]]
    eps = np.finfo(dtype).eps
    for x, want in zip(results[0], reference(low.program)(*tensors), strict=True):
        scale = max(1.0, np.abs(want.numpy()).max())
        np.testing.assert_allclose(x, want.numpy(), rtol=2000 * eps, atol=2000 * eps * scale)
    assert len(panels_of(low)) > (4 if kept < 200_000 else 1)

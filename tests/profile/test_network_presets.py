"""The network presets against the paper's ranges, and the ratios' shorthand."""

from pathlib import Path

import msgspec
import pytest
from omegaconf import OmegaConf

from crosspipe.campaign.config import NetworkConfig
from crosspipe.errors import UsageError

CONF = Path(__file__).parents[2] / "conf" / "network"


def network(name: str, *overrides: str) -> NetworkConfig:
    config = OmegaConf.merge(OmegaConf.load(CONF / f"{name}.yaml"), OmegaConf.from_dotlist(list(overrides)))
    return msgspec.convert(OmegaConf.to_container(config, resolve=True), NetworkConfig)


@pytest.mark.parametrize(
    ("name", "latency_ms", "bandwidth_gbit_per_s"),
    [
        ("same_campus", (0, 0.01), (800, 800)),
        ("cross_campus", (0.01, 0.2), (200, 200)),
        ("same_region", (1, 1), (11.3, 11.3)),
        ("cross_region", (30, 100), (1.4, 5)),
    ],
)
def test_presets_lie_in_the_published_ranges(
    name: str, latency_ms: tuple[float, float], bandwidth_gbit_per_s: tuple[float, float]
) -> None:
    preset = network(name)
    assert preset.name == name
    assert preset.latency_ms is not None
    assert preset.bandwidth_gbit_per_s is not None
    assert latency_ms[0] <= preset.latency_ms <= latency_ms[1]
    assert bandwidth_gbit_per_s[0] <= preset.bandwidth_gbit_per_s <= bandwidth_gbit_per_s[1]


def test_one_delay_sets_both_ratios_and_each_can_be_set_alone() -> None:
    assert network("ratios").ratios() == (0, 0)
    assert network("ratios", "delay=[1,0.25]").ratios() == (1, 0.25)
    assert network("ratios", "latency_ratio=2").ratios() == (2, 0)


def test_measured_injects_nothing() -> None:
    assert network("measured").ratios() is None
    assert network("measured").latency_ms is None


def test_a_shaped_link_is_measured_and_called_so() -> None:
    shaped = network("wan")
    assert (shaped.kind, shaped.origin) == ("measured", "shaped TCP")
    assert network("measured").origin is None
    with pytest.raises(UsageError, match=r"network.origin = 'shaped TCP': an injected delay is emulated"):
        NetworkConfig(kind="injected", latency_ms=20.0, origin="shaped TCP")

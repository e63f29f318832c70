import pytest
from torch import nn

from lucid.apis.region_names import make_regions
from lucid.capture import LossRegion, ModuleRegion, StepRegion, TargetError


class Model(nn.Module):
    branch_free = ('network', 'criterion')


@pytest.mark.parametrize(
    ('name', 'kind', 'compiled'),
    [
        ('step', StepRegion, ()),
        ('step:compiled', StepRegion, ('network', 'criterion')),
        ('step:compiled=criterion', StepRegion, ('criterion',)),
        ('step:compiled=network,criterion', StepRegion, ('network', 'criterion')),
        ('loss', LossRegion, ()),
        ('loss:compiled', LossRegion, ('criterion',)),
        ('network.head', ModuleRegion, ()),
        ('network.head:compiled', ModuleRegion, ('network.head',)),
    ],
)
def test_a_name_says_what_is_captured_and_what_is_compiled(name: str, kind: type, compiled: tuple[str, ...]) -> None:
    (region,) = make_regions(name)
    assert type(region) is kind
    assert tuple(region.compiled_paths(Model())) == compiled


def test_names_are_joined_by_a_plus() -> None:
    assert [type(region) for region in make_regions('network:compiled+loss')] == [ModuleRegion, LossRegion]


def test_only_the_step_has_parts_to_compile() -> None:
    (region,) = make_regions('network:compiled=head')
    with pytest.raises(TargetError, match="the model has no module 'network:compiled=head'"):
        region.activate(Model())

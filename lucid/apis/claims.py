"""The claims that the docs make about capture, and whether the evidence for each still stands."""

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from lucid.apis.code_digest import code_of

# The code of this file, which runs nothing that is claimed: it says what is wanted, and judges. A further claim, or
# another wording, leaves the records of the others alone.
_JUDGE = 'apis/claims.py'
BEGIN = '<!-- claims: written by tools/prove.py --write -->'
END = '<!-- end of claims -->'


class Claim(NamedTuple):
    """What is claimed, and which runs on a card it takes.

    tests:      files whose tests marked ``cuda`` must pass, twice
    parity:     configs that must train the same captured and eager, in windows of one and two micro-batches
    regions:    what is captured there, each by itself
    precisions: of those runs
    timed:      whether the host time of its calls is measured
    """

    text: str
    tests: tuple[str, ...]
    parity: tuple[str, ...]
    regions: tuple[str, ...] = ('network',)
    precisions: tuple[str, ...] = ('fp32', 'bf16', 'fp16')
    timed: bool = False

    def parts(self) -> list[str]:
        """The names of the runs."""
        parity = [parity_name(*run) for run in product(self.parity, self.regions, self.precisions)]
        return [*map(tests_name, self.tests), *parity, *(['host-time'] if self.timed else [])]


def tests_name(path: str) -> str:
    """The name of the tests of a file among the parts of a claim."""
    return f'tests {path}'


def parity_name(config: str, region: str, precision: str) -> str:
    """The name of a parity run among the parts of a claim."""
    return f'parity {config} {region} {precision}'


def _task(name: str) -> Claim:
    return Claim(
        f'task {name}: network and step regions train bit for bit as eager does, under accumulation too',
        ('tests/capture/test_tasks.py',),
        (f'configs/yolo/{name}_n_shapes.py',),
        ('network', 'step'),
        ('fp32', 'bf16'),
    )


RUNS = ('tests/apis/test_parity.py', 'tests/apis/test_train_captured.py')
CONFIGS = ('configs/yolo_capture.py', 'configs/yolo/detect_n_bccd.py')
CLAIMS: Mapping[str, Claim] = {
    'network': Claim(
        'a module region, such as the network, trains bit for bit as eager does',
        (
            *RUNS,
            'tests/capture/test_gradients.py',
            'tests/capture/test_guards.py',
            'tests/capture/test_kept.py',
            'tests/capture/test_layout.py',
            'tests/capture/test_leaves.py',
            'tests/capture/test_not_finite.py',
            'tests/capture/test_precision.py',
            'tests/capture/test_process.py',
            'tests/capture/test_routes.py',
            'tests/capture/test_state.py',
            'tests/engine/hooks/test_capture_hook.py',
            'tests/apis/test_pool_table.py',
        ),
        CONFIGS,
        timed=True,
    ),
    'loss': Claim(
        'the loss region, beside the network, trains bit for bit as eager does',
        (*RUNS, 'tests/capture/test_loss_region.py'),
        CONFIGS,
        ('network+loss',),
    ),
    'step': Claim(
        'the step region trains bit for bit as eager does, with rate, momentum and branch weight moving',
        (
            *RUNS,
            'tests/capture/test_step_region.py',
            'tests/capture/test_step_state.py',
            'tests/capture/test_step_faults.py',
        ),
        CONFIGS,
        ('step',),
    ),
    **{name: _task(name) for name in ('segment', 'oriented', 'keypoint')},
    'fast': Claim(
        'the step of yolo_capture_fast trains bit for bit as the same words do in eager',
        (
            'tests/test_streams.py',
            'tests/capture/test_streams.py',
            'tests/capture/test_fused_norm.py',
            'tests/capture/test_casting.py',
            'tests/models/test_fused_norm.py',
        ),
        ('configs/yolo_capture_fast.py',),
        ('step:compiled=criterion',),
    ),
    'evaluation': Claim(
        'evaluation finds bit for bit what eager does, for every task, in the memory of the training beside it',
        (
            'tests/apis/test_train_captured.py',
            'tests/capture/test_eval_region.py',
            'tests/capture/test_step_region.py',
            'tests/engine/hooks/test_capture_evaluation.py',
            'tests/engine/test_predictions.py',
        ),
        (),
    ),
}


class Status(NamedTuple):
    """Whether a claim is proven; ``why`` says what is missing, or what the evidence was."""

    proven: bool
    why: str


def status(name: str, folder: Path) -> Status:
    """Judge one claim by its record in ``folder``.

    Proven is a claim all of whose parts are there and passed, on code that computes what today's computes.
    """
    claim, path = CLAIMS[name], folder / f'{name}.json'
    parts: dict[str, Any] = json.loads(path.read_text())['parts'] if path.is_file() else {}
    if not parts:
        return Status(False, 'no record')
    for part in parts.values():
        code = {path: digest for path, digest in part['code'].items() if path != _JUDGE}
        if code_of(list(code)) != code:
            return Status(False, 'the code has changed since the record')
    if not all(part['passed'] for part in parts.values()):
        return Status(False, 'a run of the record failed')
    if set(claim.parts()) - parts.keys():
        return Status(False, 'a part of the record is missing')
    return Status(True, _summary(name, parts))


def _summary(name: str, parts: Mapping[str, Any]) -> str:
    ran = [part for key, part in parts.items() if key.startswith('tests')]
    where = ran[0]['environment']
    dates = sorted({part['date'] for part in parts.values()})
    passed = sum(part['result'][0]['passed'] for part in ran)
    runs = [part['result'] for key, part in parts.items() if key.startswith('parity')]
    rows = sum(len(run['rows']) for run in runs)
    trained = f'; {rows} parity runs of at least {min(run["steps"] for run in runs)} steps equal' if runs else ''
    beyond = parts['host-time']['result']['forward']['beyond'] if CLAIMS[name].timed else None
    timed = '' if beyond is None else f'; a replayed forward costs the host {beyond} ms beyond its launch'
    return (
        f'[record](evidence/{name}.json) of {dates[-1]}: {", ".join(where["cards"])}, torch {where["torch"]}, Python '
        f'{where["python"]}; {passed} tests passed, twice{trained}{timed}'
    )


def claims_table(folder: Path) -> str:
    """The table for the docs, as Markdown."""
    lines = ['| claim | status | |', '|---|---|---|']
    for name, claim in CLAIMS.items():
        proven, why = status(name, folder)
        lines.append(f'| {claim.text} | {"proven" if proven else "*unproven*"} | {why} |')
    return '\n'.join(lines)


def write_table(document: Path, folder: Path) -> None:
    """Put today's table into a document, between its two marks.

    Args:
        document: The Markdown file.
        folder: Of the records.

    Raises:
        ValueError: The document does not have the marks.
    """
    before, _, after = _split(document)
    document.write_text(f'{before}{BEGIN}\n{claims_table(folder)}\n{END}{after}')


def table_stands(document: Path, folder: Path) -> bool:
    """Whether a document's table says what the records say today.

    Args:
        document: The Markdown file.
        folder: Of the records.

    Returns:
        False where it says anything else.

    Raises:
        ValueError: The document does not have the marks.
    """
    return _split(document)[1].strip() == claims_table(folder)


def _split(document: Path) -> tuple[str, str, str]:
    text = document.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f'{document} has no place for the claims; put these two lines there: {BEGIN} and {END}')
    before, rest = text.split(BEGIN)
    table, after = rest.split(END)
    return before, table, after

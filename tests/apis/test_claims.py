"""A claim is proven by a whole, passed record of today's code, and by nothing less."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from lucid.apis import claims, proof
from lucid.apis.claims import BEGIN, CLAIMS, END, claims_table, status, table_stands, write_table
from lucid.apis.code_digest import code_of
from lucid.apis.proof import child, prove, record, run_tests

ROOT = Path(__file__).parents[2]
Write = Callable[..., Path]
ENVIRONMENT = {'cards': ['Card 1'], 'torch': '2.11', 'python': '3.12'}


def outcome(part: str, **changes: Any) -> dict[str, Any]:
    kind = part.split()[0]
    results: dict[str, Any] = {
        'tests': [{'collected': 5, 'passed': 5}] * 2,
        'host-time': {'forward': {'beyond': 0.3}},
    }
    return {
        'date': '2026-01-02',
        'environment': ENVIRONMENT,
        'passed': True,
        'result': results.get(kind, {'rows': [{}, {}], 'steps': 50}),
        'code': code_of(['capture/pool.py', 'capture/region.py']),
        **changes,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A whole record of the claim 'network', of which options change or, with None, leave out a part."""

    def make(**changes: dict[str, Any] | None) -> Path:
        for part in CLAIMS['network'].parts():
            change = changes.get(part.split()[0].replace('-', '_'), {})
            if change is not None:
                record(tmp_path / 'network.json', part, outcome(part, **change))
        return tmp_path

    return make


def test_a_whole_record_of_this_code_proves(write: Write) -> None:
    found = status('network', write())
    assert found.proven
    assert '[record](evidence/network.json) of 2026-01-02: Card 1, torch 2.11, Python 3.12; 70 tests' in found.why
    assert '12 parity runs of at least 50 steps equal' in found.why


@pytest.mark.parametrize(
    ('changes', 'why'),
    [
        ({'tests': {'code': {'capture/pool.py': 'other'}}}, 'the code has changed since the record'),
        ({'tests': {'code': {'capture/gone.py': 'there'}}}, 'the code has changed since the record'),
        ({'tests': {'passed': False}}, 'a run of the record failed'),
        ({'host_time': None}, 'a part of the record is missing'),
    ],
)
def test_less_does_not(write: Write, changes: dict[str, Any], why: str) -> None:
    assert status('network', write(**changes)) == (False, why)


def test_a_change_of_what_judges_leaves_a_record_alone_and_of_what_runs_does_not(write: Write) -> None:
    code = code_of(['capture/pool.py'])
    assert status('network', write(tests={'code': {'apis/claims.py': 'other', **code}})).proven
    assert not status('network', write(tests={'code': {'apis/proof.py': 'other', **code}})).proven


def test_a_claim_without_parity_runs_is_proven_by_its_tests(tmp_path: Path) -> None:
    assert CLAIMS['evaluation'].parity == ()
    for part in CLAIMS['evaluation'].parts():
        assert not status('evaluation', tmp_path).proven
        record(tmp_path / 'evaluation.json', part, outcome(part))
    found = status('evaluation', tmp_path)
    assert found.proven
    assert found.why.endswith('Python 3.12; 25 tests passed, twice')


def test_without_record_a_claim_is_unproven(tmp_path: Path) -> None:
    assert status('network', tmp_path) == (False, 'no record')


@pytest.mark.parametrize('task', ['segment', 'oriented', 'keypoint'])
def test_a_task_needs_both_regions_in_both_precisions(tmp_path: Path, task: str) -> None:
    parts = [f'parity configs/yolo/{task}_n_shapes.py {rest}' for rest in ('network fp32', 'network bf16')]
    parts += [f'parity configs/yolo/{task}_n_shapes.py {rest}' for rest in ('step fp32', 'step bf16')]
    for part in ('tests tests/capture/test_tasks.py', *parts):
        assert status(task, tmp_path).proven is False
        record(tmp_path / f'{task}.json', part, outcome(part))
    assert status(task, tmp_path).proven is True


def test_the_table_of_a_document_is_written_and_stands_until_a_record_or_the_code_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / 'page.md'
    document.write_text(f'before\n{BEGIN}\nold\n{END}\nafter\n')
    folder = write()
    assert not table_stands(document, folder)
    write_table(document, folder)
    assert table_stands(document, folder)
    text = document.read_text()
    assert text.startswith('before\n')
    assert text.endswith('\nafter\n')
    assert '| proven |' in text
    monkeypatch.setattr(claims, 'code_of', lambda paths: dict.fromkeys(paths, 'changed'))
    assert not table_stands(document, folder)
    assert '| proven |' not in claims_table(folder)
    document.write_text(document.read_text().replace('*unproven*', 'proven'))
    assert not table_stands(document, folder)
    document.write_text('no marks')
    with pytest.raises(ValueError, match='put these two lines there'):
        write_table(document, folder)


def test_the_table_of_the_docs_stands() -> None:
    assert table_stands(ROOT / 'docs' / 'capture.md', ROOT / 'docs' / 'evidence'), 'run tools/prove.py --write'


def test_a_claim_whose_calls_are_not_timed_needs_no_time(tmp_path: Path) -> None:
    for part in CLAIMS['step'].parts():
        record(tmp_path / 'step.json', part, outcome(part))
    assert 'host-time' not in CLAIMS['step'].parts()
    found = status('step', tmp_path)
    assert found.proven
    assert found.why.endswith('12 parity runs of at least 50 steps equal')


def test_the_runs_of_every_claim_are_there() -> None:
    for claim in CLAIMS.values():
        assert all((ROOT / path).exists() for path in (*claim.tests, *claim.parity))


def test_parts_are_kept_beside_each_other_and_replaced_by_name(tmp_path: Path) -> None:
    path = tmp_path / 'network.json'
    record(path, 'tests', {'passed': False})
    record(path, 'host-time', {'passed': True})
    record(path, 'tests', {'passed': True})
    assert json.loads(path.read_text())['parts'] == {'tests': {'passed': True}, 'host-time': {'passed': True}}


def test_processes_that_record_side_by_side_lose_no_part(tmp_path: Path) -> None:
    path = tmp_path / 'network.json'
    with ProcessPoolExecutor(4, mp_context=get_context('fork')) as pool:
        list(pool.map(record, [path] * 24, [f'part {i}' for i in range(24)], [{'passed': True}] * 24))
    assert len(json.loads(path.read_text())['parts']) == 24


def test_a_process_that_fails_is_a_part_that_has_not_passed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = {'data_root': str(tmp_path / 'nothing')}
    config = str(ROOT / 'configs' / 'yolo' / 'detect_n_bccd.py')
    assert not prove(['network'], tmp_path, only=['parity'], configs=[config], precisions=['fp32'], options=options)
    (part,) = json.loads((tmp_path / 'network.json').read_text())['parts'].values()
    assert not part['passed']
    assert 'status 1' in part['result']['error']
    assert 'nothing' in capfd.readouterr().err


def test_a_part_of_several_claims_is_run_once_and_recorded_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        ran.append(arguments['paths'])
        return {'passed': True}

    monkeypatch.setattr(proof, '_run', run)
    assert prove(['network', 'loss'], tmp_path, only=['tests'])
    parts = {name: json.loads((tmp_path / f'{name}.json').read_text())['parts'] for name in ('network', 'loss')}
    for name, found in parts.items():
        assert found.keys() == {f'tests {path}' for path in CLAIMS[name].tests}
    assert sorted(ran) == sorted([path] for path in {*CLAIMS['network'].tests, *CLAIMS['loss'].tests})


def test_tests_are_counted_by_their_outcome(tmp_path: Path) -> None:
    (tmp_path / 'pytest.ini').write_text('[pytest]\nmarkers = cuda: needs a card\n')
    (tmp_path / 'test_some.py').write_text(
        'import pytest\n'
        '@pytest.mark.cuda\ndef test_a(): pass\n'
        '@pytest.mark.cuda\ndef test_b(): assert False\n'
        '@pytest.mark.cuda\n@pytest.mark.skip\ndef test_c(): pass\n'
        '@pytest.fixture\ndef broken(): raise ValueError\n'
        '@pytest.mark.cuda\ndef test_d(broken): pass\n'
        'def test_e(): pass\n'
    )
    found = run_tests([str(tmp_path), '-c', str(tmp_path / 'pytest.ini')])
    assert {key: found[key] for key in ('collected', 'passed', 'skipped', 'failed')} == {
        'collected': 4,
        'passed': 1,
        'skipped': 1,
        'failed': 2,
    }


def test_a_run_leaves_its_result_and_the_code_that_it_imported(
    tmp_path: Path, small_network: Mapping[str, Any]
) -> None:
    torch.set_num_threads(1)
    options = {**small_network, 'data_root': str(tmp_path / 'data'), 'train_dataloader.batch_size': 2}
    config = str(ROOT / 'tests' / 'configs' / 'tiny.py')
    arguments = {'config': config, 'region': 'network', 'precision': 'fp32', 'steps': 1, 'options': options}
    child('parity', arguments, str(tmp_path / 'out.json'))
    found = json.loads((tmp_path / 'out.json').read_text())
    assert found['result']['equal'] is True
    assert [row['accumulate'] for row in found['result']['rows']] == [1, 2]
    assert {'capture/pool.py', 'models/losses/detection.py', 'apis/parity.py'} <= found['code'].keys()

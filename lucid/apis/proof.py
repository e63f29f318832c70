"""Running what proves a claim, each part in a process of its own, and keeping what it did as JSON."""

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from lucid.apis.claims import CLAIMS, Claim, parity_name, tests_name
from lucid.apis.code_digest import PACKAGE, imported_code
from lucid.engine.environment import environment

_KEPT = (
    'lucid',
    'python',
    'torch',
    'torchvision',
    'mmengine',
    'mmcv-lite',
    'numpy',
    'cuda',
    'cudnn',
    'cards',
    'driver',
)
_CHILD = (
    'import json, sys; from lucid.apis.proof import child; child(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])'
)


def prove(
    names: Sequence[str],
    folder: Path,
    *,
    only: Iterable[str] = ('tests', 'parity', 'host-time'),
    configs: Sequence[str] = (),
    precisions: Sequence[str] = (),
    steps: int = 50,
    options: Mapping[str, Any] | None = None,
    jobs: int = 1,
) -> bool:
    """Run parts of the proof of claims; each is written as soon as it is done, beside those that are there.

    A part that several of the claims have is run once, and goes into the record of each.

    Args:
        names: Of the claims.
        folder: Where ``<name>.json`` of each is.
        only: Kinds of runs.
        configs: Of the parity runs; default each claim's own. A record of another one counts as well.
        precisions: Of the parity runs; default each claim's own.
        steps: Optimizer steps of a parity run.
        options: Config keys to change in parity and host time, as ``--cfg-options``.
        jobs: Runs at a time. The host time is measured before the others, alone.

    Returns:
        Whether all of these runs passed.
    """
    plans: dict[str, _Plan] = {}
    for name in names:
        for part, (kind, arguments) in _parts(CLAIMS[name], only, configs, precisions, steps, dict(options or {})):
            plans.setdefault(part, _Plan(kind, arguments, [])).claims.append(name)

    def finish(part: str) -> bool:
        plan = plans[part]
        outcome = _run(plan.kind, plan.arguments)
        for name in plan.claims:
            record(folder / f'{name}.json', part, outcome)
        Console().print(f'{part}: {"passed" if outcome["passed"] else "FAILED"}', markup=False)
        return bool(outcome['passed'])

    alone = [part for part in plans if part == 'host-time']
    with ThreadPoolExecutor(jobs) as pool:
        return all([*map(finish, alone), *pool.map(finish, [part for part in plans if part not in alone])])


class _Plan(NamedTuple):
    kind: str
    arguments: dict[str, Any]
    claims: list[str]


def _parts(
    claim: Claim,
    only: Iterable[str],
    configs: Sequence[str],
    precisions: Sequence[str],
    steps: int,
    options: dict[str, Any],
) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Name, kind and arguments of each run that one claim takes."""
    configs = configs or claim.parity
    if 'tests' in only:
        for path in claim.tests:
            yield tests_name(path), ('tests', {'paths': [path]})
    if 'parity' in only:
        for config, region, precision in product(configs, claim.regions, precisions or claim.precisions):
            arguments = {'config': config, 'region': region, 'precision': precision, 'steps': steps}
            yield parity_name(config, region, precision), ('parity', {**arguments, 'options': options})
    if 'host-time' in only and claim.timed:
        yield 'host-time', ('host-time', {'config': configs[0], 'options': options})


def record(path: Path, part: str, outcome: Mapping[str, Any]) -> None:
    """Put one outcome into a record, in place of an older one of the same part; processes may do so side by side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, 'a+') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = json.loads(file.read() or 'null') or {'claim': CLAIMS[path.stem].text, 'parts': {}}
        content['parts'][part] = outcome
        file.truncate(0)
        file.write(json.dumps(content, indent=1, sort_keys=True) + '\n')


def _run(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Run one part; tests twice, side by side. The code is all that any of its processes imported."""
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: _answer(kind, arguments), range(2 if kind == 'tests' else 1)))
    results = [answer['result'] for answer in answers]
    code = {path: digest for answer in answers for path, digest in answer['code'].items()}
    facts = environment()
    return {
        'date': time.strftime('%Y-%m-%d'),
        'environment': {key: facts[key] for key in _KEPT},
        'passed': all(map(_passed, results)),
        'result': results if kind == 'tests' else results[0],
        'code': dict(sorted(code.items())),
    }


def _answer(kind: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a process of its own answers; an error that ended it is a result that has not passed."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, 'result.json')
        command = [sys.executable, '-c', _CHILD, kind, json.dumps(arguments), str(out)]
        strict = {'LUCID_REQUIRE_CUDA': '1', 'CUBLAS_WORKSPACE_CONFIG': ':4096:8'}
        status = subprocess.run(command, cwd=PACKAGE.parent, env={**os.environ, **strict}, check=False).returncode
        if status or not out.is_file():
            return {'result': {'error': f'the process ended with status {status}; see what it printed'}, 'code': {}}
        answer: dict[str, Any] = json.loads(out.read_text())
        return answer


def _passed(result: Mapping[str, Any]) -> bool:
    if 'error' in result:
        return False
    if 'collected' in result:
        return bool(0 < result['collected'] == result['passed'])
    return bool(result.get('equal', True))


def child(kind: str, arguments: Mapping[str, Any], out: str) -> None:
    """Do one run in this process and write its result and the code that it imported to the file ``out``."""
    runs: dict[str, Callable[..., dict[str, Any]]] = {
        'tests': run_tests,
        'parity': run_parity,
        'host-time': run_host_time,
    }
    result = runs[kind](**arguments)
    Path(out).write_text(json.dumps({'result': result, 'code': imported_code()}))


def run_tests(paths: Sequence[str], marker: str = 'cuda') -> dict[str, Any]:
    """Run the tests with a marker, and count."""
    import pytest

    class Count:
        collected, outcomes = 0, dict[str, str]()

        def pytest_collection_finish(self, session: pytest.Session) -> None:
            self.collected = len(session.items)

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == 'call' or report.outcome != 'passed':
                self.outcomes[report.nodeid] = report.outcome

    count, start = Count(), time.perf_counter()
    pytest.main(['-q', '-m', marker, '-p', 'no:cacheprovider', '--tb=short', *paths], plugins=[count])
    outcomes = list(count.outcomes.values())
    numbers = {outcome: outcomes.count(outcome) for outcome in ('passed', 'skipped', 'failed')}
    return {'collected': count.collected, **numbers, 'seconds': round(time.perf_counter() - start, 1)}


def run_parity(config: str, region: str, precision: str, steps: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Compare one config in one precision, in windows of one and of two micro-batches."""
    from lucid.apis.build import load_config
    from lucid.apis.parity import check_parity, print_parity

    parity = check_parity(load_config(config, options), region=region, precision=[precision], steps=steps)
    print_parity(parity)
    found = parity.to_json()
    found.pop('environment')
    return found


def run_host_time(config: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure what a replayed call costs the host."""
    from lucid.apis.build import load_config
    from lucid.apis.host_time import host_time

    return host_time(load_config(config, options))

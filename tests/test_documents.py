"""Every command in the documents is one that CI runs, or runs here, shrunk, in the order of its document."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
BY_CI = {'make train', 'make test', 'make check', 'bash .ci/run'}
BY_MAKE = {  # what the Makefile does itself, or a shell's own word
    'make install',
    '. .venv/bin/activate',
    'pip uninstall --yes opencv-python',
    'pip install opencv-python-headless',
    'pre-commit install',
}
SMALL = {
    **{
        name: ['image_size=64', 'val_dataloader.dataset.num_images=8', 'val_dataloader.num_workers=0']
        for name in ('yolo_capture', 'segment_n_shapes', 'keypoint_n_shapes', 'oriented_n_shapes')
    },
    'detect_n_folder': [
        'image_size=64',
        'train_cfg.max_epochs=1',
        'optim_wrapper.optimizer.ns_steps=1',
        'train_dataloader.batch_size=4',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'val_dataloader.num_workers=0',
        'val_dataloader.persistent_workers=False',
    ],
}


def commands(document: Path) -> list[str]:
    blocks = re.findall(r'^```bash\n(.*?)^```', document.read_text(), flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith('#')]


@pytest.mark.parametrize('document', DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_commands_of_a_document_exist(document: Path) -> None:
    for link in re.findall(r'\]\((?!https?:)([^)#]+)', document.read_text()):
        assert (document.parent / link).exists(), f'{document.name} links to {link}'
    for command in commands(document):
        known = command in BY_CI | BY_MAKE or re.match(r'tools/\w+\.py ', command)
        assert known, f'{document.name}: nothing runs {command!r}; add it to CI or to this test'


def test_ci_runs_the_make_targets_that_the_documents_name() -> None:
    script = (ROOT / '.ci' / 'run').read_text()
    assert all(target in script for target in BY_CI if target.startswith('make'))


def write_checkpoint(folder: Path, name: str) -> None:
    """The best.pth of a shipped config in ``work_dirs``, as if it had been trained on the generated images."""
    from lucid.apis import load_config
    from lucid.datasets import ShapesDataset
    from lucid.engine.checkpoint import plain, save
    from lucid.registry import MODELS

    data = ShapesDataset(folder / 'data/shapes', split='val', num_images=8, image_size=64)
    cfg = load_config(ROOT / f'configs/{name}.py')
    numbers = {'num_classes': len(data.classes)}
    if 'keypoint' in name:
        numbers['num_keypoints'] = len(data.keypoint_names)
    state = MODELS.build({**cfg.model, **numbers}).state_dict()
    content = {'meta': {'cfg': plain(cfg.to_dict())}, 'classes': list(data.classes), 'state_dict': state}
    if 'keypoint' in name:
        content['keypoint_names'] = list(data.keypoint_names)
    path = folder / 'work_dirs' / Path(name).name / 'best.pth'
    path.parent.mkdir(parents=True)
    save(content, path)


def shrunk(command: str) -> list[str]:
    """The words of a command, with a training, a test or a measurement made small."""
    words = shlex.split(command)
    config = next((Path(word).stem for word in words if word.startswith('configs/')), '')
    if words[0] in ('tools/train.py', 'tools/test.py') and config:  # that of a run is small already
        if '--cfg-options' not in words:
            words.append('--cfg-options')
        place = words.index('--cfg-options') + 1
        words[place:place] = SMALL[config]
        if '--resume' in words:
            words.insert(place, 'train_cfg.max_epochs=2')  # the first run was not stopped, as a reader's was
            words.remove('train_cfg.max_epochs=1')
    if words[0] == 'tools/data_rate.py':
        words += shlex.split(
            '--device cpu --no-step --workers 0 --rounds 1 --seconds 0.01 --cfg-options image_size=64 '
            'train_dataloader.batch_size=2 train_dataloader.dataset.num_images=8'
        )
    return words


def run(folder: Path, command: str) -> None:
    """Run a command in a process of its own."""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    words = [sys.executable, *shrunk(command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f'{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}'
    assert 'Traceback' not in done.stderr, done.stderr[-2000:]


Call = Callable[[str], None]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process: starting one costs more than most of the commands."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)

    def run_here(command: str) -> None:
        tool, *words = shrunk(command)
        monkeypatch.setattr(sys, 'argv', [tool, *words])
        assert runpy.run_path(str(ROOT / tool))['main']() == 0, command

    return run_here


def test_the_commands_of_the_readme_run_in_their_order(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    """In what looks like a clone in which ``make train`` has run, with a user's folder of images beside it."""
    from lucid.datasets import ShapesDataset

    for name in ('configs', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)
    for split, number in (('train', 8), ('val', 4)):
        ShapesDataset(tmp_path / 'path/to/folder', split=split, num_images=number, image_size=64)
    write_checkpoint(tmp_path, 'yolo_capture')
    tools = [command for command in commands(ROOT / 'README.md') if command.startswith('tools/')]
    assert len(tools) >= 6
    outputs = {}
    for command in tools:
        if command.startswith(('tools/test.py', 'tools/predict.py')):  # no other test starts these
            run(tmp_path, command)
        else:
            call(command)
        outputs[command] = capsys.readouterr().out
    assert (tmp_path / 'results.json').is_file()
    assert list((tmp_path / 'pictures').iterdir())
    assert (tmp_path / 'found/predictions.json').is_file()
    assert {'best.pth', 'last.pth', 'config.py', 'config.json', 'environment.json', 'pictures'} <= {
        path.name for path in (tmp_path / 'work_dirs/mine').iterdir()
    }
    printed = next(out for command, out in outputs.items() if 'print_config' in command)
    compile(printed, 'printed config', 'exec')


def test_the_commands_of_the_augmentation_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid.datasets import ShapesDataset

    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    ShapesDataset(tmp_path / 'path/to/folder', split='val', num_images=4, image_size=64)
    tools = [command for command in commands(ROOT / 'docs' / 'augmentation.md') if command.startswith('tools/')]
    assert len(tools) >= 5
    monkeypatch.chdir(tmp_path)
    for command in tools:
        # In this process: a new one takes longer to import than to draw.
        small = ' --cfg-options train_dataloader.dataset.num_images=16' if 'yolo_capture' in command else ''
        monkeypatch.setattr(sys, 'argv', shlex.split(command + small))
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / sys.argv[0]), run_name='__main__')
        assert end.value.code == 0, command
    browsed = tmp_path / 'work_dirs/browse'
    assert (browsed / 'yolo_capture/train_epoch3_sheet00.png').is_file()
    assert (browsed / 'detect_n_folder/val_sheet00.png').is_file()
    assert len(list((tmp_path / 'look').iterdir())) == 3


def test_the_commands_of_the_capture_page_run(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, small_network: Mapping[str, Any]
) -> None:
    from lucid.apis import pool_table

    def measure_pool(**given: Any) -> pool_table.PoolTable:
        measured.append(given)
        return pool_table.PoolTable('cpu', 'tape', 9, {'no copy': (7, 3)})

    measured: list[dict[str, Any]] = []
    monkeypatch.setattr(pool_table, 'measure_pool', measure_pool)  # a test of its own measures at this size
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    tools = [command for command in commands(ROOT / 'docs' / 'capture.md') if command.startswith('tools/')]
    assert len(tools) >= 3
    options = {
        **small_network,
        'image_size': 64,
        'train_dataloader.batch_size': 2,
        'train_dataloader.num_workers': 0,
        'train_dataloader.dataset.num_images': 8,
        'optim_wrapper.optimizer.ns_steps': 1,
    }
    small = '--accumulate 1 --cfg-options ' + shlex.join(f'{key}={value}' for key, value in options.items())
    for command in tools:
        if command.startswith('tools/parity.py'):
            command = f'{command} --steps 1 {small}'
        if command.startswith('tools/benchmark.py'):
            command = f'{command} --device cpu --region step --rounds 1 --micro-batches 1 {small}'
        if command.startswith('tools/benchmark_validation.py'):
            command = (
                f'{command} --rounds 1 --batches 1 {small} val_dataloader.batch_size=4 '
                'val_dataloader.num_workers=0 val_dataloader.persistent_workers=False '
                f'val_dataloader.dataset.num_images=8 data_root={tmp_path}/validated'
            ).replace('--accumulate 1 ', '')
        call(command)
    assert [(given['image_size'], given['batch_size']) for given in measured] == [(64, 2)]


def test_the_words_for_speed_of_the_capture_page_are_keys_and_build() -> None:
    from lucid.apis import load_config
    from lucid.apis.options import parse_value
    from lucid.registry import MODELS, OPTIMIZERS, REGIONS

    part = (ROOT / 'docs' / 'capture.md').read_text().partition("## Words that shorten the card's own time")[2]
    words = re.findall(r'^\| `(.*?)` \|', part.partition('\n## ')[0], flags=re.M)
    assert len(words) >= 7
    for word in words:
        if region := re.fullmatch(r"dict\(type='(\w+)', compile=(.*)\)", word):
            REGIONS.build({'type': region[1], 'compile': parse_value(region[2])})
            continue
        key, _, value = word.partition('=')
        cfg = load_config(ROOT / 'configs/yolo_capture.py', {key: parse_value(value)})
        model = MODELS.build({**cfg.model, 'num_classes': 3})
        OPTIMIZERS.build({**cfg.optim_wrapper.optimizer, 'params': list(model.parameters())})


def test_every_tool_can_be_called_by_its_name_as_the_documents_do() -> None:
    for tool in (ROOT / 'tools').glob('*.py'):
        assert tool.read_text().startswith('#!/usr/bin/env python\n'), tool
        assert os.access(tool, os.X_OK), tool


FRESH = """
import importlib, pkgutil, runpy, sys
import lucid.apis
from mmengine.registry import Registry
from lucid import registry

def names():
    return {name: set(value.module_dict) for name, value in vars(registry).items() if isinstance(value, Registry)}

for value in vars(registry).values():
    if isinstance(value, Registry):
        value.import_from_location()  # as mmengine does before it looks a name up
before = names()
for tool in sys.argv[1:]:
    sys.argv = [tool, '--help']
    try:
        runpy.run_path(tool, run_name='__main__')
    except SystemExit as end:
        assert end.code == 0, tool
for module in pkgutil.walk_packages(lucid.__path__, 'lucid.'):
    importlib.import_module(module.name)
assert names() == before, 'a registry does not find everything'
"""


def test_in_a_fresh_process_every_tool_shows_its_help_and_the_registries_find_everything() -> None:
    """What runs in the process of the tests cannot show that an import is missing."""
    tools = sorted(map(str, (ROOT / 'tools').glob('*.py')))
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-c', FRESH, *tools]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count('usage: ') == len(tools)
    assert len(re.findall('^examples', done.stdout, flags=re.M)) == len(tools)  # as the README says


@pytest.fixture
def yolo_clone(tmp_path: Path, call: Call) -> Path:
    """A folder that looks like a fresh clone, with a user's images in the YOLO layout beside it."""
    from lucid.datasets import ShapesDataset

    for name in ('configs', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)
    for split, number in (('train', 8), ('val', 4)):
        ShapesDataset(tmp_path / 'path/to/persons', split=split, num_images=number, image_size=64)
    call('tools/convert_data.py path/to/persons path/to/folder --to yolo')
    for split in ('train', 'val'):  # the generated images, with one quadrilateral each
        (tmp_path / 'path/to/dota' / split / 'labelTxt').mkdir(parents=True)
        (tmp_path / 'path/to/dota' / split / 'images').symlink_to(tmp_path / 'path/to/persons' / split)
        for image in (tmp_path / 'path/to/persons' / split).glob('*.jpg'):
            rows = 'imagesource:made\ngsd:1\n10 5 30 5 30 15 10 15 ship 0\n'
            (tmp_path / 'path/to/dota' / split / f'labelTxt/{image.stem}.txt').write_text(rows)
    return tmp_path


def test_the_commands_of_the_benchmark_page_run(call: Call, tmp_path: Path) -> None:
    for name in ('configs', 'tools'):
        (tmp_path / name).symlink_to(ROOT / name)
    listed = commands(ROOT / 'docs' / 'benchmark.md')
    assert len(listed) >= 3
    small = (
        '--device cpu --region step --accumulate 1 --rounds 1 --micro-batches 1 --cfg-options image_size=64 '
        'train_dataloader.batch_size=2 train_dataloader.num_workers=0 train_dataloader.dataset.num_images=8 '
        'optim_wrapper.optimizer.ns_steps=1'
    )
    for command in listed:
        call(f'{command} {small}')
    assert (tmp_path / 'work_dirs/benchmark.json').is_file()
    assert (tmp_path / 'work_dirs/benchmark.png').is_file()


def test_the_commands_of_the_page_on_checking_data_run(yolo_clone: Path, call: Call) -> None:
    listed = commands(ROOT / 'docs' / 'check_data.md')
    assert len(listed) >= 2
    for command in listed:
        call(f'{command} image_size=64' if '--cfg-options' in command else command)
    assert (yolo_clone / 'work_dirs/check_data/folder/boxes_train.png').is_file()
    assert (yolo_clone / 'found/samples_val.png').is_file()
    assert (yolo_clone / 'report.json').is_file()
    assert (yolo_clone / 'work_dirs/check_data/persons/samples_train.png').is_file()


def test_the_commands_of_the_page_on_data_run_in_their_order(yolo_clone: Path, call: Call) -> None:
    listed = commands(ROOT / 'docs' / 'data.md')
    assert len(listed) >= 3
    for command in listed:
        call(command)
    assert (yolo_clone / 'path/to/yolo/labels/val').is_dir()
    assert (yolo_clone / 'path/to/tiles/annotations/val.json').is_file()
    assert '"obb"' in (yolo_clone / 'path/to/dota_coco/annotations/train.json').read_text()


def test_the_quick_start_leads_to_a_trained_detector_in_six_commands(yolo_clone: Path, call: Call) -> None:
    listed = commands(ROOT / 'docs' / 'quickstart.md')
    assert len(listed) - len(BY_MAKE & set(listed)) <= 4
    for command in listed:
        if command not in BY_MAKE:
            call(command)
    assert (yolo_clone / 'work_dirs/detect_n_folder/best.pth').is_file()
    assert (yolo_clone / 'found/predictions.json').is_file()


def test_the_commands_of_the_config_guide_run_in_their_order(yolo_clone: Path, call: Call) -> None:
    for command in commands(ROOT / 'docs' / 'configs.md'):
        call(command)
    assert (yolo_clone / 'work_dirs/tuned/loaded_weights.json').is_file()


def test_what_the_config_guide_shows_is_a_valid_config(tmp_path: Path) -> None:
    """Python blocks are configs, or what a child of a shipped one states; table cells are assignments to keys."""
    from lucid.apis import load_config

    text = (ROOT / 'docs' / 'configs.md').read_text()
    blocks = re.findall(r'^```python\n(.*?)^```', text, flags=re.M | re.S)
    cells = [match for row in re.findall(r'^\| .* \|$', text, flags=re.M) for match in re.findall(r'`(\w+=.*?)`', row)]
    configs = [block for block in blocks if not block.startswith('from')]
    assert len(configs) >= 6
    assert len(cells) >= 6
    for number, shown in enumerate([*configs, *cells]):
        base = '' if '_base_' in shown else f"_base_ = ['{ROOT}/configs/yolo/detect_n_folder.py']\n"
        path = tmp_path / f'shown_{number}.py'
        path.write_text(base + shown.replace("'../_base_/", f"'{ROOT}/configs/_base_/") + '\n')
        load_config(path)


def test_the_config_guide_lists_every_key_of_the_top_level() -> None:
    from lucid.apis.slots import TOP_KEYS

    table = (ROOT / 'docs' / 'configs.md').read_text().partition('## On the command line')[0]
    assert not [key for key in TOP_KEYS if f'`{key}`' not in table]


def test_the_commands_of_the_evaluation_page_run(tmp_path: Path, call: Call) -> None:
    (tmp_path / 'configs').symlink_to(ROOT / 'configs')
    for name in ('yolo_capture', 'yolo/segment_n_shapes', 'yolo/keypoint_n_shapes', 'yolo/oriented_n_shapes'):
        write_checkpoint(tmp_path, name)
    listed = commands(ROOT / 'docs' / 'evaluation.md')
    assert len(listed) >= 9
    for command in listed:
        call(command)
    for shown in ('pictures', 'masks', 'rotated'):
        assert (tmp_path / shown / 'figures/confusion_matrix.png').is_file()
    assert (tmp_path / 'nms.json').is_file()
    assert (tmp_path / 'keypoints.json').is_file()
    for found in ('found', 'found_masks', 'found_keypoints', 'found_rotated'):
        assert (tmp_path / found / 'predictions.json').is_file()


def test_what_the_evaluation_page_shows_is_a_valid_config(tmp_path: Path) -> None:
    from lucid.apis import load_config

    blocks = re.findall(r'^```python\n(.*?)^```', (ROOT / 'docs' / 'evaluation.md').read_text(), flags=re.M | re.S)
    assert len(blocks) == 4
    for number, shown in enumerate(blocks):
        path = tmp_path / f'shown_{number}.py'
        path.write_text(f"_base_ = ['{ROOT}/configs/yolo/detect_n_folder.py']\n{shown}")
        load_config(path)

import contextlib
import copy
import gc
import json
import multiprocessing
from pathlib import Path

import pytest
import torch
from faster_coco_eval import COCO

from lucid.datasets import ShapesDataset
from lucid.engine.host_workers import HostWorkers
from lucid.evaluation import average_precision, evaluations
from lucid.registry import METRICS

NAMES = ('CocoMetric', 'CocoMaskMetric', 'CocoKeypointMetric', 'RotatedMetric')


def evaluate(ann_file, found, size, run=map):
    results = {}
    for name in NAMES:
        options = {'sigmas': 0.1} if name == 'CocoKeypointMetric' else {}
        metric = METRICS.build({'type': name, 'ann_file': str(ann_file), 'prefix': name, **options})
        metric.dataset_meta = {}
        metric.run = run
        for start in range(0, len(found), 3):
            metric.process(None, found[start : start + 3])
        results |= metric.evaluate(size)
    return {key: str(value) for key, value in results.items()}  # NaN equals itself as text


def one_of_two(rank, folder, ann_file, found):
    torch.distributed.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    # As a sampler deals images out: in turn, and the first once more because they do not come out even.
    results = evaluate(ann_file, (found + found[:1])[rank::2], len(found))
    Path(folder, f'{rank}.json').write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def uneven(folder, oracle):
    """Annotations, and detections that miss them by as much as some thresholds forgive."""
    data = ShapesDataset(folder, split='val', num_images=7, image_size=64)
    found = oracle(data.annotation_file)
    generator = torch.Generator().manual_seed(0)
    for each in found:
        for key, spread in (('boxes', 1.0), ('keypoints', 1.0), ('rboxes', 0.2)):
            each[key] = each[key] + torch.randn(each[key].shape, generator=generator) * spread
        each['masks'] = each['masks'][1:] + each['masks'][:1]
        each['scores'] = torch.full_like(each['scores'], 0.5)  # equal ones are ordered by their images
    return data.annotation_file, found


def test_figures_that_other_processes_compute_are_the_same_in_every_metric_bit_by_bit(tmp_path, oracle):
    ann_file, found = uneven(tmp_path, oracle)
    workers = HostWorkers(2)
    assert evaluate(ann_file, found, len(found), workers.map) == evaluate(ann_file, found, len(found))
    workers.close()


def test_two_processes_give_the_figures_of_one_in_every_metric_bit_by_bit(tmp_path, oracle):
    ann_file, found = uneven(tmp_path / 'data', oracle)
    alone = evaluate(ann_file, found, len(found))
    context = multiprocessing.get_context('fork')  # what is imported need not be imported again
    arguments = str(tmp_path), ann_file, found
    processes = [context.Process(target=one_of_two, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (json.loads((tmp_path / f'{rank}.json').read_text()) for rank in range(2))
    assert first == second == alone
    figures = ('CocoMetric/mAP', 'CocoMaskMetric/mask/mAP', 'CocoKeypointMetric/keypoint/mAP', 'RotatedMetric/mAP')
    assert all(0 < float(alone[figure]) < 1 for figure in figures)
    # Control: without one image the figures are others.
    assert evaluate(ann_file, found[1:], len(found) - 1) != alone


@pytest.mark.parametrize(
    ('name', 'chief'),
    [*zip(NAMES, ('mAP', 'mask/mAP', 'keypoint/mAP', 'mAP'), strict=True)],
)
def test_the_chief_figure_is_the_map_of_what_the_task_predicts_by_the_first_path(name, chief):
    for paths, key in ((('one_to_one', 'nms'), chief), (('nms', 'one_to_one'), f'nms/{chief}')):
        assert METRICS.build({'type': name, 'paths': paths}).chief == key
    assert METRICS.build({'type': name, 'format_only': True, 'outfile': 'out.json'}).chief is None


def test_rows_without_an_index_give_the_figures_of_the_librarys_own_in_every_metric_bit_by_bit(
    tmp_path, oracle, monkeypatch
):
    """One image has detections and no object, of which the library asks the size all the same."""
    ann_file, found = uneven(tmp_path, oracle)
    annotations = json.loads(Path(ann_file).read_text())
    empty = int(found[0]['image_id'])
    annotations['annotations'] = [row for row in annotations['annotations'] if row['image_id'] != empty]
    ann_file = tmp_path / 'one_empty.json'
    ann_file.write_text(json.dumps(annotations))
    assert len(found[0]['masks']) > 0
    given = evaluate(ann_file, found, len(found))

    def indexed(rows, images):
        categories = json.loads(Path(ann_file).read_text())['categories']
        return COCO({'images': list(images.values()), 'annotations': copy.deepcopy(rows), 'categories': categories})

    monkeypatch.setattr(average_precision, '_Found', indexed)
    assert evaluate(ann_file, found, len(found)) == given
    assert all(0 < float(value) < 1 for key, value in given.items() if key.endswith('/mAP'))  # control: nothing trivial
    monkeypatch.setattr(average_precision, '_Found', lambda rows, images: indexed(rows[1:], images))
    assert evaluate(ann_file, found, len(found)) != given  # control: a row more or less shows


@pytest.fixture
def collections():
    """The generation of each search for cycles since; they come often here."""
    seen, threshold = [], gc.get_threshold()

    def note(phase, info):
        if phase == 'start':
            seen.append(info['generation'])

    gc.collect()
    gc.set_threshold(20)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*threshold)


def test_an_evaluation_is_not_interrupted_by_searches_for_cycles_and_they_go_on_after_it(
    tmp_path, oracle, collections, monkeypatch
):
    ann_file, found = uneven(tmp_path, oracle)
    metric = METRICS.build({'type': 'CocoMetric', 'ann_file': str(ann_file)})
    metric.dataset_meta = {}
    counts, figures = [], evaluations._figures

    def counted(comparison):
        before = len(collections)
        found = figures(comparison)
        counts.append(len(collections) - before)
        return found

    monkeypatch.setattr(evaluations, '_figures', counted)
    for shielded in (True, False):
        if not shielded:
            monkeypatch.setattr(evaluations, 'uncollected', contextlib.nullcontext)
        metric.process(None, found)
        metric.evaluate(len(found))
        assert gc.isenabled()
    assert counts[0] == 0 < counts[1]  # the second is the control


@evaluations.uncollected()
def fails():
    assert not gc.isenabled()
    raise ArithmeticError


def test_what_was_switched_off_stays_off_and_a_failure_switches_it_on_again():
    with pytest.raises(ArithmeticError):
        fails()
    assert gc.isenabled()
    gc.disable()
    try:
        with evaluations.uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

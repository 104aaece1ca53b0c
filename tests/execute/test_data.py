"""The corpus and its microbatches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from crosspipe.errors import FieldError
from crosspipe.execute.data import Batches, read_corpus


def test_files_are_read_in_sorted_order_without_installed_packages(tmp_path):
    for name, text in {"b.txt": "B", "a/z.py": "Z", "a/c.py": "C", "site-packages/x.py": "X", "d.bin": "D"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert read_corpus(tmp_path).tobytes() == b"BCZ"
    assert read_corpus(tmp_path, at_most_bytes=2).tobytes() == b"BC"
    assert read_corpus(tmp_path / "b.txt").tobytes() == b"B"


def test_the_standard_library_is_there_by_default():
    corpus = read_corpus(at_most_bytes=200_000)
    assert len(corpus) == 200_000
    assert b"import" in corpus.tobytes()


def test_a_batch_depends_on_nothing_but_seed_iteration_and_microbatch():
    corpus = np.arange(251, dtype=np.uint8)  # each byte is its own place
    batches = Batches(corpus, size=3, sequence=8, seed=1)
    tokens, targets = batches(4, 2)
    assert tokens.shape == targets.shape == (3, 8)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens + 1, targets)  # a target is the next byte
    assert torch.equal(tokens - tokens[:, :1], torch.arange(8).expand(3, 8))
    batches(0, 0)
    assert torch.equal(batches(4, 2)[0], tokens)
    others = [(5, 2, 1), (4, 3, 1), (2, 4, 1), (4, 2, 2)]
    assert not any(torch.equal(Batches(corpus, size=3, sequence=8, seed=s)(i, m)[0], tokens) for i, m, s in others)


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(FieldError, match="holds no text"):
        read_corpus(tmp_path)
    with pytest.raises(FieldError, match="too few for sequences of 8"):
        Batches(np.zeros(8, dtype=np.uint8), size=1, sequence=8, seed=0)

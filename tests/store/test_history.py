"""Which earlier epochs of a measurement a store has."""

from pathlib import Path

import msgspec

from crosspipe.store import Request, Store, my_claim
from crosspipe.store.history import earlier


def measured(store: Store, epoch: int | None, place: str = "here", *, done: bool = True) -> str:
    request = Request(stage="links", version=1, config={"place": place}, epoch=epoch)
    if done:
        claim = my_claim()
        store.claim(request, claim)
        with store.making(request, claim):
            pass
    else:
        store.register(request)
    return request.reference


def test_finished_epochs_of_the_same_request_oldest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    second, first = measured(store, 2), measured(store, 1)
    measured(store, 3, done=False)
    measured(store, 1, "elsewhere")
    fourth = measured(store, 4)
    assert earlier(store, fourth) == (first, second)
    assert earlier(store, first) == ()
    assert earlier(store, measured(store, None)) == ()
    assert store.request(first) == msgspec.structs.replace(store.request(fourth), epoch=1)

"""Earlier measurements of the same thing: a store keeps every epoch, and this finds them."""

from __future__ import annotations

from crosspipe.store.store import Store


def earlier(store: Store, reference: str) -> tuple[str, ...]:
    """Finished measurements of what `reference` (`stage/key`) measured, made before it, oldest first; maybe none."""
    request = store.request(reference)
    if request.epoch is None:
        return ()
    older = [
        other
        for other in store.requests(request.stage)
        if other.epoch is not None and other.epoch < request.epoch and request.same_measurement(other)
    ]
    ordered = sorted(older, key=lambda other: other.epoch or 0)
    return tuple(other.reference for other in ordered if store.done(other) is not None)

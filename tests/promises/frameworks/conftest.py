"""Batches of the loaders themselves, to compare with."""

import pytest

from tests.promises.frameworks.loaders import MAKERS, epochs


@pytest.fixture(scope="module")
def references():
    return {kind: epochs(make()) for kind, make in MAKERS.items()}


@pytest.fixture(params=MAKERS)
def kind(request):
    return request.param

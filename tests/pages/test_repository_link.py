"""The site's link to the repository, whose address only the environment knows."""

import pytest
from support.page_code import ROOT


@pytest.mark.docs
@pytest.mark.parametrize("url", ["https://example.org/fusionloader", None])
def test_the_menu_has_the_repository_where_its_address_is_known(url, monkeypatch):
    config = pytest.importorskip("mkdocs.config", reason="pip install 'fusionloader[docs]'")
    from docs.site_hooks import REPOSITORY_VARIABLE, on_config

    monkeypatch.chdir(ROOT)
    monkeypatch.delenv(REPOSITORY_VARIABLE, raising=False)
    if url is not None:
        monkeypatch.setenv(REPOSITORY_VARIABLE, url)
    menu = on_config(config.load_config("mkdocs.yml")).nav
    assert ({"Repository": url} in menu) == (url is not None)
